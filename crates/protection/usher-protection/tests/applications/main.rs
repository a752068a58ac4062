//! `application` blocks over random policies, and those that the paper shows.

mod compiled;
mod published;
mod speed;
mod warnings;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use proptest::collection::vec;
use proptest::prelude::*;
use usher_base::HostName;
use usher_language::{AddressRange, Diagnostic, Name, Origin, Reporter, Source};
use usher_protection::{
    Application, Kind, Level, Network, NetworkType, Peers, Profile, ProgramName, Protection,
    ProtectionItem, check_applications, dialect,
};

/// The hosts that a text defines besides.
type Hosts = BTreeMap<HostName, Vec<IpAddr>>;

fn read_with(text: &str, hosts: &Hosts) -> Result<Vec<Application>, Vec<Diagnostic>> {
    let sources = [Source {
        name: "test".to_owned(),
        text: text.to_owned(),
    }];
    let reporter = Reporter::new(&sources);
    let dialect = dialect();
    let tree = usher_language::parse_syntax(&dialect, &sources, &reporter);
    let host = |name: &HostName| hosts.get(name).cloned();
    let applications = tree.map(|tree| check_applications(&tree, host, &reporter));
    let mistakes = reporter.finish();
    match applications {
        Some(applications) if mistakes.is_empty() => Ok(applications),
        _ => Err(mistakes),
    }
}

fn read(text: &str) -> Vec<Application> {
    let read = read_with(text, &Hosts::new());
    read.unwrap_or_else(|mistakes| panic!("{mistakes:?} in {text}"))
}

fn text(applications: &[Application]) -> String {
    let blocks = applications.iter().map(Application::to_text);
    blocks.collect::<Vec<_>>().join("\n")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Few enough that ranges touch and cover each other.
fn address() -> impl Strategy<Value = IpAddr> {
    let low = 0..6_u8;
    let v4 = prop_oneof![low.clone(), (250..=255_u8)].prop_map(|byte| match byte {
        250.. => Ipv4Addr::new(255, 255, 255, byte),
        _ => Ipv4Addr::new(0, 0, 0, byte),
    });
    let v6 = prop_oneof![
        low.prop_map(u128::from),
        (0..3_u128).prop_map(|low| u128::MAX - low)
    ];
    prop_oneof![
        3 => v4.prop_map(IpAddr::V4),
        1 => v6.prop_map(|number| IpAddr::V6(Ipv6Addr::from(number))),
    ]
}

fn range() -> impl Strategy<Value = AddressRange> {
    (address(), address()).prop_map(|(one, other)| {
        AddressRange::new(one.min(other), one.max(other)).unwrap_or_else(|| one.into())
    })
}

fn port() -> impl Strategy<Value = Option<NonZeroU16>> {
    prop::sample::select(vec![
        None,
        NonZeroU16::new(1),
        NonZeroU16::new(2),
        Some(NonZeroU16::MAX),
    ])
}

fn item() -> impl Strategy<Value = ProtectionItem> {
    let kind = prop::sample::select(Kind::ALL);
    let level = prop::sample::select(Level::ALL);
    let profile = prop::sample::select(Profile::ALL);
    let is_one =
        |(kind, profile): &(Kind, Profile)| (*kind, *profile) != (Kind::Encryption, Profile::Ah);
    let class = (kind, profile).prop_filter("AH does not encrypt", is_one);
    (port(), port(), class, level).prop_map(|(local, remote, (kind, profile), level)| {
        ProtectionItem {
            local,
            remote,
            kind,
            level,
            profile,
            origin: Origin::default(),
        }
    })
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn application() -> impl Strategy<Value = Application> {
    let network_type = prop::sample::select(vec![
        NetworkType::Trusted,
        NetworkType::Untrusted,
        NetworkType::Protected(name("P")),
        NetworkType::Protected(name("Q")),
    ]);
    let networks = vec((peers(), network_type), 1..6);
    let items = || vec(item(), 1..5);
    (networks, items(), items()).prop_map(|(networks, p, q)| Application {
        programs: Vec::new(),
        networks: networks
            .into_iter()
            .map(|(peers, network_type)| Network {
                addresses: match &peers {
                    Peers::Range(range) => vec![*range],
                    Peers::Name(_) => Vec::new(),
                },
                peers,
                network_type,
                origin: Origin::default(),
            })
            .collect(),
        protections: [("P", p), ("Q", q)]
            .map(|(text, items)| {
                let origin = Origin::default();
                (name(text), Protection { items, origin })
            })
            .into(),
        origin: Origin::default(),
    })
}

/// Ranges, all addresses of a family more often than chance has it, and names.
fn peers() -> impl Strategy<Value = Peers> {
    let all = ["0.0.0.0/0", "::/0"].map(|text| AddressRange::parse(text).expect("a range"));
    let names = ["www.abc.com", "www.example.org"];
    let names = names.map(|name| Peers::Name(name.parse().expect("a name")));
    prop_oneof![
        6 => range().prop_map(Peers::Range),
        1 => prop::sample::select(all.to_vec()).prop_map(Peers::Range),
        1 => prop::sample::select(names.to_vec()),
    ]
}

fn policy() -> impl Strategy<Value = Vec<Application>> {
    vec(application(), 1..4).prop_map(|mut applications| {
        for (number, block) in applications.iter_mut().enumerate() {
            block.programs = vec![
                ProgramName::Name(format!("program-{number}")),
                ProgramName::Path(format!("/usr/bin/program-{number}")),
            ];
        }
        applications
    })
}

/// Every address and port at which something could change.
fn samples() -> Vec<(IpAddr, u16, u16)> {
    let v4 = (0..7_u8)
        .map(|byte| [0, 0, 0, byte])
        .chain((249..=255).map(|byte| [255, 255, 255, byte]))
        .map(|octets| IpAddr::V4(octets.into()));
    let v6 = (0..7_u128)
        .chain((0..4).map(|low| u128::MAX - low))
        .map(|number| IpAddr::V6(number.into()));
    let ports = [1, 2, 3, 65535];
    v4.chain(v6)
        .flat_map(|address| ports.map(|local| ports.map(|remote| (address, local, remote))))
        .flatten()
        .collect()
}

proptest! {
    #[test]
    fn every_application_block_survives_its_own_text(policy in policy()) {
        prop_assert_eq!(read(&text(&policy)), policy);
    }
}
