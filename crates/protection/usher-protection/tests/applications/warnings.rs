//! Warnings over random policies: each one is true, and none is missing.

use std::net::IpAddr;
use std::num::NonZeroU16;

use proptest::prelude::*;
use usher_language::{AddressRange, Place};
use usher_protection::{
    Application, Level, Names, NetworkType, ProtectionItem, ProtectionWarning, Traffic, warnings,
};

use crate::{policy, read, samples, text};

/// Returns whether any protected network of a block has this peer, and an item that meets `of` and
/// these ports (local, remote).
fn could(
    block: &Application,
    peer: IpAddr,
    (local, remote): (u16, u16),
    of: impl Fn(&ProtectionItem) -> bool,
) -> bool {
    let is = |port: Option<NonZeroU16>, asked| port.is_none_or(|port| port.get() == asked);
    let meets =
        |item: &ProtectionItem| of(item) && is(item.local, local) && is(item.remote, remote);
    let networks = block
        .networks
        .iter()
        .zip(block.addresses(&Names::default()));
    let mut protected = networks.filter_map(|(network, ranges)| match &network.network_type {
        NetworkType::Protected(name) => Some((&block.protections[name], ranges)),
        NetworkType::Trusted | NetworkType::Untrusted => None,
    });
    protected.any(|(protection, ranges)| {
        ranges.iter().any(|range| range.contains(peer)) && protection.items.iter().any(meets)
    })
}

/// The warnings of a kind at a place.
fn warned(
    policy: &[Application],
    place: &Place,
    of: fn(&ProtectionWarning) -> Option<&Place>,
) -> bool {
    warnings(policy, &Names::default())
        .iter()
        .filter_map(of)
        .any(|found| found == place)
}

proptest! {
    #[test]
    fn exactly_the_clauses_reported_as_shadowed_never_decide(policy in policy()) {
        let policy = read(&text(&policy));
        let samples = samples();
        for block in &policy {
            let addresses = block.addresses(&Names::default());
            for (number, network) in block.networks.iter().enumerate() {
                // A name without an answer may decide later.
                let decides = addresses[number].is_empty() || samples.iter().any(|(peer, ..)| {
                    let has = |ranges: &Vec<AddressRange>| {
                        ranges.iter().any(|range| range.contains(*peer))
                    };
                    !peer.is_loopback() && addresses.iter().position(has) == Some(number)
                });
                let shadowed = warned(&policy, &network.origin.place, |warning| match warning {
                    ProtectionWarning::NetworkShadowed { place, .. }
                    | ProtectionWarning::NetworkOfLoopback { place, .. } => Some(place),
                    _ => None,
                });
                prop_assert_eq!(shadowed, !decides, "{}", text(&policy));
            }
            for protection in block.protections.values() {
                for item in &protection.items {
                    let decides = samples.iter().any(|&(_, local, remote)| {
                        let found = protection.decides(local, remote);
                        found.is_some_and(|found| std::ptr::eq(found, item))
                    });
                    let shadowed = warned(&policy, &item.origin.place, |warning| match warning {
                        ProtectionWarning::ItemShadowed { place, .. } => Some(place),
                        _ => None,
                    });
                    prop_assert_eq!(shadowed, !decides, "{}", text(&policy));
                }
            }
        }
    }

    #[test]
    fn an_optional_item_that_is_demanded_elsewhere_gets_a_warning(
        policy in policy(),
    ) {
        let policy = read(&text(&policy));
        let samples = samples();
        for (number, block) in policy.iter().enumerate() {
            for item in block.protections.values().flat_map(|protection| &protection.items) {
                // Traffic that passes by this item, and by a mandatory one of another block as the
                // same end of a connection or as the other.
                let other_demands = samples.iter().any(|&(peer, local, remote)| {
                    let mine = |(local, remote)| matches!(
                        block.traffic(&Names::default(), peer, local, remote),
                        Traffic::Protect(found) if std::ptr::eq(found, item)
                    );
                    let demands = |other: &Application| matches!(
                        other.traffic(&Names::default(), peer, local, remote),
                        Traffic::Protect(found) if found.level == Level::Mandatory
                    );
                    let mut others = policy.iter().enumerate();
                    (mine((local, remote)) || mine((remote, local)))
                        && others.any(|(other, block)| other != number && demands(block))
                });
                let found = warned(&policy, &item.origin.place, |warning| match warning {
                    ProtectionWarning::OptionalBesideMandatory { place, .. } => Some(place),
                    _ => None,
                });
                prop_assert!(item.level == Level::Optional || !found);
                if item.level == Level::Optional && other_demands {
                    prop_assert!(found, "{item} in {}", text(&policy));
                }
                if found {
                    let another_could = samples.iter().any(|&(peer, local, remote)| {
                        let mine = |ports| could(block, peer, ports, |of| std::ptr::eq(of, item));
                        let mandatory = |of: &ProtectionItem| of.level == Level::Mandatory;
                        let mut others = policy.iter().enumerate();
                        (mine((local, remote)) || mine((remote, local)))
                            && others.any(|(other, block)| {
                                other != number && could(block, peer, (local, remote), mandatory)
                            })
                    });
                    prop_assert!(another_could, "{item} in {}", text(&policy));
                }
            }
        }
    }
}
