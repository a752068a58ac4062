//! The analyser says what the daemons do: on random policies of several hosts its answers are
//! compared with what signer, verifier and keeper ask of each policy, put together naively.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use usher_analysis::{HostPolicy, Known, Network, Question, Universe, UserState, Verdict};
use usher_policy::{
    Clause, Groups, Host, Name, Policy, Source, TrustedPrincipal, parse_with_groups,
    parse_with_places,
};
use usher_proto::{HostName, HostPublicKey, ServiceName, UserName};

/// The last host is named by the others' policies, and has none here.
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
const GIVEN: usize = 3;
/// All names that hosts have in questions: a policy may call the last host otherwise.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "d-else"];
const USERS: [&str; 4] = ["ann", "bob", "cid", "dan"];
/// What certificates name: an authority in ann's list is trusted with her name only.
const PRINCIPALS: [&str; 3] = ["ops", "dev", "ann"];
/// The account of the last service, which clients permit and no set of its service names.
const ACCOUNT: &str = "zoe";
const SERVICES: [&str; 3] = ["r", "s", "t"];
const PORTS: [u16; 2] = [1000, 2000];

/// When is asked: between the two.
const NOW: u64 = 1_767_225_600;
const TIMES: [&str; 2] = ["2026-01-01T00:00Z", "2026-01-01T00:00:01Z"];

/// What a host's policy says of another.
#[derive(Clone, Copy, Debug)]
enum View {
    Right,
    Unknown,
    OtherKey,
    OtherAddress,
    OnlyIpv4,
    OnlyIpv6,
    OtherControl,
    OtherName,
}

fn view() -> impl Strategy<Value = View> {
    prop_oneof![
        12 => Just(View::Right),
        1 => Just(View::Unknown),
        1 => Just(View::OtherKey),
        1 => Just(View::OtherAddress),
        1 => Just(View::OnlyIpv4),
        1 => Just(View::OnlyIpv6),
        1 => Just(View::OtherControl),
        1 => Just(View::OtherName),
    ]
}

/// Choices for the policy of one host; masks choose from the lists above.
#[derive(Clone, Debug)]
struct Choices {
    views: Vec<View>,
    own: View,
    members: Vec<u8>,
    principals: u8,
    /// For each service: offered, at which port, blocks, hosts.
    services: Vec<(bool, bool, u8, u8)>,
    /// For each service of each host: named, at which port, blocks.
    entries: Vec<(bool, bool, u8)>,
    purpose: bool,
    disabled: u8,
    keys: Option<(u8, u8)>,
    /// Whose lists have an authority that is trusted with `ops` (or for ann with her name): for
    /// nothing in particular, and for banking.
    authorities: (u8, u8),
    certified: bool,
}

fn choices() -> impl Strategy<Value = Choices> {
    let often = || prop::bool::weighted(0.8);
    let seldom = || prop::bool::weighted(0.15);
    let disabled = prop_oneof![3 => Just(0_u8), 1 => any::<u8>()];
    (
        vec(view(), HOSTS.len()),
        prop_oneof![4 => Just(View::Right), 1 => Just(View::OnlyIpv4), 1 => Just(View::OtherControl)],
        (vec(any::<u8>(), 3), any::<u8>()),
        vec((often(), seldom(), 1..16_u8, any::<u8>()), SERVICES.len()),
        vec((often(), seldom(), 1..16_u8), SERVICES.len() * HOSTS.len()),
        (any::<bool>(), seldom(), (any::<u8>(), any::<u8>())),
        disabled,
        prop::option::of((any::<u8>(), any::<u8>())),
    )
        .prop_map(
            |(
                views,
                own,
                (members, principals),
                services,
                entries,
                (purpose, certified, authorities),
                disabled,
                keys,
            )| Choices {
                views,
                own,
                members,
                principals,
                services,
                entries,
                purpose,
                disabled,
                keys,
                authorities,
                certified,
            },
        )
}

fn chosen<'a>(mask: u8, from: &[&'a str]) -> Vec<&'a str> {
    let bits = from.iter().enumerate();
    bits.filter(|(bit, _)| mask >> bit & 1 == 1)
        .map(|(_, name)| *name)
        .collect()
}

fn host_text(viewer: usize, number: usize, view: View) -> (String, String) {
    let name = match view {
        View::OtherName => format!("{}-else", HOSTS[number]),
        _ => HOSTS[number].to_owned(),
    };
    let mut key = [u8::try_from(number).expect("few hosts") + 1; 32];
    let net = if matches!(view, View::OtherAddress) {
        88
    } else {
        77
    };
    if matches!(view, View::OtherKey) {
        key[31] = u8::try_from(100 + viewer).expect("few hosts");
    }
    let (ipv4, ipv6) = (
        format!("10.{net}.0.{number}"),
        format!("fd{net}::{number}:1"),
    );
    let addresses = match view {
        View::OnlyIpv4 => ipv4,
        View::OnlyIpv6 => ipv6,
        _ => format!("{ipv4}, {ipv6}"),
    };
    let control = if matches!(view, View::OtherControl) {
        "control 4000;"
    } else {
        ""
    };
    let key = HostPublicKey::from_bytes(key).to_openssh();
    let text = format!("host {name} {{ address {addresses}; key \"{key}\"; {control} }}\n");
    (name, text)
}

fn policy_text(viewer: usize, choices: &Choices) -> String {
    let mut text = String::new();
    let mut known: Vec<Option<String>> = Vec::new();
    for (number, view) in choices.views.iter().enumerate() {
        let view = if number == viewer { choices.own } else { *view };
        if matches!(view, View::Unknown) {
            known.push(None);
            continue;
        }
        let (name, block) = host_text(viewer, number, view);
        known.push(Some(name));
        text += &block;
    }
    for (number, members) in choices.members.iter().enumerate() {
        let members = chosen(*members, &USERS).join(", ");
        // Those of the last set come by a group of the system.
        let member = match number {
            2 => format!("group {};", group(choices.members[2])),
            // Of these every second one's time is over.
            1 => chosen(choices.members[1], &USERS)
                .iter()
                .enumerate()
                .map(|(number, user)| format!("guest {user} until {}; ", TIMES[number % 2]))
                .collect(),
            _ if members.is_empty() => String::new(),
            _ => format!("member {members};"),
        };
        text += &format!("users u{number} {{ {member} }}\n");
    }
    let principals = chosen(choices.principals, &PRINCIPALS).join(", ");
    let principals = match principals.is_empty() {
        true => String::new(),
        false => format!("principal {principals};"),
    };
    text +=
        &format!("users certified {{ {principals} }}\nusers accounts {{ member {ACCOUNT}; }}\n");
    let blocks = |mask, last| chosen(mask, &["u0", "u1", "u2", last]).join(", ");
    let names: Vec<&str> = known.iter().flatten().map(String::as_str).collect();
    for (number, (offered, other_port, users, hosts)) in choices.services.iter().enumerate() {
        if !offered {
            continue;
        }
        let hosts = chosen(*hosts, &names);
        let hosts = if hosts.is_empty() {
            "any".to_owned()
        } else {
            hosts.join(", ")
        };
        let port = PORTS[usize::from(*other_port)] + u16::try_from(number).expect("few services");
        let keys = if choices.purpose && number == 0 {
            "keys banking;"
        } else {
            ""
        };
        let served_by = match number {
            2 => format!("account {ACCOUNT}"),
            _ => "program \"/x\"".to_owned(),
        };
        text += &format!(
            "service {} {{ {served_by}; listen {port}; style user; users {}; hosts {hosts}; \
             {keys} }}\n",
            SERVICES[number],
            blocks(*users, "certified")
        );
    }
    for (index, (named, other_port, users)) in choices.entries.iter().enumerate() {
        let (host, number) = (index / SERVICES.len(), index % SERVICES.len());
        let Some(name) = known[host].as_ref().filter(|_| *named) else {
            continue;
        };
        let port = PORTS[usize::from(*other_port)] + u16::try_from(number).expect("few services");
        text += &format!(
            "client c{index} {{ users {}; service {} at {name} port {port}; }}\n",
            blocks(*users, "accounts"),
            SERVICES[number],
        );
    }
    text
}

fn group(mask: u8) -> String {
    format!("g{mask}")
}

/// The group of a host's policy, as the system has it.
fn groups(choices: &Choices) -> Groups {
    let mask = choices.members[2];
    let accounts = chosen(mask, &USERS).into_iter().chain(["root"]);
    let accounts = accounts.map(str::to_owned).collect();
    [(group(mask).parse().expect("a group's name"), Ok(accounts))].into()
}

fn users_of(mask: u8) -> BTreeSet<UserName> {
    let names = chosen(mask, &USERS).into_iter();
    names
        .map(|name| name.parse().expect("a user name"))
        .collect()
}

fn source(host: usize, choices: &Choices) -> Source {
    Source {
        name: HOSTS[host].to_owned(),
        text: policy_text(host, choices),
    }
}

fn host_policy(host: usize, choices: &Choices) -> HostPolicy {
    let policy = parse_with_groups(&[source(host, choices)], &groups(choices));
    let policy = policy.expect("a correct policy");
    let banking: Name = "banking".parse().expect("a name");
    // A list with an authority is one with a key.
    let lines = choices.authorities;
    let keys = choices.keys.map(|(plain, purpose)| {
        let plain = (None, users_of(plain | lines.0));
        [plain, (Some(banking.clone()), users_of(purpose | lines.1))].into()
    });
    let trusted = |lines: u8| {
        let ann = (PRINCIPALS[2].to_owned(), users_of(lines & 1));
        [(PRINCIPALS[0].to_owned(), users_of(lines & !1)), ann].into()
    };
    let plain = (None, trusted(lines.0));
    let authorities = [plain, (Some(banking.clone()), trusted(lines.1))].into();
    HostPolicy {
        name: HOSTS[host].parse().expect("a host name"),
        policy,
        former_guests: Default::default(),
        users: UserState {
            disabled: users_of(choices.disabled),
            keys,
            authorities,
            certified: choices.certified,
        },
    }
}

/// What a connection is, all of it said.
struct Connection<'c> {
    user: &'c UserName,
    service: &'c ServiceName,
    port: u16,
}

/// As the signer: for the client, with its block for the server.
fn client_permits(client: &HostPolicy, server: &Host, asked: &Connection<'_>) -> bool {
    let entry = client
        .policy
        .client_permits(asked.user, &server.name, asked.service, NOW);
    entry.is_ok_and(|entry| entry.port == asked.port) && !client.users.disabled.contains(asked.user)
}

/// Whether a server's daemons admit somebody, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admits {
    Nobody,
    Holder,
    User,
}

/// As verifier and keeper: for the server, with its block for the client, whatever the user's key or
/// certificate; then for each that a certificate can name.
fn server_permits(server: &HostPolicy, client: &Host, asked: &Connection<'_>) -> Admits {
    let with = |principals: &[&str]| server_permits_with(server, client, asked, principals);
    match with(&[]) {
        true => Admits::User,
        false if PRINCIPALS.iter().any(|name| with(&[name])) => Admits::Holder,
        false => Admits::Nobody,
    }
}

fn server_permits_with(
    server: &HostPolicy,
    client: &Host,
    asked: &Connection<'_>,
    principals: &[&str],
) -> bool {
    let purpose = server.policy.services.get(asked.service);
    let purpose = purpose.and_then(|service| service.keys.clone());
    let everybodys = server.users.keys.is_none() || server.users.certified && purpose.is_none();
    let lines = server.users.authorities.get(&purpose);
    let is_trusted = |name: &&&str| {
        let users = lines.and_then(|lines| lines.get(**name));
        everybodys || users.is_some_and(|users| users.contains(asked.user))
    };
    let trusted: Vec<TrustedPrincipal<'_>> = principals
        .iter()
        .filter(is_trusted)
        .map(|&name| TrustedPrincipal {
            name,
            until: u64::MAX,
        })
        .collect();
    let service =
        server
            .policy
            .service_permits(asked.service, asked.user, &trusted, &client.name, NOW);
    let Ok((service, _)) = service else {
        return false;
    };
    let certified = server.users.certified && service.keys.is_none();
    let has_key = certified
        || server.users.keys.as_ref().is_none_or(|keys| {
            keys.get(&service.keys)
                .is_some_and(|users| users.contains(asked.user))
        });
    service.listen == asked.port && has_key && !server.users.disabled.contains(asked.user)
}

/// As it is now.
fn now(host: &HostPolicy) -> HostPolicy {
    HostPolicy {
        policy: host.policy.at(NOW),
        former_guests: host.policy.former_guests(NOW),
        ..host.clone()
    }
}

fn own(host: &HostPolicy) -> &Host {
    &host.policy.hosts[&host.name]
}

/// What the daemons of all hosts together would do, or of those whose policies there are.
fn expected(hosts: &[HostPolicy], client: &str, server: &str, asked: &Connection<'_>) -> Verdict {
    let find = |name: &str| hosts.iter().find(|host| host.name.as_ref() == name);
    let named = |policy: &Policy, name: &str| {
        let name: HostName = name.parse().expect("a host name");
        policy.hosts.get(&name).cloned()
    };
    let answer = |permitted, verdict| if permitted { verdict } else { Verdict::Refused };
    match (find(client), find(server)) {
        (Some(client), Some(server)) => {
            let of_server = client.policy.host_by_key(&own(server).key);
            let of_client = server.policy.host_by_key(&own(client).key);
            let (Some(of_server), Some(of_client)) = (of_server, of_client) else {
                return Verdict::Refused;
            };
            let taken = |from: &&IpAddr| of_client.addresses.contains(from);
            let from: Vec<_> = own(client).addresses.iter().filter(taken).collect();
            let used = |to: &&IpAddr| of_server.addresses.contains(to);
            let mut to = own(server).addresses.iter().filter(used);
            let permitted = client_permits(client, of_server, asked)
                && of_server.control == own(server).control
                && to.any(|to| from.iter().any(|from| from.is_ipv4() == to.is_ipv4()));
            match server_permits(server, of_client, asked) {
                Admits::User => answer(permitted, Verdict::Permitted),
                Admits::Holder => answer(permitted, Verdict::WithCertificate),
                Admits::Nobody => Verdict::Refused,
            }
        }
        (Some(client), None) => {
            let block = named(&client.policy, server);
            let permitted = block.is_some_and(|block| client_permits(client, &block, asked));
            answer(permitted, Verdict::NotRefusedHere)
        }
        (None, Some(server)) => {
            let block = named(&server.policy, client);
            match block.map(|block| server_permits(server, &block, asked)) {
                Some(Admits::User) => Verdict::NotRefusedHere,
                Some(Admits::Holder) => Verdict::WithCertificate,
                Some(Admits::Nobody) | None => Verdict::Refused,
            }
        }
        (None, None) => unreachable!("three of four hosts are given"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_analyser_permits_what_the_daemons_permit_and_nothing_else(
        choices in vec(choices(), GIVEN),
    ) {
        let hosts: Vec<HostPolicy> =
            choices.iter().enumerate().map(|(host, choices)| host_policy(host, choices)).collect();
        let network = Network::new(hosts.iter().map(now)).expect("three hosts");
        let mut universe = Universe::new(&[&network]);
        let rights = universe.rights(&network);
        let names = USERS.iter().chain(&["stranger", "root", ACCOUNT]);
        let users: Vec<UserName> = names.map(|name| name.parse().expect("a user name")).collect();
        let mut permitted = 0;
        for (client, server) in NAMES.iter().flat_map(|c| NAMES.map(|s| (*c, s))) {
            if client.starts_with('d') && server.starts_with('d') {
                continue; // Of neither is a policy known.
            }
            for (number, service) in SERVICES.iter().enumerate() {
                let service: ServiceName = service.parse().expect("a service name");
                for user in &users {
                    let ports = PORTS.map(|port| port + u16::try_from(number).expect("few"));
                    let question = |port| Question {
                        user: user.clone(),
                        client: client.parse().expect("a host name"),
                        service: service.clone(),
                        server: server.parse().expect("a host name"),
                        port,
                    };
                    let answers = ports.map(|port| {
                        let asked = Connection { user, service: &service, port };
                        let expected = expected(&hosts, client, server, &asked);
                        let decision = network.decide(&question(Some(port))).expect("one is known");
                        (port, expected, decision)
                    });
                    for (port, expected, decision) in &answers {
                        prop_assert_eq!(decision.verdict, *expected, "{:?}", decision);
                        let refused = *expected == Verdict::Refused;
                        prop_assert_eq!(decision.objections.is_empty(), !refused);
                        let of_rights = rights.iter().find(|right| {
                            (right.client.as_ref(), right.server.as_ref()) == (client, server)
                                && (right.service, right.port) == (&service, *port)
                        });
                        let principals = of_rights.map(|right| right.principals_for(&universe, user));
                        let principals = principals.unwrap_or_default();
                        let by_name =
                            of_rights.filter(|right| universe.contains(right.users, user));
                        let of_rights = match by_name.map(|right| right.known) {
                            None if principals.is_empty() => Verdict::Refused,
                            None => Verdict::WithCertificate,
                            Some(Known::Both) => Verdict::Permitted,
                            Some(_) => Verdict::NotRefusedHere,
                        };
                        if !refused {
                            prop_assert_eq!(
                                principals,
                                decision.principals.iter().collect::<Vec<_>>()
                            );
                        }
                        prop_assert_eq!(of_rights, *expected, "rights: {:?}", decision);
                        let by_name = by_name.is_some();
                        permitted += usize::from(by_name);
                    }
                    // Without a port: at whichever it is.
                    let any = network.decide(&question(None)).expect("one is known");
                    let best = answers.iter().map(|(_, expected, _)| *expected);
                    let best = best.min_by_key(|verdict| *verdict as u8);
                    prop_assert_eq!(Some(any.verdict), best, "{:?}", any);
                }
            }
        }
        let of_sets: usize = rights.iter().map(|right| universe.users(right.users).len()).sum();
        prop_assert_eq!(permitted, of_sets);
    }

    #[test]
    fn every_line_that_is_told_stands_in_the_policy(choices in vec(choices(), GIVEN)) {
        let hosts: Vec<HostPolicy> =
            choices.iter().enumerate().map(|(host, choices)| host_policy(host, choices)).collect();
        let network = Network::new(hosts.iter().map(now)).expect("three hosts");
        let sources: Vec<[Source; 1]> =
            choices.iter().enumerate().map(|(host, choices)| [source(host, choices)]).collect();
        let places: Vec<_> = sources
            .iter()
            .zip(&choices)
            .map(|(source, choices)| parse_with_places(source, &groups(choices)).expect("a correct policy").1)
            .collect();
        // What a policy may leave at its default.
        let optional = ["programs", "protocol", "key", "keys", "files", "control", "account", "session",
            "reauthenticate", "protection", "connect"];
        for (client, server) in HOSTS.iter().flat_map(|c| HOSTS.map(|s| (*c, s))) {
            for user in USERS {
                let question = Question {
                    user: user.parse().expect("a user name"),
                    client: client.parse().expect("a host name"),
                    service: "s".parse().expect("a service name"),
                    server: server.parse().expect("a host name"),
                    port: None,
                };
                let Ok(decision) = network.decide(&question) else { continue };
                let objections = decision.objections.iter().flat_map(|objection| {
                    objection.clauses.iter().map(|clause| (&objection.host, clause))
                });
                let grounds = decision.grounds.iter().map(|ground| (&ground.host, &ground.clause));
                for (host, clause) in objections.chain(grounds) {
                    let number = HOSTS.iter().position(|name| *name == host.as_ref());
                    let places = &places[number.expect("a host that is given")];
                    let block = Clause::block(clause.block, &clause.name);
                    prop_assert!(places.place(&block).is_some(), "{block}");
                    let is_there = places.place(clause).is_some();
                    prop_assert!(is_there || optional.contains(&clause.keyword.as_str()), "{clause}");
                }
                // A user whom both sides permit is found in a `member`, `group` or `guest` statement of each.
                if decision.verdict == Verdict::Permitted {
                    let members = decision.grounds.iter().filter(|ground| {
                        let clause = &ground.clause;
                        clause.keyword == "member" && clause.value == user
                            || clause.keyword == "group"
                            || clause.keyword == "guest"
                                && clause.value == format!("{user} until {}", TIMES[1])
                    });
                    let of: BTreeSet<_> = members.map(|ground| ground.host.as_ref()).collect();
                    prop_assert_eq!(of, [client, server].into());
                }
            }
        }
    }
}
