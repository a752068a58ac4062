//! Properties of `application` blocks, over random ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use usher_policy::{
    AddressRange, Application, ApplicationPolicy, Level, Name, Network, Origin, Peers, Place,
    Policy, PolicyWarning, Protection, ProtectionItem, Source, Traffic, Transform, Treatment,
    parse,
};

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

fn port() -> impl Strategy<Value = Option<u16>> {
    prop::sample::select(vec![None, Some(1), Some(2), Some(65535)])
}

fn item() -> impl Strategy<Value = ProtectionItem> {
    (port(), port(), any::<bool>(), any::<bool>()).prop_map(|(local, remote, encrypts, must)| {
        ProtectionItem {
            local,
            remote,
            transform: if encrypts {
                Transform::Encryption
            } else {
                Transform::Authentication
            },
            level: if must {
                Level::Mandatory
            } else {
                Level::Optional
            },
            origin: Origin::default(),
        }
    })
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn application() -> impl Strategy<Value = ApplicationPolicy> {
    let treatment = prop::sample::select(vec![
        Treatment::Trusted,
        Treatment::Untrusted,
        Treatment::Protected(name("P")),
        Treatment::Protected(name("Q")),
    ]);
    let networks = vec((range(), treatment), 1..6);
    let items = || vec(item(), 1..5);
    (networks, items(), items()).prop_map(|(networks, p, q)| ApplicationPolicy {
        applications: Vec::new(),
        networks: networks
            .into_iter()
            .map(|(range, treatment)| Network {
                peers: Peers::Range(range),
                addresses: vec![range],
                treatment,
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

fn policy() -> impl Strategy<Value = Policy> {
    vec(application(), 1..4).prop_map(|applications| Policy {
        applications: applications
            .into_iter()
            .enumerate()
            .map(|(number, mut block)| {
                block.applications = vec![
                    Application::Name(format!("program-{number}")),
                    Application::Path(format!("/usr/bin/program-{number}")),
                ];
                block
            })
            .collect(),
        ..Policy::default()
    })
}

fn read(policy: &Policy) -> Policy {
    let text = policy.to_text();
    let name = "property".to_owned();
    parse(&[Source { name, text }]).expect("a policy's own text")
}

proptest! {
    #[test]
    fn every_application_block_survives_its_own_text(policy in policy()) {
        prop_assert_eq!(read(&policy), policy);
    }
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

/// Whether a block would protect traffic with these ports (local, remote) by such an item if none of
/// its statements came before another one.
fn could(
    block: &ApplicationPolicy,
    peer: IpAddr,
    (local, remote): (u16, u16),
    of: impl Fn(&ProtectionItem) -> bool,
) -> bool {
    let is = |port: Option<u16>, asked| port.is_none_or(|port| port == asked);
    let meets =
        |item: &ProtectionItem| of(item) && is(item.local, local) && is(item.remote, remote);
    block.networks.iter().any(|network| {
        let Treatment::Protected(name) = &network.treatment else {
            return false;
        };
        let mut ranges = network.addresses.iter();
        ranges.any(|range| range.contains(peer)) && block.protections[name].items.iter().any(meets)
    })
}

/// The warnings of a kind at a place.
fn warned(policy: &Policy, place: &Place, of: fn(&PolicyWarning) -> Option<&Place>) -> bool {
    policy
        .warnings()
        .iter()
        .filter_map(of)
        .any(|found| found == place)
}

proptest! {
    #[test]
    fn what_is_warned_of_as_shadowed_never_decides_and_all_else_does(policy in policy()) {
        let policy = read(&policy);
        let samples = samples();
        for block in &policy.applications {
            for (number, network) in block.networks.iter().enumerate() {
                let decides = samples.iter().any(|(peer, ..)| {
                    let has = |network: &Network| {
                        network.addresses.iter().any(|range| range.contains(*peer))
                    };
                    block.networks.iter().position(has) == Some(number)
                });
                let shadowed = warned(&policy, &network.origin.place, |warning| match warning {
                    PolicyWarning::NetworkShadowed { place, .. } => Some(place),
                    _ => None,
                });
                prop_assert_eq!(shadowed, !decides, "{}", policy.to_text());
            }
            for protection in block.protections.values() {
                for item in &protection.items {
                    let decides = samples.iter().any(|&(_, local, remote)| {
                        let found = protection.decides(local, remote);
                        found.is_some_and(|found| std::ptr::eq(found, item))
                    });
                    let shadowed = warned(&policy, &item.origin.place, |warning| match warning {
                        PolicyWarning::ItemShadowed { place, .. } => Some(place),
                        _ => None,
                    });
                    prop_assert_eq!(shadowed, !decides, "{}", policy.to_text());
                }
            }
        }
    }

    #[test]
    fn an_optional_item_is_warned_of_where_another_block_demands_the_same_and_not_where_none_could(
        policy in policy(),
    ) {
        let policy = read(&policy);
        let samples = samples();
        for (number, block) in policy.applications.iter().enumerate() {
            for item in block.protections.values().flat_map(|protection| &protection.items) {
                // Traffic that passes by this item, and by a mandatory one of another block as the
                // same end of a connection or as the other.
                let other_demands = samples.iter().any(|&(peer, local, remote)| {
                    let mine = |(local, remote)| matches!(
                        block.traffic(peer, local, remote),
                        Traffic::Protect(found) if std::ptr::eq(found, item)
                    );
                    let demands = |other: &ApplicationPolicy| matches!(
                        other.traffic(peer, local, remote),
                        Traffic::Protect(found) if found.level == Level::Mandatory
                    );
                    let mut others = policy.applications.iter().enumerate();
                    (mine((local, remote)) || mine((remote, local)))
                        && others.any(|(other, block)| other != number && demands(block))
                });
                let found = warned(&policy, &item.origin.place, |warning| match warning {
                    PolicyWarning::OptionalBesideMandatory { place, .. } => Some(place),
                    _ => None,
                });
                prop_assert!(item.level == Level::Optional || !found);
                if item.level == Level::Optional && other_demands {
                    prop_assert!(found, "{item} in {}", policy.to_text());
                }
                if found {
                    let another_could = samples.iter().any(|&(peer, local, remote)| {
                        let mine = |ports| could(block, peer, ports, |of| std::ptr::eq(of, item));
                        let mandatory = |of: &ProtectionItem| of.level == Level::Mandatory;
                        let mut others = policy.applications.iter().enumerate();
                        (mine((local, remote)) || mine((remote, local)))
                            && others.any(|(other, block)| {
                                other != number && could(block, peer, (local, remote), mandatory)
                            })
                    });
                    prop_assert!(another_could, "{item} in {}", policy.to_text());
                }
            }
        }
    }
}
