//! The model has everything that a policy says, and the places in its text.

use crate::{LAPTOP_KEY, host, policy, program, service, source, user};
use usher_base::HostName;
use usher_policy::{
    BlockKind, Clause, Groups, ServedBy, Source, Style, parse_policy, parse_with_places,
};

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
    let policy = parse_policy(&[source("defaults", &text)]).expect("a correct policy");
    let s = &policy.services[&service("s")];
    assert_eq!((s.idle.as_secs(), s.session.as_secs()), (300, 28_800));
    assert_eq!((s.connections, s.processes), (64, 1024));
    assert_eq!(
        (
            s.listen,
            s.any_host,
            crate::program(&policy, "s").environment.len()
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
    let policy = parse_policy(&[source("accounts", &text)]).expect("a correct policy");
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
    let policy = parse_policy(&sources).expect("a correct policy");
    let reversed: Vec<Source> = sources.iter().rev().cloned().collect();
    assert_eq!(parse_policy(&reversed), Ok(policy));

    let errors = parse_policy(&sources[..2]).expect_err("the users block is missing");
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].to_string(),
        "10-service.policy:1:45: no `users` block is called `u`"
    );

    let again = source("40-users.policy", "\n  users u { member bob; }");
    let errors = parse_policy(&[&sources[..], &[again]].concat()).expect_err("a second block");
    assert_eq!(
        errors[0].to_string(),
        "40-users.policy:2:9: the `users` block `u` is already defined at 30-users.policy:1:7"
    );
}

#[test]
fn the_examples_of_the_manual_are_policies_without_warnings() {
    let manual = include_str!("../../../../../docs/policy.md");
    let mut blocks = manual.split("```").skip(1).step_by(2);
    let mail = source("mail", blocks.next().expect("the first example"));
    let policy = parse_policy(std::slice::from_ref(&mail)).expect("a correct policy");
    assert_eq!(policy.warnings(), []);
    assert_eq!(policy.proxy_listeners().len(), 1);
    // The second example adds a service to the first.
    let notes = source("notes", blocks.next().expect("the second example"));
    let policy = parse_policy(&[mail, notes]).expect("a correct policy");
    assert_eq!(policy.warnings(), []);
    let notes = &policy.services[&service("notes")];
    assert_eq!(notes.served_by, ServedBy::Account(user("notes")));
}

#[test]
fn expectations_have_places_and_may_leave_parts_open() {
    let blocks = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         users mail {{ member alice; }}
         service imap {{ program \"/bin/cat\"; listen 143; users mail; hosts any; style user; }}"
    );
    let tests = "# größer\nexpect permit user alice service imap;  expect refuse\n  user alice at \
                 laptop service imap at laptop port 144;";
    let sources = [source("blocks", &blocks), source("tests", tests)];
    let policy = parse_policy(&sources).expect("a correct policy");
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
fn each_answer_names_the_policys_text_that_gives_it() {
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
    assert_eq!(Ok(policy), parse_policy(&sources));
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
