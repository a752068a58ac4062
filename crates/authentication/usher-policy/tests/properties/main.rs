//! Properties: no text makes the parser panic, and every policy survives its own text.

mod modules;
mod policies;

use std::collections::BTreeSet;

use policies::{groups_of, policy};
use proptest::collection::vec;
use proptest::prelude::*;
use usher_base::UserName;
use usher_policy::{
    ClientUse, Groups, Name, Objection, Policy, PolicyError, PolicyMistake, ServedBy, Service,
    ServiceUse, Source, TrustedPrincipal, Users, format, parse_with_groups, parse_with_places,
};
use usher_proto::Refusal;

fn parse_text(text: &str) -> Result<Policy, Vec<PolicyError>> {
    parse_beside(&Groups::new(), text)
}

/// Parses a text on a system with these groups, and staff.
fn parse_beside(groups: &Groups, text: &str) -> Result<Policy, Vec<PolicyError>> {
    let source = Source {
        name: "property".to_owned(),
        text: text.to_owned(),
    };
    let mut groups = groups.clone();
    let staff = ["alice", "root", "erin"].map(str::to_owned).into();
    groups.insert("staff".parse().expect("a group's name"), Ok(staff));
    parse_with_groups(&[source], &groups)
}

/// For every text, errors lie within it and say something, and a policy survives its own text and
/// its canonical form.
fn check(text: &str) -> Result<(), TestCaseError> {
    check_format(text)?;
    match parse_text(text) {
        Ok(policy) => {
            prop_assert_eq!(parse_text(&policy.to_text()), Ok(policy.clone()));
            for service in policy.services.values() {
                if let Some(account) = service.account() {
                    prop_assert!(
                        account.as_ref() != "root" && !service.users.names().contains(account)
                    );
                }
            }
            let _ = (policy.warnings(), policy.proxy_listeners());
        }
        Err(errors) => {
            prop_assert!(!errors.is_empty());
            for error in errors {
                let span = error.span.offset..error.span.offset + error.span.length;
                prop_assert!(text.get(span).is_some(), "{error:?}");
                prop_assert!(error.place.line >= 1 && error.place.column >= 1);
                prop_assert!(!error.remedy().is_empty());
                let message = error.to_string();
                prop_assert!(!message.chars().any(char::is_control), "{message:?}");
            }
        }
    }
    Ok(())
}

/// A text that can be formatted says the same afterwards, and is left alone the second time.
fn check_format(text: &str) -> Result<(), TestCaseError> {
    let format_text = |text: &str| {
        format(&Source {
            name: "property".to_owned(),
            text: text.to_owned(),
        })
    };
    if let Ok(formatted) = format_text(text) {
        let again = format_text(&formatted);
        prop_assert_eq!(again.as_ref(), Ok(&formatted));
        let number = |found: Result<Policy, Vec<PolicyError>>| found.map_err(|errors| errors.len());
        prop_assert_eq!(
            number(parse_text(&formatted)),
            number(parse_text(text)),
            "{}",
            formatted
        );
    } else {
        prop_assert!(parse_text(text).is_err());
    }
    Ok(())
}

/// Pieces of the language in any order: nearer to a policy than arbitrary text.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "host",
        "users",
        "service",
        "client",
        "application",
        "mac",
        "mac bsdextended { rule subject uid a mode r; }",
        "mac seeotheruids { specificgid a; primarygroup yes; suser_privileged no; }",
        "mac portacl { permit user a tcp 80; port_high 99; }",
        "mac ifoff { interface \"eth0\" on; loopback off; others on; capture on; }",
        "mac te { domain a; type t; allow a t file read; permissive any; }",
        "expect",
        "permit",
        "refuse",
        "address",
        "key",
        "control",
        "loopback",
        "member",
        "group",
        "guest",
        "include",
        "until",
        "2026-12-31T18:00Z",
        "staff",
        "program",
        "account",
        "listen",
        "hosts",
        "style",
        "connection",
        "user",
        "idle",
        "environment",
        "files",
        "read",
        "write",
        "session",
        "reauthenticate",
        "keepalive",
        "keys",
        "key",
        "connections",
        "processes",
        "memory",
        "512M",
        "cpu",
        "50%",
        "limit",
        "connect",
        "none",
        "0.0.0.0/0",
        "-",
        "protocol",
        "programs",
        "imap",
        "raw",
        "any",
        "at",
        "port",
        "alice",
        "root",
        "mail",
        "10.77.0.1",
        "fd77::2",
        "127.0.1.1",
        "143",
        "0",
        "5m",
        "5é",
        "漢",
        "é=1",
        "\"/x\"",
        "\"/usr/bin/curl\"",
        "\"A=1\"",
        "\"",
        "\\",
        "{",
        "}",
        "{",
        "}",
        ";",
        ";",
        ",",
        "#",
        "\n",
        "\n",
        "\r",
        "\u{202e}",
        "\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\"",
        "users u { member alice; }",
        "host h {",
        "service s {",
        "client c {",
        "users u;",
        "hosts any;",
        "style user;",
        "listen 143;",
        "expect permit user alice service s;",
    ]);
    vec(piece, 0..60).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn printable_text_never_panics(text in "[a-z0-9 ;,{}\"#\\\\\n.:/=]{0,200}") {
        check(&text)?;
    }

    #[test]
    fn pieces_of_the_language_never_panic(text in pieces()) {
        check(&text)?;
    }

    #[test]
    fn a_changed_character_never_panics(
        position in any::<prop::sample::Index>(),
        character in any::<char>(),
    ) {
        let mut text: Vec<char> = include_str!("../golden/complete.policy").chars().collect();
        let position = position.index(text.len());
        text[position] = character;
        check(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn every_policy_survives_its_own_text(policy in policy()) {
        let text = policy.to_text();
        let again = parse_beside(&groups_of(&policy), &text);
        prop_assert_eq!(again.as_ref(), Ok(&policy), "{}", text);
    }

    #[test]
    fn every_policy_can_be_formatted_however_it_is_spaced(
        policy in policy(),
        gaps in vec(prop::sample::select(vec![" ", "\t", "", "\n\n\n", " # c\n", "\r\n", "\n#d\n"]), 20),
    ) {
        // After `;`, `{` and `}` anything may stand.
        let mut gaps = gaps.iter().cycle();
        let text = policy.to_text();
        let spaced: String = text
            .lines()
            .map(|line| format!("{line}{}{}", gaps.next().unwrap_or(&""), gaps.next().unwrap_or(&"")))
            .collect();
        let name = "property".to_owned();
        prop_assert!(format(&Source { name, text: spaced.clone() }).is_ok(), "{}", spaced);
        check_format(&spaced)?;
        prop_assert_eq!(parse_beside(&groups_of(&policy), &spaced), Ok(policy));
    }

    #[test]
    fn no_user_of_a_service_can_be_its_account(mut policy in policy()) {
        let mut expected = Vec::new();
        for service in policy.services.values_mut() {
            let Some(account) = service.users.names().first().cloned() else {
                continue;
            };
            let admits = |block: &&Name| policy.users[*block].has(&account);
            let block_name = service.user_blocks.iter().find(admits).cloned();
            let block_name = block_name.expect("a block that admits the user");
            match &mut service.served_by {
                ServedBy::Program(program) if program.account.is_some() => {
                    program.account = Some(account.clone());
                }
                ServedBy::Backend(backend) => backend.account = account.clone(),
                served_by => *served_by = ServedBy::Account(account.clone()),
            }
            expected.push(PolicyMistake::AccountIsUser { account, block_name });
        }
        let found = parse_beside(&groups_of(&policy), &policy.to_text()).err().unwrap_or_default();
        let found: Vec<PolicyMistake> = found.iter().filter_map(|error| error.is().cloned()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn objections_are_those_of_the_model_in_order(
        policy in policy(),
        stranger in "[a-z]{9}",
        now in prop::sample::select(vec![0, 1, 1_798_739_999, 1_798_740_000, 4_000_000_000_u64]),
        certified in prop::sample::select(vec!["", "ops", "ops@example.org", "r\u{f4}le/\\x=1", "dev"]),
    ) {
        let trusted = [TrustedPrincipal { name: certified, until: u64::MAX }];
        let principals = if certified.is_empty() { &[][..] } else { &trusted };
        let stranger: UserName = stranger.parse().expect("a user name");
        let mut users: BTreeSet<UserName> =
            policy.users.values().flat_map(Users::users).cloned().collect();
        let accounts = policy.services.values().filter_map(Service::account).cloned();
        users.extend(accounts.chain(["root", "usher-x"].map(|name| name.parse().expect("a name"))));
        users.insert(stranger);
        let sources = [Source { name: "property".to_owned(), text: policy.to_text() }];
        let (_, places) = parse_with_places(&sources, &groups_of(&policy)).expect("a policy's text");
        for (host, entry) in policy.client_services().map(|entry| (&entry.host, entry)) {
            for user in &users {
                let mut sets = policy.clients.values()
                    .filter(|client| client.services.contains(entry))
                    .flat_map(|client| &client.user_blocks)
                    .map(|block| &policy.users[block]);
                let is_one = sets.any(|set| {
                    let guest = set.guests.get(user);
                    set.lasting().any(|member| member == user)
                        || guest.is_some_and(|until| until.unix_time() > now)
                });
                let expected = (!is_one).then_some(Refusal::ClientPolicy);
                let found = policy.client_permits(user, host, &entry.service, now);
                prop_assert_eq!(found.err(), expected);
                let asked = ClientUse { user, host, service: &entry.service, now };
                let case = policy.client_case(asked);
                prop_assert_eq!(case.objections().next().map(|found| found.refusal()), expected);
                for clause in case.objections().filter_map(|found| found.clause()) {
                    prop_assert!(places.place(&clause).is_some(), "{}", clause);
                }
            }
        }
        for (name, service) in &policy.services {
            for user in &users {
                for host in policy.hosts.keys() {
                    let member = service.user_blocks.iter()
                        .any(|block| {
                            let block = &policy.users[block];
                            let guest = block.guests.get(user);
                            block.lasting().any(|member| member == user)
                                || guest.is_some_and(|until| until.unix_time() > now)
                        });
                    let is_account = service.account() == Some(user);
                    let nobodys = is_account || ["root", "usher-x"].contains(&user.as_ref());
                    let certified = !nobodys && service.user_blocks.iter()
                        .any(|block| policy.users[block].principals.contains(certified));
                    let was_guest = service.user_blocks.iter()
                        .any(|block| policy.users[block].guests.contains_key(user));
                    let to_user = if was_guest {
                        Refusal::GuestOver
                    } else {
                        Refusal::UserNotPermitted
                    };
                    let from_host = service.any_host || service.hosts.contains(host);
                    let expected: Vec<Refusal> = [
                        (member || certified, to_user),
                        (from_host, Refusal::HostNotPermitted),
                    ].into_iter().filter(|(fine, _)| !fine).map(|(_, refusal)| refusal).collect();
                    let then = policy.at(now);
                    for policy in [&policy, &then] {
                        let found = policy.service_permits(name, user, principals, host, now);
                        prop_assert_eq!(found.err(), expected.first().copied());
                        let asked = ServiceUse { service: name, user, principals, host: Some(host), now };
                        let found: Vec<Objection<'_>> = policy.service_case(asked).objections().collect();
                        let refusals: Vec<Refusal> = found.iter().map(Objection::refusal).collect();
                        prop_assert_eq!(&refusals, &expected);
                        for clause in found.iter().filter_map(Objection::clause) {
                            prop_assert!(places.place(&clause).is_some(), "{}", clause);
                        }
                    }
                    prop_assert_eq!(then.services[name].users.names().contains(user), member);
                }
            }
        }
    }
}
