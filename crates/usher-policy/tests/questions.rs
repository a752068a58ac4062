//! What the daemons ask: every refusal beside the permitted twin.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use usher_policy::{Policy, Program, Protocol, ServedBy, Source, Style, parse};
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

fn policy() -> Policy {
    let complete = source("complete.policy", include_str!("golden/complete.policy"));
    parse(&[complete]).expect("a correct policy")
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
            .service_permits(&service(service_name), &user(user_name), &host(host_name))
            .map(|service| service.listen)
    };
    assert_eq!(ask("imap", "alice", "laptop"), Ok(143));
    assert_eq!(ask("imap", "dave", "laptop"), Ok(143));
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
            .client_permits(&user(user_name), &host(host_name), &service(service_name))
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
        let answer = policy.service_permits(&service("s"), &user("alice"), &host("h"));
        assert_eq!(answer.map(|_| ()), Err(Refusal::UnknownService));
        let answer = policy.client_permits(&user("alice"), &host("h"), &service("s"));
        assert_eq!(answer.map(|_| ()), Err(Refusal::UnknownHost));
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
    let destinations: Vec<SocketAddr> = policy.plain_destinations().collect();
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
