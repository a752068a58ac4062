//! Policies built from the model's side, not from text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use p256::elliptic_curve::sec1::ToEncodedPoint;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use usher_base::{HostName, ServiceName, UserName};
use usher_policy::{
    AddressRange, Backend, Client, ClientService, DEFAULT_CONNECTIONS, DEFAULT_IDLE, DEFAULT_UMASK,
    Destination, Destinations, Expectation, FileAccess, FileRule, Group, GroupName, Groups, Host,
    Identification, MAXIMUM_CPU, MAXIMUM_KEEPALIVE, MINIMUM_KEEPALIVE, MINIMUM_REAUTHENTICATION,
    Members, Moment, Name, Origin, Peers, Policy, PortRange, Principal, ProcessLimits, Program,
    Programs, Protocol, RequiredProtection, ServedBy, Service, Style, Users,
    protection::{IkePublicKey, Kind},
    service_id,
};
use usher_proto::HostPublicKey;

use super::modules::mac;

/// The groups of a policy, as the system must have them.
pub fn groups_of(policy: &Policy) -> Groups {
    let groups = policy.users.values().flat_map(|block| &block.groups);
    groups
        .map(|(name, group)| {
            let members = group.members.iter().map(ToString::to_string);
            let accounts = members.chain(group.left_out.iter().cloned()).collect();
            (name.clone(), Ok(accounts))
        })
        .collect()
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
pub struct Choices {
    key: [u8; 32],
    port: u16,
    pub flags: [bool; 3],
    text: String,
    texts: Vec<String>,
    durations: (Duration, Duration),
    pub number: u32,
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

/// The ECDSA keys of a host.
fn ecdsa_keys(number: u8) -> impl Iterator<Item = IkePublicKey> {
    (1..=2).map(move |which| {
        let mut secret = [which; 32];
        secret[0] = number;
        let key = p256::SecretKey::from_slice(&secret).expect("below the order of the curve");
        let point = key.public_key().to_encoded_point(false);
        IkePublicKey::ecdsa_p256(point.as_bytes()).expect("a point of the curve")
    })
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
        keys: [0, 0x40]
            .into_iter()
            .take(1 + usize::from(choices.flags[2]))
            .map(|bits| {
                let mut key = key;
                key[0] ^= bits;
                HostPublicKey::from_bytes(key)
            })
            .collect(),
        ike_keys: [0x80, 0xc0]
            .into_iter()
            .take(usize::from(choices.flags[1]) + usize::from(choices.flags[0]))
            .map(|bits| {
                let mut ike_key = choices.key;
                ike_key[0] = number ^ bits;
                IkePublicKey::ed25519(ike_key)
            })
            .chain(ecdsa_keys(number).take(usize::from(choices.flags[2])))
            .collect(),
        is_held: choices.flags[0] || choices.flags[1],
        unlabelled: (!choices.flags[0])
            .then_some([Kind::Encryption, Kind::Authentication][usize::from(choices.flags[1])]),
        control,
        loopback,
    }
}

fn service(
    name: ServiceName,
    listen: u16,
    choices: &Choices,
    hosts: &BTreeMap<HostName, Host>,
    users: &BTreeMap<Name, Users>,
) -> Service {
    let host_names: Vec<HostName> = hosts.keys().cloned().collect();
    let (user_blocks, members) = pick_users(choices, users);
    let [any_host, by_user, by_account] = choices.flags;
    let by_user = by_user && !by_all(choices);
    // The account's name is longer than any member's.
    let account = format!("service-{}", choices.text.to_ascii_lowercase());
    let account: UserName = account.parse().expect("an account name");
    let served_by = if by_account && !by_all(choices) {
        ServedBy::Account(account)
    } else if by_account {
        let ways = [Identification::ProxyProtocol, Identification::Http];
        ServedBy::Backend(Backend {
            account,
            identification: ways[usize::from(any_host)],
            socket: format!("/run/{}", choices.text),
            header: any_host.then(|| format!("X-{}0", choices.text.replace('_', "-"))),
        })
    } else {
        let environment = choices.texts.iter().enumerate();
        ServedBy::Program(Program {
            path: format!("/usr/{}", choices.text),
            arguments: choices.texts.clone(),
            account: by_all(choices).then_some(account),
            environment: environment
                .map(|(number, value)| (format!("X_{number}"), value.clone()))
                .collect(),
            files: any_host.then(|| {
                let paths = ["~", "/", "~/Maildir"].map(str::to_owned);
                let own = format!("/srv/{}", choices.text);
                let access = [FileAccess::Read, FileAccess::Write][usize::from(by_user)];
                let rule = |path| FileRule { path, access };
                paths.into_iter().chain([own]).map(rule).collect()
            }),
            umask: [DEFAULT_UMASK, 0o007, 0o777][usize::from(by_user) + usize::from(any_host)],
            setuid: !any_host,
            pam_session: by_user,
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
            host_names.into_iter().collect()
        } else {
            pick(&choices.picks, &host_names)
        },
        style: if by_all(choices) {
            Style::Shared
        } else if by_user {
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
        keepalive: choices
            .durations
            .1
            .clamp(MINIMUM_KEEPALIVE, MAXIMUM_KEEPALIVE),
        connections: if by_user || by_all(choices) {
            DEFAULT_CONNECTIONS
        } else {
            choices.number
        },
        processes: choices.number,
        memory: any_host.then(|| u64::from(choices.number) << 20),
        cpu: by_user.then(|| choices.number.min(MAXIMUM_CPU)),
        connect: connect(choices, hosts),
        protection: by_user.then(|| RequiredProtection {
            kind: [Kind::Encryption, Kind::Authentication][usize::from(any_host)],
            origin: Origin::default(),
        }),
    }
}

/// Whether one process serves all users of a service.
fn by_all(choices: &Choices) -> bool {
    choices.number.is_multiple_of(3)
}

/// Hosts, networks and ranges, or nowhere, or everywhere.
fn connect(choices: &Choices, hosts: &BTreeMap<HostName, Host>) -> Option<Destinations> {
    if choices.flags[0] {
        return None;
    }
    let port = choices.port;
    let ports = [
        None,
        Some(PortRange {
            first: port,
            last: port,
        }),
        Some(PortRange {
            first: port,
            last: u16::MAX,
        }),
    ];
    let [a, b, c, d, ..] = choices.key;
    let (low, high) = ([a, b, c, d], [a, b, c, 255]);
    let range = AddressRange::new(Ipv4Addr::from(low).into(), Ipv4Addr::from(high).into());
    let range = range.filter(|range| !range.last().is_unspecified());
    // A host called `none` or like an address would not be read as a name.
    let other =
        |name: &&HostName| name.as_ref() == "none" || name.as_ref().parse::<IpAddr>().is_ok();
    let names: Vec<HostName> = hosts.keys().filter(|name| !other(name)).cloned().collect();
    if names.is_empty() {
        return None;
    }
    let names = choices.picks.iter().map(|index| index.get(&names).clone());
    let peers = names.map(Peers::Name).chain(range.map(Peers::Range));
    let entries = peers.take(usize::from(a) % 4).zip(ports.iter().cycle());
    let entries = entries.map(|(peers, &ports)| Destination {
        addresses: match &peers {
            Peers::Range(range) => vec![*range],
            Peers::Name(name) => {
                let addresses = hosts[name].addresses.iter();
                addresses.map(|&address| address.into()).collect()
            }
        },
        peers,
        ports,
        origin: Origin::default(),
    });
    Some(Destinations {
        entries: entries.collect(),
    })
}

/// Guests who are no members.
fn guests(choices: &Choices) -> BTreeMap<UserName, Moment> {
    let times = [
        ("guest-1", "2026-12-31T18:00Z"),
        ("guest-2", "1970-01-01T00:00:00Z"),
        ("guest-3", "2027-02-28T23:59:59Z"),
    ];
    let times = times.into_iter().zip(choices.flags);
    let chosen = times.filter(|(_, chosen)| *chosen);
    chosen
        .map(|((user, until), _)| {
            let until = until.parse().expect("a time");
            (user.parse().expect("a user name"), until)
        })
        .collect()
}

/// Principals, some of which no user can have as a name.
fn principals(choices: &Choices) -> BTreeSet<Principal> {
    let names = ["ops", "ops@example.org", "r\u{f4}le/\\x=1"].into_iter();
    // No more than every second set, as clients name none of these.
    let chosen = names.take(choices.number as usize % 6 / 2);
    chosen
        .filter(|_| choices.number.is_multiple_of(2))
        .map(|name| name.parse().expect("a principal"))
        .collect()
}

/// A group of most of the members, a further account, and accounts that are left out.
fn group(block: &Name, choices: &Choices) -> (GroupName, Group) {
    let members = names(&choices.members).into_iter().skip(1);
    let further = "further".parse().expect("a user name");
    let name = format!("group-{block}");
    let group = Group {
        members: members.chain([further]).collect(),
        left_out: ["root".to_owned(), "Not One".to_owned()].into(),
    };
    (name.parse().expect("a group's name"), group)
}

/// The sets that clients may name.
fn by_name(users: &BTreeMap<Name, Users>) -> BTreeMap<Name, Users> {
    let mut users = users.clone();
    users.retain(|_, block| block.principals.is_empty());
    users
}

fn pick_users(choices: &Choices, users: &BTreeMap<Name, Users>) -> (BTreeSet<Name>, Arc<Members>) {
    let known: Vec<Name> = users.keys().cloned().collect();
    let blocks = pick(&choices.picks, &known);
    let members = Members::of(blocks.iter().map(|block| &users[block]));
    (blocks, Arc::new(members))
}

/// Any policy. Its blocks name each other, as far as there are any.
pub fn policy() -> impl Strategy<Value = Policy> {
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
            let groups = if choices.flags[2] {
                [group(&name, choices)].into()
            } else {
                BTreeMap::new()
            };
            let users = Users {
                name: name.clone(),
                members,
                groups,
                guests: guests(choices),
                former: BTreeMap::new(),
                principals: principals(choices),
            };
            policy.users.insert(name, users);
        }
        let controls: Vec<u16> = policy.hosts.values().map(|host| host.control).collect();
        let mut ports = (1000..).filter(|port| !controls.contains(port));
        for (name, choices) in service_names.iter().cloned().zip(&choices) {
            let listen = ports.next().expect("a free port");
            let service = service(name.clone(), listen, choices, &policy.hosts, &policy.users);
            policy.services.insert(name, service);
        }
        let by_name = by_name(&policy.users);
        let clients = names::<Name>(&clients).into_iter();
        for (number, name) in clients.enumerate().filter(|_| !by_name.is_empty()) {
            let (user_blocks, users) = pick_users(&choices[number], &by_name);
            let protocol = if choices[number].flags[0] {
                Protocol::Imap
            } else {
                Protocol::Raw
            };
            let programs = match choices[number].flags[1..3] {
                [true, true] => Programs::Listed(Arc::new(
                    ["/usr/bin/curl", "/opt/a \"quoted\" one"]
                        .map(str::to_owned)
                        .into(),
                )),
                [true, false] => Programs::Any,
                _ => Programs::Asking,
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
                    programs: programs.clone(),
                    key: choices[number].flags[1].then(|| "banking".parse().expect("a name")),
                    protection: choices[number].flags[2].then_some(Kind::Authentication),
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
        policy.mac = mac(&choices[0]);
        policy.each_user = each_user(&choices[0]);
        if choices[0].flags[0] {
            policy.marks = usher_policy::protection::MarkMask::new(0x01ff_0000).unwrap();
        }
        policy.expectations = expectations(&policy, &choices);
        policy
    })
}

fn each_user(choices: &Choices) -> ProcessLimits {
    let [processes, memory, ..] = choices.flags;
    let limits = ProcessLimits::default();
    ProcessLimits {
        processes: if processes {
            choices.number
        } else {
            limits.processes
        },
        memory: memory.then(|| u64::from(choices.number) << 20),
        cpu: (processes && memory).then(|| choices.number.min(MAXIMUM_CPU)),
    }
}

/// Expectations of whatever users, hosts and services there are.
fn expectations(policy: &Policy, choices: &[Choices]) -> Vec<Expectation> {
    let users = policy.users.values().flat_map(Users::users);
    let users: Vec<UserName> = users.cloned().collect();
    let hosts: Vec<HostName> = policy.hosts.keys().cloned().collect();
    let services: Vec<ServiceName> = policy.services.keys().cloned().collect();
    if users.is_empty() {
        return Vec::new();
    }
    choices
        .iter()
        .map(|choices| {
            let index = choices.picks[0];
            Expectation {
                permit: choices.flags[0],
                user: index.get(&users).clone(),
                from: choices.flags[1].then(|| index.get(&hosts).clone()),
                service: index.get(&services).clone(),
                at: choices.flags[2].then(|| index.get(&hosts).clone()),
                port: choices.flags[0].then_some(choices.port),
                origin: Origin::default(),
            }
        })
        .collect()
}
