//! Warnings about the hosts whose traffic `application` blocks protect: hosts without a key for it, and
//! hosts that are reached in the clear at other addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use usher_protection::{
    Application, Class, Level, Network, NetworkType, Profile, Protection, ProtectionItem,
};

use crate::model::{Host, Policy};
use crate::warning::{PolicyWarning, some_of};

/// Hosts by their addresses.
type ByAddress<'p> = BTreeMap<IpAddr, &'p Host>;

impl Policy {
    pub(crate) fn warn_of_peers(&self, warnings: &mut Vec<PolicyWarning>) {
        let hosts = self.hosts.values();
        let addresses = hosts.flat_map(|host| host.addresses.iter().map(move |own| (*own, host)));
        let addresses: ByAddress<'_> = addresses.collect();
        for block in &self.applications {
            let networks = block.deciding(&self.names).apart();
            // Hosts that networks before this one protect, at some address.
            let mut protected = BTreeSet::new();
            for (network, ranges) in &networks {
                let found = ranges.iter().flat_map(|range| {
                    let found = addresses.range(range.first()..=range.last());
                    found.map(|(address, host)| (*address, *host))
                });
                let found: Vec<(IpAddr, &Host)> = found.collect();
                match &network.network_type {
                    NetworkType::Protected(name) if !ranges.is_empty() => {
                        let protection = block.protections.get(name);
                        warnings.extend(keyless(network, protection, &found));
                        warnings.extend(of_other_classes(network, protection, &found));
                        protected.extend(found.into_iter().map(|(_, host)| &host.name));
                    }
                    NetworkType::Protected(_) | NetworkType::Untrusted => {}
                    NetworkType::Trusted => {
                        let also = found
                            .iter()
                            .filter(|(_, host)| protected.contains(&host.name));
                        let also =
                            also.map(|(address, host)| format!("{address} of {}", host.name));
                        warnings.extend(in_the_clear(block, network, &also.collect()));
                    }
                }
            }
        }
    }
}

/// Warns if a network protects traffic with hosts that cannot have SAs, or with none at all.
fn keyless(
    network: &Network,
    protection: Option<&Protection>,
    found: &[(IpAddr, &Host)],
) -> Option<PolicyWarning> {
    let (keyed, keyless): (Vec<&Host>, Vec<&Host>) = found
        .iter()
        .map(|(_, host)| *host)
        .partition(|host| !host.ike_keys.is_empty());
    let items = protection.map_or(&[][..], |protection| &protection.items);
    let has = |level| items.iter().any(|item| item.level == level);
    let effect = match (has(Level::Mandatory), has(Level::Optional)) {
        (true, false) => "nothing of it passes",
        (false, true) => "all of it stays in the clear",
        (true, true) => {
            "what is `mandatory` never passes, and what is `optional` stays in the clear"
        }
        (false, false) => return None, // Everything is discarded.
    };
    let (place, peers) = (&network.origin.place, &network.peers);
    if found.is_empty() {
        return Some(PolicyWarning::new(
            format!(
                "{place}: no `host` block has an address of `network {peers}`, so no SAs are made for \
                 its traffic: {effect}"
            ),
            "add `host` blocks with an `ike-key` for these peers",
        ));
    }
    // Of everybody, some may have no IPsec and nothing to do with the program.
    if keyless.is_empty() || peers.is_everybody() && !keyed.is_empty() {
        return None;
    }
    let names = keyless.iter().map(|host| host.name.to_string()).collect();
    Some(PolicyWarning::new(
        format!(
            "{place}: `network {peers}` protects traffic with hosts that have no `ike-key` ({}), so no \
             SAs are made with them: {effect}",
            some_of(&names)
        ),
        "add the `ike-key` to their `host` blocks",
    ))
}

/// Warns if a network has traffic with unlabelled hosts in other classes than the only one of each.
fn of_other_classes(
    network: &Network,
    protection: Option<&Protection>,
    found: &[(IpAddr, &Host)],
) -> Option<PolicyWarning> {
    let (place, peers) = (&network.origin.place, &network.peers);
    // Of everybody, some may have nothing to do with the program.
    if peers.is_everybody() {
        return None;
    }
    let items = protection.map_or(&[][..], |protection| &protection.items);
    let others = found.iter().flat_map(|(_, host)| {
        let only = host
            .unlabelled
            .map(|kind| Class::new(kind, Profile::Standard));
        let classes = items.iter().map(ProtectionItem::class);
        let others = classes.filter(move |class| only.is_some_and(|only| only != *class));
        others.map(move |class| format!("`{}` with {}", class.name(), host.name))
    });
    let others: BTreeSet<String> = others.collect();
    if others.is_empty() {
        return None;
    }
    Some(PolicyWarning::new(
        format!(
            "{place}: `network {peers}` protects traffic with hosts whose blocks say `unlabelled` in other \
             classes than they have, so no SAs are made for it: {}",
            some_of(&others)
        ),
        "give these hosts a `network` before it, whose protection has the class of `unlabelled` alone",
    ))
}

/// Warns of hosts whose traffic an earlier network protects at other addresses.
fn in_the_clear(
    block: &Application,
    network: &Network,
    addresses: &BTreeSet<String>,
) -> Option<PolicyWarning> {
    if addresses.is_empty() {
        return None;
    }
    Some(PolicyWarning::new(
        format!(
            "{}: `network {}` of `application {}` trusts addresses of hosts that a `network` before it \
             protects at others, so traffic with these is in the clear: {}",
            network.origin.place,
            network.peers,
            block.name(),
            some_of(addresses)
        ),
        "name the hosts in the `network` before it: a name stands for all addresses of its host",
    ))
}
