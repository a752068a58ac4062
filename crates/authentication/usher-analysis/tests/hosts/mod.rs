//! Random policies of several hosts, which know each other, or not, or wrongly.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use usher_analysis::{HostPolicy, UserState};
use usher_base::UserName;
use usher_policy::{Groups, Name, Source, parse_with_groups};
use usher_proto::HostPublicKey;

/// The last host is named by the others' policies, and has none here.
pub const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
pub const GIVEN: usize = 3;
/// All names of hosts in questions. A policy may have another name for the last host.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "d-else"];
pub const USERS: [&str; 4] = ["ann", "bob", "cid", "dan"];
/// The principals of certificates. An authority in ann's list is trusted with her name only.
pub const PRINCIPALS: [&str; 3] = ["ops", "dev", "ann"];
/// The account of the last service, which clients permit and no set of its service names.
pub const ACCOUNT: &str = "zoe";
pub const SERVICES: [&str; 3] = ["r", "s", "t"];
pub const PORTS: [u16; 2] = [1000, 2000];

/// The time of the questions, between the two of [`TIMES`].
pub const NOW: u64 = 1_767_225_600;
pub const TIMES: [&str; 2] = ["2026-01-01T00:00Z", "2026-01-01T00:00:01Z"];

/// A host's policy about another.
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
pub struct Choices {
    views: Vec<View>,
    own: View,
    members: Vec<u8>,
    principals: u8,
    /// For each service: offered, at which port, blocks, hosts.
    services: Vec<(bool, bool, u8, u8)>,
    /// For each service what it demands of IPsec: encryption, authentication, or mostly nothing.
    demands: Vec<u8>,
    /// For each service, how clients protect their connections with it.
    reached: Vec<u8>,
    /// For each host, which traffic with it a program has protected.
    protects: Vec<u8>,
    /// For each host, the keys of its IKE daemon: mostly the right one.
    ike: Vec<u8>,
    /// For each service of each host: named, at which port, blocks.
    entries: Vec<(bool, bool, u8)>,
    purpose: bool,
    disabled: u8,
    keys: Option<(u8, u8)>,
    /// The users whose lists have an authority that is trusted with `ops` (or for ann with her
    /// name): without a purpose, and for banking.
    authorities: (u8, u8),
    certified: bool,
}

pub fn choices() -> impl Strategy<Value = Choices> {
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
        (
            disabled,
            vec(0..6_u8, SERVICES.len()),
            vec(0..6_u8, SERVICES.len()),
            vec(any::<u8>(), HOSTS.len()),
            vec(0..20_u8, HOSTS.len()),
        ),
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
                (disabled, demands, reached, protects, ike),
                keys,
            )| Choices {
                views,
                own,
                members,
                principals,
                services,
                demands,
                reached,
                protects,
                ike,
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

/// A key of each host's IKE daemon, for peers without Ed25519.
const ECDSA: [&str; HOSTS.len()] = [
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBKAwlr/JGZRb4wEUSl4zr+AOQtCBRsTKJWC0FSZUrUpFeqjlx19P6UjYLx2U+TXpgSZ4STL4jRDF8eSfv20ArlE=",
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBCabAhs15TvyJacTxF4e9kYfa1c8oXr8qbRRB5XZ8C/Ye+8rneXtKa6TJFCNVBtzXzZgr5ZzR2J5mWier+E3Fb8=",
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFhn1HOK6HyEoewlqxRYv0VPIozENZmggnpSbUi6yYFBChWY7neURgy9AE40D0ebiBhJMJIfq1Eick3VP4ENqg4=",
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBAGIrXJ5aC+IfDwgatBQuYTKEYMAVT3EB2J1JUJGZDndbvqXtkBgrVZDg7ic0KGn05xdQ2u+N9rBNGkpJ5Als5I=",
];

/// The keys that a host has for another's IKE daemon.
fn ike_keys(viewer: usize, number: usize, choice: u8) -> String {
    let key = |number: usize| {
        let number = u8::try_from(number).expect("few hosts");
        HostPublicKey::from_bytes([number; 32]).to_openssh()
    };
    let (right, wrong) = (key(50 + number), key(60 + HOSTS.len() * viewer + number));
    let ecdsa = format!("\"ecdsa-sha2-nistp256 {}\"", ECDSA[number]);
    match choice {
        0 => String::new(),
        1 => format!("ike-key \"{wrong}\";"),
        2 => format!("ike-key \"{right}\", \"{wrong}\";"),
        3 => format!("ike-key {ecdsa};"),
        4..=7 => format!("ike-key {ecdsa}, \"{right}\";"),
        8 => format!("ike-key \"{wrong}\", {ecdsa};"),
        _ => format!("ike-key \"{right}\";"),
    }
}

fn host_text(viewer: usize, number: usize, view: View, ike: u8) -> (String, String) {
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
    let ike = ike_keys(viewer, number, ike);
    let text = format!("host {name} {{ address {addresses}; key \"{key}\"; {ike} {control} }}\n");
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
        let (name, block) = host_text(viewer, number, view, choices.ike[number]);
        known.push(Some(name));
        text += &block;
    }
    for (number, members) in choices.members.iter().enumerate() {
        let members = chosen(*members, &USERS).join(", ");
        // The users of the last set come by a group of the system.
        let member = match number {
            2 => format!("group {};", group(choices.members[2])),
            // Every second user is a guest whose time is over.
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
    let principals = if principals.is_empty() {
        String::new()
    } else {
        format!("principal {principals};")
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
             {keys} {} }}\n",
            SERVICES[number],
            blocks(*users, "certified"),
            protection(choices.demands[number]),
        );
    }
    text += &application_text(choices);
    for (index, (named, other_port, users)) in choices.entries.iter().enumerate() {
        let (host, number) = (index / SERVICES.len(), index % SERVICES.len());
        let Some(name) = known[host].as_ref().filter(|_| *named) else {
            continue;
        };
        let port = PORTS[usize::from(*other_port)] + u16::try_from(number).expect("few services");
        text += &format!(
            "client c{index} {{ users {}; service {} at {name} port {port}; {} }}\n",
            blocks(*users, "accounts"),
            SERVICES[number],
            protection(choices.reached[number]),
        );
    }
    text
}

/// The statement `protection` for a choice; for most choices none.
fn protection(choice: u8) -> &'static str {
    match choice {
        0 => "protection encryption;",
        1 => "protection authentication;",
        _ => "",
    }
}

/// A program whose traffic with other hosts is protected, or not, by family and port.
fn application_text(choices: &Choices) -> String {
    let mut text = "application curl, /usr/bin/mutt {\n".to_owned();
    for (number, choice) in choices.protects.iter().enumerate() {
        let kinds = ["protected E", "protected A", "protected Some", "trusted"];
        let kind = |bits: u8| kinds[usize::from(bits & 3)];
        text += &format!("network 10.77.0.{number} {};\n", kind(*choice));
        text += &format!("network fd77::{number}:1 {};\n", kind(*choice >> 2));
    }
    text + "network 0.0.0.0/0 protected E;\n\
            protection E { localport=any remoteport=any encryption optional; }\n\
            protection A { localport=1000 remoteport=any encryption mandatory;\n\
                           localport=any remoteport=any authentication mandatory; }\n\
            protection Some { localport=any remoteport=1000 encryption mandatory;\n\
                              localport=any remoteport=1001 authentication mandatory; }\n}\n"
}

fn group(mask: u8) -> String {
    format!("g{mask}")
}

/// The accounts of the system's group that a host's policy names.
pub fn groups(choices: &Choices) -> Groups {
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

pub fn source(host: usize, choices: &Choices) -> Source {
    Source {
        name: HOSTS[host].to_owned(),
        text: policy_text(host, choices),
    }
}

pub fn host_policy(host: usize, choices: &Choices) -> HostPolicy {
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
        users: UserState {
            disabled: users_of(choices.disabled),
            keys,
            former_keys: Default::default(),
            authorities,
            certified: choices.certified,
        },
    }
}
