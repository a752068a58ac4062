//! Tables against a walk over the text, statement by statement; no application's traffic depends on
//! another's block.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use usher_language::AddressRange;
use usher_protection::{
    Application, MAXIMUM_ADDRESSES, MAXIMUM_APPLICATIONS, MAXIMUM_ITEMS, MAXIMUM_NAMES,
    MAXIMUM_NETWORKS, MAXIMUM_PROGRAMS, Names, NetworkType, Peers, ProtectionMistake, Tables,
    Treatment, Verdict, compile,
};

use crate::{Hosts, application, ip, policy, read, read_with, samples, text};

fn tables(policy: &[Application], names: &Names) -> Tables {
    compile(policy, names, u16::MAX).expect("a policy that the tables hold")
}

/// The rules of the language, one after the other as docs/policy.md states them.
fn walk(block: &Application, names: &Names, peer: IpAddr, local: u16, remote: u16) -> Verdict {
    let peer = peer.to_canonical();
    if peer.is_loopback() {
        return Verdict::Bypass;
    }
    let no_v6 = !block
        .networks
        .iter()
        .any(|network| matches!(network.peers, Peers::Range(range) if range.first().is_ipv6()));
    for network in &block.networks {
        let has_peer = match &network.peers {
            Peers::Range(range) => {
                let is_rest = range.to_string() == "0.0.0.0/0";
                range.contains(peer) || (is_rest && no_v6 && peer.is_ipv6())
            }
            Peers::Name(name) => match names.get(name) {
                Some(answer) => answer.addresses.contains(&peer),
                // The peer may be the machine of this name.
                None if network.network_type != NetworkType::Trusted => return Verdict::Discard,
                None => false,
            },
        };
        if !has_peer {
            continue;
        }
        let protection = match &network.network_type {
            NetworkType::Trusted => return Verdict::Bypass,
            NetworkType::Untrusted => return Verdict::Discard,
            NetworkType::Protected(name) => &block.protections[name],
        };
        for item in &protection.items {
            let local_fits = item.local.is_none_or(|port| port.get() == local);
            let remote_fits = item.remote.is_none_or(|port| port.get() == remote);
            if local_fits && remote_fits {
                return Verdict::Protect(item.class(), item.level);
            }
        }
        return Verdict::Discard;
    }
    Verdict::Discard
}

/// Answers for some of the names that policies have.
fn names() -> impl Strategy<Value = Names> {
    let addresses = prop::sample::select(vec![
        ip("0.0.0.2"),
        ip("255.255.255.254"),
        ip("::3"),
        ip("::ffff:0.0.0.4"),
    ]);
    let answers = vec(vec(addresses, 0..3), 0..3);
    answers.prop_map(|answers| {
        let mut names = Names::default();
        for (name, addresses) in ["www.abc.com", "www.example.org"].into_iter().zip(answers) {
            names.answer(name.parse().expect("a name"), addresses, Duration::ZERO);
        }
        names
    })
}

/// Any packet; most are near the ends of ranges.
fn packet() -> impl Strategy<Value = (IpAddr, u16, u16)> {
    let any_peer = prop_oneof![
        any::<[u8; 4]>().prop_map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
        any::<u128>().prop_map(|number| IpAddr::V6(Ipv6Addr::from_bits(number))),
    ];
    (any_peer, 1..=u16::MAX, 1..=u16::MAX)
}

fn verdicts(tables: &Tables, application: usize) -> Vec<Verdict> {
    let samples = samples().into_iter();
    let treat = |(peer, local, remote)| tables.treat(application, peer, local, remote);
    samples.map(treat).collect()
}

proptest! {
    // Threat model: P48
    #[test]
    fn tables_say_of_every_packet_what_the_text_says(
        policy in policy(), names in names(), packets in vec(packet(), 20),
    ) {
        let tables = tables(&policy, &names);
        for (number, block) in policy.iter().enumerate() {
            for &(peer, local, remote) in samples().iter().chain(&packets) {
                let said = walk(block, &names, peer, local, remote);
                let treated = tables.treat(number, peer, local, remote);
                prop_assert_eq!(treated, said, "{} {} {}\n{}", peer, local, remote, text(&policy));
            }
        }
    }

    #[test]
    fn tables_have_what_they_promise(policy in policy(), names in names()) {
        let tables = tables(&policy, &names);
        prop_assert!(tables.classes.is_sorted_by(|one, other| one < other));
        for (number, rules) in tables.applications.iter().enumerate() {
            prop_assert!(rules.networks.is_sorted_by(|one, other| one.0 < other.0));
            for all in ["0.0.0.0/0", "::/0"] {
                let all = all.parse().expect("a network");
                prop_assert!(rules.networks.iter().any(|(network, _)| *network == all));
            }
            for (network, treatment) in &rules.networks {
                prop_assert_eq!(network.trunc(), *network);
                if let Treatment::Items(list) = treatment {
                    prop_assert!(!tables.item_lists[*list].is_empty());
                }
            }
            let one = verdicts(&tables, number)
                .into_iter()
                .zip(samples())
                .filter(|(_, (peer, ..))| !peer.is_loopback())
                .all(|(verdict, _)| verdict == tables.treat(number, ip("192.0.2.1"), 7, 7));
            prop_assert!(one || rules.signature != 0, "{}", text(&policy));
            for other in &tables.applications {
                let same = rules.networks == other.networks;
                prop_assert_eq!(same, rules.signature == other.signature && same);
                prop_assert!(rules.signature != other.signature || rules.signature == 0 || same);
            }
        }
    }

    // Threat model: P48
    #[test]
    fn another_block_never_changes_what_a_block_says(
        policy in policy(), other in application(), at in 0..4_usize, names in names(),
    ) {
        let before = tables(&policy, &names);
        // One more block, another in the place of one, and one block less.
        let at = at % policy.len();
        let mut more = policy.clone();
        more.insert(at, other.clone());
        let mut changed = policy.clone();
        changed[at] = other;
        let mut less = policy.clone();
        less.remove(at);
        for number in (0..policy.len()).filter(|number| *number != at) {
            let said = verdicts(&before, number);
            prop_assert_eq!(&said, &verdicts(&tables(&changed, &names), number));
            let behind = usize::from(number > at);
            prop_assert_eq!(&said, &verdicts(&tables(&more, &names), number + behind));
            prop_assert_eq!(&said, &verdicts(&tables(&less, &names), number - behind));
        }
    }

    // Threat model: P48
    #[test]
    fn a_mistake_in_a_block_is_at_that_block(policy in policy(), at in 0..4_usize) {
        let at = at % policy.len();
        let mut blocks: Vec<String> = policy.iter().map(Application::to_text).collect();
        blocks[at] = blocks[at].replacen("network ", "network 10.0.0.9 - 10.0.0.1 untrusted; network ", 1);
        let lines: Vec<usize> = blocks.iter().map(|block| block.lines().count()).collect();
        let mistakes = read_with(&blocks.concat(), &Hosts::new()).expect_err("a range backwards");
        prop_assert_eq!(mistakes.len(), 1);
        let first: usize = lines[..at].iter().sum();
        prop_assert!((first + 1..=first + lines[at]).contains(&mistakes[0].place.line));
    }
}

#[test]
fn equal_rules_share_a_signature_and_one_treatment_has_none() {
    let items = "protection P { localport=any remoteport=any encryption mandatory; }";
    let policy = read(&format!(
        "application a {{ network 10.0.0.0/8 trusted; network 0.0.0.0/0 protected P; {items} }}
         application b {{ network 10.0.0.0/9 trusted; network 10.128.0.0/9 trusted;
                          network 10.0.0.0/8 trusted; network 0.0.0.0/0 protected P; {items} }}
         application c {{ network 0.0.0.0/0 protected P; {items} }}
         application d {{ network 0.0.0.0/0 trusted; }}
         application e {{ network 10.0.0.0/8 trusted; network 0.0.0.0/0 protected Q;
                          protection Q {{ localport=22 remoteport=any encryption mandatory;
                                          localport=any remoteport=any encryption mandatory; }} }}"
    ));
    let tables = tables(&policy, &Names::default());
    let signatures: Vec<u16> = tables
        .applications
        .iter()
        .map(|rules| rules.signature)
        .collect();
    // `b` and `e` say the same as `a` in more words.
    assert_eq!(signatures, [1, 1, 0, 0, 1]);
    assert_eq!(tables.item_lists.len(), 1, "{:?}", tables.item_lists);
}

#[test]
fn too_many_signatures_are_refused_by_name() {
    let block = |number: u8| {
        format!(
            "application a{number} {{ network 10.0.{number}.0/24 trusted; network 0.0.0.0/0 untrusted; }}\n"
        )
    };
    let policy = read(&(0..4).map(block).collect::<String>());
    assert!(compile(&policy, &Names::default(), 4).is_ok());
    let refused = compile(&policy, &Names::default(), 3).expect_err("one signature too many");
    assert_eq!((refused.place.line, refused.place.column), (4, 1));
    let expected = ProtectionMistake::TooManySignatures {
        application: "a3".to_owned(),
        most: 3,
    };
    assert_eq!(refused.is(), Some(&expected));
    assert!(refused.remedy().contains("wider mask"));
}

#[test]
fn ranges_are_the_fewest_prefixes() {
    let policy = read(
        "application a { network 10.0.0.1 - 10.0.0.6 untrusted; network 2001:db8:: - 2001:db8::2 untrusted; \
         network 0.0.0.0/0 trusted; network ::/0 trusted; }",
    );
    let networks = &tables(&policy, &Names::default()).applications[0].networks;
    let shown: Vec<String> = networks
        .iter()
        .map(|(network, _)| network.to_string())
        .collect();
    let expected = [
        "0.0.0.0/0",
        "10.0.0.1/32",
        "10.0.0.2/31",
        "10.0.0.4/31",
        "10.0.0.6/32",
        "::/0",
        "2001:db8::/127",
        "2001:db8::2/128",
    ];
    assert_eq!(shown, expected);
}

// Threat model: P56
#[test]
fn an_unanswered_name_lets_no_weaker_network_decide() {
    let items = "protection P { localport=any remoteport=any encryption mandatory; }";
    let block = |name: &str| {
        read(&format!(
            "application a {{ network 10.0.0.0/8 trusted; network www.abc.com {name}; \
             network 0.0.0.0/0 trusted; {items} }}"
        ))
    };
    let (own, other) = (ip("198.51.100.7"), ip("198.51.100.8"));
    let mut known = Names::default();
    known.answer(
        "www.abc.com".parse().expect("a name"),
        [own],
        Duration::ZERO,
    );
    let verdict =
        |policy: &[Application], names: &Names, peer| tables(policy, names).treat(0, peer, 1, 2);
    for (of_name, answered) in [
        ("untrusted", Verdict::Discard),
        ("protected P", verdict(&block("protected P"), &known, own)),
    ] {
        let policy = block(of_name);
        let unknown = Names::default();
        assert_eq!(verdict(&policy, &unknown, own), Verdict::Discard);
        assert_eq!(verdict(&policy, &unknown, other), Verdict::Discard);
        assert_eq!(verdict(&policy, &unknown, ip("10.0.0.1")), Verdict::Bypass);
        assert_ne!(verdict(&policy, &known, own), Verdict::Bypass);
        assert_eq!(verdict(&policy, &known, own), answered);
        assert_eq!(verdict(&policy, &known, other), Verdict::Bypass);
    }
    // A trusted name loses no protection: the network that decides in its place protects as much.
    let policy = block("trusted");
    assert_eq!(verdict(&policy, &Names::default(), other), Verdict::Bypass);
}

#[test]
fn a_host_of_the_policy_stands_for_its_addresses() {
    let hosts = [(
        "mailhost".parse().expect("a name"),
        vec![ip("10.77.0.2"), ip("fd77::2")],
    )];
    let text = "application a { network mailhost trusted; network 0.0.0.0/0 untrusted; }";
    let policy = read_with(text, &hosts.into()).expect("a policy");
    let tables = tables(&policy, &Names::default());
    for (peer, expected) in [
        ("10.77.0.2", Verdict::Bypass),
        ("fd77::2", Verdict::Bypass),
        ("10.77.0.3", Verdict::Discard),
        ("fd77::3", Verdict::Discard),
    ] {
        assert_eq!(tables.treat(0, ip(peer), 1, 2), expected, "{peer}");
    }
}

#[test]
fn the_order_of_an_answer_changes_nothing() {
    let name = || "www.abc.com".parse().expect("a name");
    let many = |number: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
    let (mut one, mut other) = (Names::default(), Names::default());
    one.answer(name(), (0..=255).map(many), Duration::ZERO);
    other.answer(name(), (0..=255).rev().map(many), Duration::ZERO);
    assert_eq!(one, other);
    let answer = one.get(&name()).expect("an answer");
    assert_eq!(answer.addresses.len(), MAXIMUM_ADDRESSES);
    let range = AddressRange::from(answer.addresses[0]);
    assert_eq!(range.to_string(), "10.0.0.0");
}

/// The mistakes of a text, each without its place.
fn mistakes(text: &str) -> Vec<String> {
    let mistakes = read_with(text, &Hosts::new()).expect_err("a text with mistakes");
    mistakes
        .iter()
        .map(|mistake| mistake.kind.to_string())
        .collect()
}

#[test]
fn what_the_tables_cannot_hold_is_refused() {
    let block = |number: usize| format!("application a{number} {{ network 0.0.0.0/0 trusted; }}\n");
    let blocks = |number: usize| (0..number).map(block).collect::<String>();
    assert_eq!(
        read(&blocks(MAXIMUM_APPLICATIONS)).len(),
        MAXIMUM_APPLICATIONS
    );
    let found = mistakes(&blocks(MAXIMUM_APPLICATIONS + 1));
    assert_eq!(
        found,
        ["the policy has more than 4096 `application` blocks"]
    );

    let items = |number: usize| {
        let item = |port: usize| format!("localport={port} remoteport=any encryption optional;");
        let items: String = (1..=number).map(item).collect();
        format!("application a {{ network 0.0.0.0/0 protected P; protection P {{ {items} }} }}")
    };
    assert_eq!(read(&items(MAXIMUM_ITEMS))[0].protections.len(), 1);
    let found = mistakes(&items(MAXIMUM_ITEMS + 1));
    assert_eq!(found, ["`protection P` has 65 items, more than 64"]);

    let names = |number: usize| {
        let network = |name: usize| format!("network host{name}.example.org trusted;");
        let networks: String = (0..number).map(network).collect();
        format!("application a {{ {networks} network host0.example.org untrusted; }}")
    };
    assert_eq!(
        read(&names(MAXIMUM_NAMES))[0].networks.len(),
        MAXIMUM_NAMES + 1
    );
    let found = mistakes(&names(MAXIMUM_NAMES + 1));
    assert_eq!(
        found,
        ["the policy has more than 256 names to be looked up"]
    );

    let programs = |number: usize| {
        let names: Vec<String> = (0..number).map(|name| format!("program{name}")).collect();
        format!(
            "application {} {{ network 0.0.0.0/0 trusted; }}",
            names.join(", ")
        )
    };
    assert_eq!(
        read(&programs(MAXIMUM_PROGRAMS))[0].programs.len(),
        MAXIMUM_PROGRAMS
    );
    let found = mistakes(&programs(MAXIMUM_PROGRAMS + 1));
    assert_eq!(
        found,
        ["the policy has more than 8192 programs in `application` blocks"]
    );
}

#[test]
fn more_networks_than_the_tables_hold_are_refused() {
    // All but the first and the last address of a network: more than 200 prefixes each.
    let network = |number: u32| {
        format!("network {number:x}::1 - {number:x}:ffff:ffff:ffff:ffff:ffff:ffff:fffe untrusted;")
    };
    let block = |number: u32| {
        let networks: String = (1..=30)
            .map(|network_number| network(number * 32 + network_number))
            .collect();
        format!("application a{number} {{ {networks} network ::/0 trusted; }}\n")
    };
    let policy = |blocks: u32| read(&(0..blocks).map(block).collect::<String>());
    let entries = |policy: &[Application]| {
        let tables = compile(policy, &Names::default(), u16::MAX);
        tables.map(|tables| {
            tables
                .applications
                .iter()
                .map(|rules| rules.networks.len())
                .sum()
        })
    };
    let one: usize = entries(&policy(1)).expect("tables");
    assert!(one > 1000, "{one}");
    let fitting = MAXIMUM_NETWORKS / one;
    let fitting = u32::try_from(fitting).expect("a number of blocks");
    assert!(entries(&policy(fitting / 2)).is_ok());
    let refused = entries(&policy(fitting * 2)).expect_err("too many entries");
    assert!(matches!(
        refused.is(),
        Some(ProtectionMistake::TooManyNetworks { .. })
    ));
}
