//! What the daemons ask: every refusal beside the permitted twin.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use usher_policy::{
    BlockKind, Clause, Groups, Policy, Program, Programs, Protocol, ServedBy, Source, Style,
    TrustedPrincipal, parse, parse_with_groups, parse_with_places,
};
use usher_proto::{HostName, HostPublicKey, Refusal, ServiceName, UserName};

const LAPTOP_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu";
const OTHER_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIC8E9DhH4uHVxzvVTyxZvnsMbYT8AtrwLX5f5zXbamr1";

fn source(name: &str, text: &str) -> Source {
    Source {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

/// 2026-01-01T00:00Z.
const NOW: u64 = 1_767_225_600;

fn policy() -> Policy {
    let complete = source("complete.policy", include_str!("golden/complete.policy"));
    let accounts = ["root", "erin"].map(str::to_owned).into();
    let groups = [("staff".parse().expect("a group's name"), Ok(accounts))].into();
    parse_with_groups(&[complete], &groups).expect("a correct policy")
}

fn user(name: &str) -> UserName {
    name.parse().expect("a user name")
}

fn host(name: &str) -> HostName {
    name.parse().expect("a host name")
}

fn service(name: &str) -> ServiceName {
    name.parse().expect("a service name")
}

/// The program of a service that has one.
fn program<'p>(policy: &'p Policy, name: &str) -> &'p Program {
    match &policy.services[&service(name)].served_by {
        ServedBy::Program(program) => program,
        ServedBy::Account(account) => panic!("{name} is served by {account}"),
    }
}

#[test]
fn a_service_admits_its_users_from_its_hosts_and_nobody_else() {
    let policy = policy();
    let ask = |service_name, user_name, host_name| {
        policy
            .service_permits(
                &service(service_name),
                &user(user_name),
                &[],
                &host(host_name),
                NOW,
            )
            .map(|(service, _)| service.listen)
    };
    assert_eq!(ask("imap", "alice", "laptop"), Ok(143));
    assert_eq!(ask("imap", "dave", "laptop"), Ok(143));
    // By the group, which does not make root a user.
    assert_eq!(ask("imap", "erin", "laptop"), Ok(143));
    assert_eq!(
        ask("imap", "root", "laptop"),
        Err(Refusal::UserNotPermitted)
    );
    assert_eq!(
        ask("imaps", "alice", "laptop"),
        Err(Refusal::UnknownService)
    );
    assert_eq!(
        ask("imap", "mallory", "laptop"),
        Err(Refusal::UserNotPermitted)
    );
    assert_eq!(
        ask("imap", "alice", "mailhost"),
        Err(Refusal::HostNotPermitted)
    );
    assert_eq!(
        ask("imap", "mallory", "mailhost"),
        Err(Refusal::UserNotPermitted)
    );
    assert_eq!(ask("calendar", "dave", "mailhost"), Ok(5232));
    assert_eq!(
        ask("calendar", "dave", "stranger"),
        Err(Refusal::HostNotPermitted)
    );
    assert_eq!(
        ask("calendar", "alice", "laptop"),
        Err(Refusal::UserNotPermitted)
    );
}

#[test]
fn a_local_user_may_authenticate_where_a_client_block_says_so_and_nowhere_else() {
    let policy = policy();
    let ask = |user_name, host_name, service_name| {
        policy
            .client_permits(
                &user(user_name),
                &host(host_name),
                &service(service_name),
                NOW,
            )
            .map(|entry| (entry.port, entry.protocol))
    };
    assert_eq!(ask("alice", "mailhost", "imap"), Ok((143, Protocol::Imap)));
    assert_eq!(ask("dave", "mailhost", "files"), Ok((2049, Protocol::Raw)));
    assert_eq!(ask("dave", "laptop", "imap"), Ok((143, Protocol::Raw)));
    assert_eq!(ask("alice", "stranger", "imap"), Err(Refusal::UnknownHost));
    assert_eq!(ask("dave", "mailhost", "imap"), Err(Refusal::ClientPolicy));
    assert_eq!(
        ask("alice", "mailhost", "files"),
        Err(Refusal::ClientPolicy)
    );
    assert_eq!(
        ask("alice", "mailhost", "calendar"),
        Err(Refusal::ClientPolicy)
    );
}

#[test]
fn hosts_are_found_by_key_and_by_address() {
    let policy = policy();
    let by_key = |key| {
        let key = HostPublicKey::from_openssh(key).expect("a host key");
        policy.host_by_key(&key).map(|host| host.name.as_ref())
    };
    assert_eq!(by_key(LAPTOP_KEY), Some("laptop"));
    assert_eq!(by_key(OTHER_KEY), None);
    let by_address = |address: &str| {
        let address: IpAddr = address.parse().expect("an address");
        policy
            .host_of_address(address)
            .map(|host| host.name.as_ref())
    };
    assert_eq!(by_address("10.77.0.2"), Some("mailhost"));
    assert_eq!(by_address("::ffff:10.77.0.2"), Some("mailhost"));
    assert_eq!(by_address("fd77::2"), Some("mailhost"));
    assert_eq!(by_address("10.77.0.3"), None);
    // The proxy's addresses are local: no host is at them.
    assert_eq!(by_address("127.0.1.1"), None);
}

#[test]
fn the_proxy_stands_on_each_loopback_address_for_each_service_of_the_host() {
    let listeners: Vec<(SocketAddrV4, String, Protocol)> = policy()
        .proxy_listeners()
        .into_iter()
        .map(|entry| {
            (
                entry.address,
                format!("{}:{}", entry.host, entry.service),
                entry.protocol,
            )
        })
        .collect();
    let expected = [
        ("127.0.1.1:143", "mailhost:imap", Protocol::Imap),
        ("127.0.1.1:2049", "mailhost:files", Protocol::Raw),
        ("127.0.1.2:143", "mailhost:imap", Protocol::Imap),
        ("127.0.1.2:2049", "mailhost:files", Protocol::Raw),
    ]
    .map(|(address, target, protocol)| {
        (
            address.parse().expect("an address"),
            target.to_owned(),
            protocol,
        )
    });
    assert_eq!(listeners, expected);
}

#[test]
fn values_come_through_and_the_rest_is_at_its_default() {
    let policy = policy();
    let imap = &policy.services[&service("imap")];
    assert_eq!(imap.style, Style::Connection);
    let program = program(&policy, "imap");
    assert_eq!(program.path, "/usr/lib/dovecot/imap");
    assert_eq!(
        program.arguments,
        [
            "-o",
            "mail_location=maildir:~/Maildir",
            "a \"quoted\" \\ one"
        ]
    );
    assert_eq!(imap.session.as_secs(), 5400);
    assert_eq!((imap.connections, imap.processes), (16, 200));
    let environment = [("LANG", "C.UTF-8"), ("EMPTY", ""), ("X_1", "a=b")];
    assert_eq!(
        program.environment,
        environment.map(|(n, v)| (n.to_owned(), v.to_owned()))
    );

    let text = "host h { address 10.77.0.1; key \"KEY\"; } users u { member alice; }
        service s { program \"/x\"; listen 65535; users u; hosts h; style user; }"
        .replace("KEY", LAPTOP_KEY);
    let policy = parse(&[source("defaults", &text)]).expect("a correct policy");
    let s = &policy.services[&service("s")];
    assert_eq!((s.idle.as_secs(), s.session.as_secs()), (300, 28_800));
    assert_eq!((s.connections, s.processes), (64, 1024));
    assert_eq!(
        (
            s.listen,
            s.any_host,
            self::program(&policy, "s").environment.len()
        ),
        (65_535, false, 0)
    );
    let h = &policy.hosts[&host("h")];
    assert_eq!((h.control, h.loopback.len()), (3440, 0));
}

#[test]
fn services_may_share_an_account_that_is_a_user_of_neither() {
    let text = "host h { address 10.77.0.1; key \"KEY\"; } users u { member alice; }
        users v { member notes; }
        service s { account notes; listen 1; users u; hosts h; style user; idle 9s; }
        service t { account notes; listen 2; users u; hosts h; style connection; connections 9; }
        service w { account alice; listen 3; users v; hosts h; style user; }"
        .replace("KEY", LAPTOP_KEY);
    let policy = parse(&[source("accounts", &text)]).expect("a correct policy");
    let [s, t, w] = ["s", "t", "w"].map(|name| &policy.services[&service(name)]);
    assert_eq!(s.served_by, ServedBy::Account(user("notes")));
    assert_eq!(t.served_by, s.served_by);
    assert_eq!(w.served_by, ServedBy::Account(user("alice")));
    assert_eq!((s.idle.as_secs(), t.connections), (9, 9));
    // w's account is a user of s and t.
    let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let (first, others) = (
        &warnings[0],
        "has the account notes, who is a user of `service w`",
    );
    assert!(
        warnings[..2].iter().all(|warning| warning.contains(others)),
        "{first}"
    );
    assert!(warnings[2].starts_with(
        "`service w` has the account alice, who is a user of `service s`: the account is fenced"
    ));
}

#[test]
fn names_resolve_over_all_sources_in_any_order() {
    let service = source(
        "10-service.policy",
        "service s { program \"/x\"; listen 143; users u; hosts any; style user; }",
    );
    let host = source(
        "20-host.policy",
        &"host h { address 10.77.0.1; key \"KEY\"; }".replace("KEY", LAPTOP_KEY),
    );
    let users = source("30-users.policy", "users u { member alice; }");
    let sources = [service, host, users];
    let policy = parse(&sources).expect("a correct policy");
    let reversed: Vec<Source> = sources.iter().rev().cloned().collect();
    assert_eq!(parse(&reversed), Ok(policy));

    let errors = parse(&sources[..2]).expect_err("the users block is missing");
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].to_string(),
        "10-service.policy:1:45: no `users` block is called `u`"
    );

    let again = source("40-users.policy", "\n  users u { member bob; }");
    let errors = parse(&[&sources[..], &[again]].concat()).expect_err("a second block");
    assert_eq!(
        errors[0].to_string(),
        "40-users.policy:2:9: the `users` block `u` is already defined at 30-users.policy:1:7"
    );
}

#[test]
fn a_policy_of_nothing_permits_nothing() {
    for sources in [vec![], vec![source("empty", "# nothing\n")]] {
        let policy = parse(&sources).expect("an empty policy");
        assert_eq!(policy, Policy::default());
        let answer = policy.service_permits(&service("s"), &user("alice"), &[], &host("h"), NOW);
        assert_eq!(answer.map(|_| ()), Err(Refusal::UnknownService));
        let answer = policy.client_permits(&user("alice"), &host("h"), &service("s"), NOW);
        assert_eq!(answer.map(|_| ()), Err(Refusal::UnknownHost));
    }
}

#[test]
fn a_guest_is_one_for_the_longest_time_of_all_sets_and_then_no_more() {
    let text = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         users a {{ guest alice until 2026-01-01T00:01Z; guest bob until 2026-01-01T00:01Z; }}
         users b {{ guest alice until 2026-01-01T00:00:30Z; member bob; }}
         users c {{ guest alice until 2026-01-01T00:00:30Z; }}
         service s {{ program \"/x\"; listen 1; users a, b; hosts any; style user; }}
         service t {{ program \"/x\"; listen 2; users c, b; hosts any; style user; }}
         client c {{ users a, b; service s at laptop port 1; }}"
    );
    let policy = parse(&[source("guests", &text)]).expect("a correct policy");
    let ask = |policy: &Policy, name, user_name, after| {
        let (service, user) = (service(name), user(user_name));
        let answer = policy.service_permits(&service, &user, &[], &host("laptop"), NOW + after);
        answer.map(|(_, until)| until)
    };
    let asks = |user_name, after| {
        let (user, host, now) = (user(user_name), host("laptop"), NOW + after);
        let answer = policy.client_permits(&user, &host, &service("s"), now);
        answer.is_ok()
    };
    for after in [0, 29, 30, 59, 60, 1_000_000] {
        let expected = |until| match after < until {
            true => Ok(NOW + until),
            false => Err(Refusal::GuestOver),
        };
        assert_eq!(ask(&policy, "s", "alice", after), expected(60));
        assert_eq!(ask(&policy, "t", "alice", after), expected(30));
        assert_eq!(ask(&policy, "s", "bob", after), Ok(u64::MAX));
        assert_eq!(
            (asks("alice", after), asks("bob", after)),
            (after < 60, true)
        );
        // The policy as it is then says the same of then, without guests who are over.
        let then = policy.at(NOW + after);
        for (name, until) in [("s", 60), ("t", 30)] {
            assert_eq!(ask(&then, name, "alice", after).is_ok(), after < until);
            let names = then.services[&service(name)].users.names();
            assert_eq!(names.contains(&user("alice")), after < until);
        }
        let over = policy.guests_over(NOW + after).len();
        assert_eq!(
            over,
            2 * usize::from(after >= 30) + 2 * usize::from(after >= 60)
        );
    }
}

#[test]
fn the_model_goes_into_json() {
    let json = serde_json::to_value(policy()).expect("a policy has a JSON form");
    assert_eq!(json["services"]["imap"]["session_seconds"], 5400);
    assert_eq!(json["services"]["imap"]["style"], "connection");
    let program = "/usr/lib/dovecot/imap";
    assert_eq!(json["services"]["imap"]["program"], program);
    assert_eq!(json["services"]["imap"]["arguments"][0], "-o");
    assert_eq!(json["services"]["imap"]["environment"][1][0], "EMPTY");
    assert_eq!(json["services"]["imap"].get("account"), None);
    assert_eq!(json["services"]["notes"]["account"], "notes");
    assert_eq!(json["services"]["notes"].get("program"), None);
    assert_eq!(json["clients"]["mail"]["services"][0]["protocol"], "imap");
    assert_eq!(json["hosts"]["mailhost"]["loopback"][0], "127.0.1.1");
}

#[test]
fn the_examples_of_the_manual_are_policies_without_warnings() {
    let manual = include_str!("../../../docs/policy.md");
    let mut blocks = manual.split("```").skip(1).step_by(2);
    let mail = source("mail", blocks.next().expect("the first example"));
    let policy = parse(std::slice::from_ref(&mail)).expect("a correct policy");
    assert_eq!(policy.warnings(), []);
    assert_eq!(policy.proxy_listeners().len(), 1);
    // The second adds a service to the first.
    let notes = source("notes", blocks.next().expect("the second example"));
    let policy = parse(&[mail, notes]).expect("a correct policy");
    assert_eq!(policy.warnings(), []);
    let notes = &policy.services[&service("notes")];
    assert_eq!(notes.served_by, ServedBy::Account(user("notes")));
}

#[test]
fn plain_connections_are_authenticated_where_a_client_block_says_so_and_nowhere_else() {
    let policy = policy();
    let destination = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let (destinations, programs): (Vec<SocketAddr>, Vec<_>) = policy.plain_destinations().unzip();
    assert!(programs.iter().all(|programs| **programs == Programs::Any));
    let expected = ["10.77.0.2:2049", "[fd77::2]:2049", "10.77.0.1:143"].map(destination);
    assert_eq!(destinations, expected);
    for found in destinations {
        assert!(policy.plain_service(found).is_some(), "{found}");
    }
    let files = |text: &str| {
        let (host, entry) = policy.plain_service(destination(text))?;
        Some((host.name.as_ref(), entry.service.as_ref()))
    };
    assert_eq!(files("[fd77::2]:2049"), Some(("mailhost", "files")));
    assert_eq!(
        files("[::ffff:10.77.0.2]:2049"),
        Some(("mailhost", "files"))
    );
    // Only for programs that ask; the proxy's address; another port, another host.
    for other in [
        "10.77.0.2:143",
        "127.0.1.1:2049",
        "10.77.0.2:2050",
        "10.77.0.3:2049",
    ] {
        assert_eq!(files(other), None, "{other}");
    }
}

#[test]
fn plain_connections_of_listed_programs_are_told_with_their_list() {
    let blocks = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         users mail {{ member alice; }}
         client news {{
           users mail; service news at laptop port 119; programs \"/usr/bin/slrn\", \"/bin/tin\";
         }}"
    );
    let policy = parse(&[source("listed", &blocks)]).expect("a correct policy");
    let (destination, programs) = policy.plain_destinations().next().expect("one");
    assert_eq!(destination, SocketAddr::from(([10, 77, 0, 1], 119)));
    let listed: Vec<&str> = programs
        .listed()
        .expect("a list")
        .iter()
        .map(String::as_str)
        .collect();
    assert_eq!(listed, ["/bin/tin", "/usr/bin/slrn"]);
    let (_, entry) = policy.plain_service(destination).expect("a service");
    assert_eq!(entry.programs, *programs);
}

#[test]
fn expectations_say_where_they_stand_and_leave_open_what_is_left_out() {
    let blocks = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         users mail {{ member alice; }}
         service imap {{ program \"/bin/cat\"; listen 143; users mail; hosts any; style user; }}"
    );
    let tests = "# größer\nexpect permit user alice service imap;  expect refuse\n  user alice at \
                 laptop service imap at laptop port 144;";
    let sources = [source("blocks", &blocks), source("tests", tests)];
    let policy = parse(&sources).expect("a correct policy");
    let [open, exact] = policy.expectations.as_slice() else {
        panic!("two expectations: {:?}", policy.expectations);
    };
    assert!(open.permit && open.from.is_none() && open.at.is_none() && open.port.is_none());
    assert_eq!(open.origin.place.to_string(), "tests:2:1");
    let laptop: HostName = "laptop".parse().expect("a host name");
    assert_eq!(
        (exact.permit, &exact.from, &exact.at, exact.port),
        (false, &Some(laptop.clone()), &Some(laptop), Some(144))
    );
    assert_eq!(exact.origin.place.to_string(), "tests:2:41");
    let span = exact.origin.span;
    let written = &tests[span.offset..span.offset + span.length];
    assert!(
        written.starts_with("expect refuse") && written.ends_with("144"),
        "{written}"
    );
}

#[test]
fn what_a_policy_says_is_found_in_its_text_and_what_it_does_not_say_is_not() {
    let users = source(
        "10-users",
        "users u {\n  member alice,\n    bob;\n  member carol;\n}",
    );
    let client = source(
        "20-client",
        &"host h { address 10.77.0.1; key \"KEY\"; }
client c { users u; service s at h
  port 143; }"
            .replace("KEY", LAPTOP_KEY),
    );
    let sources = [users, client];
    let (policy, places) = parse_with_places(&sources, &Groups::new()).expect("a correct policy");
    assert_eq!(Ok(policy), parse(&sources));
    let place = |clause: Clause| places.place(&clause).map(|place| place.to_string());
    let users = |keyword: &str, value: &str| Clause::value(BlockKind::Users, "u", keyword, value);
    let found = |text: &str| Some(text.to_owned());
    assert_eq!(place(users("", "")), found("10-users:1:1"));
    assert_eq!(place(users("member", "")), found("10-users:2:3"));
    assert_eq!(place(users("member", "bob")), found("10-users:3:5"));
    assert_eq!(place(users("member", "carol")), found("10-users:4:10"));
    assert_eq!(place(users("member", "dave")), None);
    let target = Clause::value(BlockKind::Client, "c", "service", "s at h port 143");
    assert_eq!(target.to_string(), "client c: service s at h port 143");
    assert_eq!(place(target), found("20-client:2:29"));
    let key = Clause::value(BlockKind::Host, "h", "key", format!("\"{LAPTOP_KEY}\""));
    assert_eq!(place(key), found("20-client:1:33"));
    assert_eq!(
        place(Clause::statement(BlockKind::Host, "h", "control")),
        None
    );
}

#[test]
fn a_certificates_principal_makes_its_holder_a_user_while_it_is_trusted() {
    let text = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         host desk {{ address 10.77.0.2; key \"{OTHER_KEY}\"; }}
         users a {{ member alice; guest bob until 2026-01-01T00:00:30Z; principal ops, dev; }}
         users b {{ principal ops@example.org; }}
         users c {{ member carol; }}
         service s {{ program \"/x\"; listen 1; users a, b; hosts laptop; style user; }}
         service t {{ account www; listen 2; users b; hosts any; style user; }}
         service u {{ program \"/x\"; listen 3; users c; hosts any; style user; }}"
    );
    let policy = parse(&[source("principals", &text)]).expect("a correct policy");
    let ask = |name, user_name, principals: &[(&'static str, u64)], host_name, after| {
        let principals: Vec<TrustedPrincipal<'_>> = principals
            .iter()
            .map(|&(name, until)| TrustedPrincipal { name, until })
            .collect();
        let (service, user, host) = (service(name), user(user_name), host(host_name));
        let answer = policy.service_permits(&service, &user, &principals, &host, NOW + after);
        answer.map(|(_, until)| until)
    };
    let none = Err(Refusal::UserNotPermitted);
    for user in ["alice", "bob", "carol", "mallory"] {
        for (name, until) in [("dev", u64::MAX), ("ops@example.org", NOW + 90)] {
            let longest = if user == "alice" { u64::MAX } else { until };
            let asked = [("ops@example.com", 9), (name, until)];
            assert_eq!(ask("s", user, &asked, "laptop", 60), Ok(longest));
        }
        let elsewhere = ask("s", user, &[("ops", u64::MAX)], "desk", 0);
        assert_eq!(elsewhere, Err(Refusal::HostNotPermitted));
        // A principal of another service's users, one that is longer or shorter, a user's name.
        for other in [
            "ops",
            "ops@example.org.",
            "OPS@example.org",
            "alice",
            "t",
            "b",
        ] {
            assert_eq!(ask("t", user, &[(other, u64::MAX)], "laptop", 0), none);
        }
    }
    assert_eq!(ask("s", "carol", &[], "laptop", 0), none);
    assert_eq!(ask("s", "bob", &[], "laptop", 0), Ok(NOW + 30));
    // The longer of the two counts; and who has been a guest is told so.
    for (until, longest) in [(NOW + 20, NOW + 30), (NOW + 40, NOW + 40)] {
        assert_eq!(ask("s", "bob", &[("ops", until)], "laptop", 0), Ok(longest));
    }
    assert_eq!(ask("s", "bob", &[], "laptop", 30), Err(Refusal::GuestOver));
    // Not in a set of names only, nor who can be no user of it, whatever is certified.
    assert_eq!(ask("u", "dan", &[("ops", u64::MAX)], "laptop", 0), none);
    let certified = [("ops@example.org", u64::MAX)];
    assert_eq!(ask("t", "dan", &certified, "laptop", 0), Ok(u64::MAX));
    for user in ["www", "root", "usher-keeper"] {
        assert_eq!(ask("t", user, &certified, "laptop", 0), none);
    }
    assert_eq!(ask("s", "www", &certified, "laptop", 0), Ok(u64::MAX));
}
