//! Properties: no text makes the parser panic, and every policy survives its own text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use usher_policy::{
    Client, ClientService, DEFAULT_CONNECTIONS, DEFAULT_IDLE, Host, MINIMUM_REAUTHENTICATION, Name,
    Policy, PolicyError, PolicyErrorKind, Program, Programs, Protocol, ServedBy, Service, Source,
    Style, Users, parse, service_id,
};
use usher_proto::{HostName, HostPublicKey, ServiceName, UserName};

fn parse_text(text: &str) -> Result<Policy, Vec<PolicyError>> {
    parse(&[Source {
        name: "property".to_owned(),
        text: text.to_owned(),
    }])
}

/// Whatever the text: errors lie within it, say something, and a policy survives its own text.
fn check(text: &str) -> Result<(), TestCaseError> {
    match parse_text(text) {
        Ok(policy) => {
            prop_assert_eq!(parse_text(&policy.to_text()), Ok(policy.clone()));
            for service in policy.services.values() {
                if let ServedBy::Account(account) = &service.served_by {
                    prop_assert!(account.as_ref() != "root" && !service.users.contains(account));
                }
            }
            let _ = (policy.warnings(), policy.proxy_listeners());
        }
        Err(errors) => {
            prop_assert!(!errors.is_empty());
            for error in errors {
                let span = error.span.offset..error.span.offset + error.span.length;
                prop_assert!(text.get(span).is_some(), "{error:?}");
                prop_assert!(error.line >= 1 && error.column >= 1);
                prop_assert!(!error.remedy().is_empty());
                let message = error.to_string();
                prop_assert!(!message.chars().any(char::is_control), "{message:?}");
            }
        }
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
        "address",
        "key",
        "control",
        "loopback",
        "member",
        "program",
        "account",
        "listen",
        "hosts",
        "style",
        "connection",
        "user",
        "idle",
        "environment",
        "session",
        "reauthenticate",
        "keys",
        "key",
        "connections",
        "processes",
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
    ]);
    vec(piece, 0..60).prop_map(|pieces| pieces.join(" "))
}

fn block_names() -> impl Strategy<Value = BTreeSet<String>> {
    btree_set(
        "[A-Za-z0-9][A-Za-z0-9.-]{0,7}".prop_filter("reserved", |name| name != "any"),
        1..5,
    )
}

/// Strings of the language: anything but what it refuses as invisible.
fn string() -> impl Strategy<Value = String> {
    "[ -~\\n\\t\"\\\\#;{}äß漢]{0,12}"
}

fn seconds() -> impl Strategy<Value = Duration> {
    prop_oneof![
        1..=604_800_u64,
        (1..=168_u64).prop_map(|hours| hours * 3600)
    ]
    .prop_map(Duration::from_secs)
}

/// Choices for one block, applied to whatever names there are.
#[derive(Clone, Debug)]
struct Choices {
    key: [u8; 32],
    port: u16,
    flags: [bool; 3],
    text: String,
    texts: Vec<String>,
    durations: (Duration, Duration),
    number: u32,
    members: BTreeSet<String>,
    picks: Vec<prop::sample::Index>,
}

fn choices() -> impl Strategy<Value = Choices> {
    let members = btree_set(
        "[a-z_][a-z0-9_.-]{0,7}".prop_filter("root is no member", |name| name != "root"),
        0..4,
    );
    (
        any::<[u8; 32]>(),
        1..u16::MAX,
        any::<[bool; 3]>(),
        "[a-zA-Z0-9_-]{1,8}",
        vec(string(), 0..4),
        (seconds(), seconds()),
        1..=65_536_u32,
        members,
        vec(any::<prop::sample::Index>(), 1..4),
    )
        .prop_map(
            |(key, port, flags, text, texts, durations, number, members, picks)| Choices {
                key,
                port,
                flags,
                text,
                texts,
                durations,
                number,
                members,
                picks,
            },
        )
}

fn pick<T: Clone + Ord>(picks: &[prop::sample::Index], from: &[T]) -> BTreeSet<T> {
    picks.iter().map(|index| index.get(from).clone()).collect()
}

fn names<N: std::str::FromStr + Ord>(texts: &BTreeSet<String>) -> Vec<N>
where
    N::Err: std::fmt::Debug,
{
    texts
        .iter()
        .map(|text| text.parse().expect("a generated name"))
        .collect()
}

fn host(name: HostName, number: usize, choices: &Choices) -> Host {
    let number = u8::try_from(number).expect("few hosts");
    let v4 = IpAddr::V4(Ipv4Addr::new(10, 77, number, 1));
    let v6 = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number)));
    let addresses = match choices.flags {
        [true, ..] => vec![v6, v4],
        [_, true, _] => vec![v4],
        _ => vec![v6],
    };
    let mut key = choices.key;
    key[0] = number; // No two hosts share a key.
    let loopback = if choices.flags[2] {
        vec![Ipv4Addr::new(127, 0, 1, number)]
    } else {
        vec![]
    };
    let control = if choices.flags[0] { 3440 } else { choices.port };
    Host {
        name,
        addresses,
        key: HostPublicKey::from_bytes(key),
        control,
        loopback,
    }
}

fn service(
    name: ServiceName,
    listen: u16,
    choices: &Choices,
    hosts: &[HostName],
    users: &BTreeMap<Name, Users>,
) -> Service {
    let (user_blocks, members) = pick_users(choices, users);
    let [any_host, by_user, by_account] = choices.flags;
    let served_by = if by_account {
        // Longer than any member's name.
        let account = format!("service-{}", choices.text.to_ascii_lowercase());
        ServedBy::Account(account.parse().expect("an account name"))
    } else {
        let environment = choices.texts.iter().enumerate();
        ServedBy::Program(Program {
            path: format!("/usr/{}", choices.text),
            arguments: choices.texts.clone(),
            environment: environment
                .map(|(number, value)| (format!("X_{number}"), value.clone()))
                .collect(),
        })
    };
    Service {
        id: service_id(&name),
        name,
        served_by,
        listen,
        user_blocks,
        users: members,
        any_host,
        hosts: if any_host {
            hosts.iter().cloned().collect()
        } else {
            pick(&choices.picks, hosts)
        },
        style: if by_user {
            Style::User
        } else {
            Style::Connection
        },
        idle: if by_user {
            choices.durations.0
        } else {
            DEFAULT_IDLE
        },
        session: choices.durations.1,
        keys: any_host.then(|| "banking".parse().expect("a name")),
        reauthenticate: Some(choices.durations.0)
            .filter(|interval| *interval >= MINIMUM_REAUTHENTICATION),
        connections: if by_user {
            DEFAULT_CONNECTIONS
        } else {
            choices.number
        },
        processes: choices.number,
    }
}

fn pick_users(
    choices: &Choices,
    users: &BTreeMap<Name, Users>,
) -> (BTreeSet<Name>, BTreeSet<UserName>) {
    let known: Vec<Name> = users.keys().cloned().collect();
    let blocks = pick(&choices.picks, &known);
    let members = blocks
        .iter()
        .flat_map(|block| users[block].members.clone())
        .collect();
    (blocks, members)
}

/// Policies built from the model's side, not from text.
fn policy() -> impl Strategy<Value = Policy> {
    let blocks = (block_names(), block_names(), block_names(), block_names());
    (blocks, vec(choices(), 5)).prop_map(|((hosts, users, services, clients), choices)| {
        let host_names: Vec<HostName> = names(&hosts);
        let user_names: Vec<Name> = names(&users);
        let service_names: Vec<ServiceName> = names(&services);
        let mut policy = Policy::default();
        for (number, name) in host_names.iter().cloned().enumerate() {
            policy
                .hosts
                .insert(name.clone(), host(name, number + 1, &choices[number]));
        }
        for (name, choices) in user_names.into_iter().zip(&choices) {
            let members = names(&choices.members).into_iter().collect();
            policy.users.insert(name.clone(), Users { name, members });
        }
        let controls: Vec<u16> = policy.hosts.values().map(|host| host.control).collect();
        let mut ports = (1000..).filter(|port| !controls.contains(port));
        for (name, choices) in service_names.iter().cloned().zip(&choices) {
            let listen = ports.next().expect("a free port");
            let service = service(name.clone(), listen, choices, &host_names, &policy.users);
            policy.services.insert(name, service);
        }
        for (number, name) in names::<Name>(&clients).into_iter().enumerate() {
            let (user_blocks, users) = pick_users(&choices[number], &policy.users);
            let protocol = if choices[number].flags[0] {
                Protocol::Imap
            } else {
                Protocol::Raw
            };
            let programs = if choices[number].flags[1] {
                Programs::Any
            } else {
                Programs::Asking
            };
            let port = 2000 + u16::try_from(number).expect("few clients");
            let services = pick(&choices[number].picks, &host_names)
                .into_iter()
                .map(|host| ClientService {
                    // A pair of service and host stands once: each client block has its own.
                    service: format!("service-{number}").parse().expect("a service name"),
                    host,
                    port,
                    users: users.clone(),
                    protocol,
                    programs,
                    key: choices[number].flags[1].then(|| "banking".parse().expect("a name")),
                })
                .collect();
            policy.clients.insert(
                name.clone(),
                Client {
                    name,
                    user_blocks,
                    services,
                },
            );
        }
        policy
    })
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
        let mut text: Vec<char> = include_str!("golden/complete.policy").chars().collect();
        let position = position.index(text.len());
        text[position] = character;
        check(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn every_policy_survives_its_own_text(policy in policy()) {
        let text = policy.to_text();
        let again = parse_text(&text);
        prop_assert_eq!(again.as_ref(), Ok(&policy), "{}", text);
    }

    #[test]
    fn no_user_of_a_service_can_be_its_account(mut policy in policy()) {
        let mut expected = Vec::new();
        for service in policy.services.values_mut() {
            let Some(account) = service.users.first().cloned() else {
                continue;
            };
            let admits = |block: &&Name| policy.users[*block].members.contains(&account);
            let block_name = service.user_blocks.iter().find(admits).cloned();
            let block_name = block_name.expect("a block that admits the user");
            service.served_by = ServedBy::Account(account.clone());
            expected.push(PolicyErrorKind::AccountIsUser { account, block_name });
        }
        let found = parse_text(&policy.to_text()).err().unwrap_or_default();
        let found: Vec<_> = found.into_iter().map(|error| error.kind).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_permission_is_exactly_membership(policy in policy(), stranger in "[a-z]{9}") {
        let stranger: UserName = stranger.parse().expect("a user name");
        let mut users: BTreeSet<UserName> =
            policy.users.values().flat_map(|block| block.members.clone()).collect();
        users.insert(stranger);
        for (name, service) in &policy.services {
            for user in &users {
                for host in policy.hosts.keys() {
                    let member = service.user_blocks.iter()
                        .any(|block| policy.users[block].members.contains(user));
                    let permitted = member && (service.any_host || service.hosts.contains(host));
                    prop_assert_eq!(policy.service_permits(name, user, host).is_ok(), permitted);
                }
            }
        }
    }
}
