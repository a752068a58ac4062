//! Warnings about hosts whose traffic is to be protected.
//!
//! - By `application` blocks: hosts without a key for it, and hosts that are reached in the clear at other
//!   addresses.
//! - By these, and by services on either side: hosts that are `unlabelled` and have another class.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use usher_language::Clause;
use usher_protection::{
    Application, Class, Kind, Level, Network, NetworkType, Profile, Protection,
};

use crate::client::ClientService;
use crate::dialect::BlockKind;
use crate::model::{Host, Policy, Service};
use crate::warning::{PolicyWarning, some_of};

/// Hosts by their addresses.
type ByAddress<'p> = BTreeMap<IpAddr, &'p Host>;

impl Policy {
    /// The hosts with which `own`, a host of this policy, has no algorithm of IKE keys in common, in words for
    /// people. Hosts without any key are no peers at all.
    pub fn unmatched_ike_keys(&self, own: &Host) -> Vec<String> {
        let others = self.hosts.values().filter(|host| host.name != own.name);
        let others = others.filter(|host| !own.ike_keys.is_empty() && !host.shares_ike(own));
        let unmatched = others.filter_map(|host| {
            let algorithm = host.ike_keys.first()?.algorithm();
            Some(format!(
                "no SAs are made with {other}: every `ike-key` in `host {other}` is {algorithm}, and none in \
                 `host {own}`, this host's block, is; write this host's {algorithm} key into that beside the other \
                 one (`{command}` makes it)",
                other = host.name,
                own = own.name,
                command = algorithm.command(),
            ))
        });
        unmatched.collect()
    }

    pub(crate) fn warn_of_peers(&self, warnings: &mut Vec<PolicyWarning>) {
        let services = self.services.values();
        warnings.extend(services.filter_map(|service| self.demands_another_class(service)));
        for client in self.clients.values() {
            let entries = client.services.iter();
            let entries = entries.filter_map(|entry| self.asks_for_another_class(entry));
            warnings.extend(entries.map(|(explanation, remedy)| {
                let clause = Clause::statement(BlockKind::Client, &client.name, "protection");
                let explanation = format!("`client {}` {explanation}", client.name);
                PolicyWarning::about(clause, explanation, remedy)
            }));
        }
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

impl Policy {
    /// Warns if a service demands more protection than its unlabelled hosts can have.
    fn demands_another_class(&self, service: &Service) -> Option<PolicyWarning> {
        let demanded = service.protection.as_ref()?.kind;
        let hosts = service.hosts.iter().filter_map(|host| self.hosts.get(host));
        let keyed = hosts.filter(|host| !host.ike_keys.is_empty());
        let falls_short =
            |host: &&Host| matches!(host.unlabelled, Some(only) if !only.includes(demanded));
        let (short, others): (Vec<&Host>, Vec<&Host>) = keyed.partition(falls_short);
        // With `hosts any`, some hosts may have no Usher and no users of this service.
        if short.is_empty() || service.any_host && !others.is_empty() {
            return None;
        }
        let short = short.iter().map(|host| host.name.to_string()).collect();
        let name = &service.name;
        Some(PolicyWarning::about(
            Clause::statement(BlockKind::Service, name, "protection"),
            format!(
                "`service {name}` demands {demanded} by IPsec, and the blocks of these of its `hosts` say \
                 `unlabelled` with a weaker class, the only one that they have SAs of, so none of their \
                 users is admitted: {}",
                some_of(&short)
            ),
            format!(
                "write `unlabelled {demanded};` if they can have that class, remove `unlabelled` if their \
                 IPsec knows security labels, or remove them from `hosts`"
            ),
        ))
    }

    /// The explanation and the remedy, if a client's connections with an unlabelled host are to have SAs of
    /// another class than its only one.
    fn asks_for_another_class(&self, entry: &ClientService) -> Option<(String, String)> {
        let (asked, name) = (entry.protection?, &entry.host);
        let host = self.hosts.get(name)?;
        let only = host.unlabelled.filter(|only| *only != asked)?;
        if host.ike_keys.is_empty() {
            return None;
        }
        Some((
            format!(
                "has connections with {name} protected by {asked}, and `host {name}` says `unlabelled \
                 {only}`, the only class that it has SAs of, so none is made"
            ),
            format!(
                "write `protection {only};` in a `client` block for {name} alone, or remove `unlabelled` if \
                 its IPsec knows security labels"
            ),
        ))
    }
}

/// Warns if a network protects traffic with hosts that cannot have SAs, or with no host at all.
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
    // If the peers are everybody, some may have no IPsec and nothing to do with the program.
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

/// Warns if a network protects traffic with unlabelled hosts in other classes than their only one. A network
/// of everybody is no exception: the remedy, a `network` before it, costs a line.
fn of_other_classes(
    network: &Network,
    protection: Option<&Protection>,
    found: &[(IpAddr, &Host)],
) -> Option<PolicyWarning> {
    let items = protection.map_or_else(Vec::new, Protection::deciding);
    let others = found.iter().flat_map(|(_, host)| {
        let only = host.unlabelled.map(standard);
        let others = items.iter();
        let others = others.filter(move |item| only.is_some_and(|only| only != item.class()));
        others.map(move |item| {
            let effect = match item.level {
                Level::Mandatory => "never passes",
                Level::Optional => "stays in the clear",
            };
            let class = item.class();
            format!("`{}` with {} {effect}", class.name(), host.name)
        })
    });
    let others: BTreeSet<String> = others.collect();
    if others.is_empty() {
        return None;
    }
    let (place, peers) = (&network.origin.place, &network.peers);
    Some(PolicyWarning::new(
        format!(
            "{place}: `network {peers}` protects traffic with hosts whose blocks say `unlabelled` in other \
             classes than they have, so no SAs are made for it: {}",
            some_of(&others)
        ),
        "give these hosts a `network` before it, whose protection has the class of `unlabelled` alone",
    ))
}

/// The class of this kind without a profile of its own, such as that of an unlabelled host.
fn standard(kind: Kind) -> Class {
    Class::new(kind, Profile::Standard)
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
