//! Makes the configuration for charon from the policy and this host's IKE key.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use usher_base::HostName;
use usher_ike::{IkeKey, IkePublicKey, Peer, PeerClass, SetMark};
use usher_ipsec::reqid;
use usher_local::paths;
use usher_policy::protection::{Class, Level, Profile, Tables};
use usher_policy::{Host, Policy};
use usher_proto::host_key::HostPublicKey;

use super::error::ProtectionError;

/// The configuration for charon, on the host with this key.
///
/// # Errors
/// When the host has no name or no IKE key for it.
pub(super) fn configuration(
    policy: &Policy,
    tables: &Tables,
    host_key: &HostPublicKey,
) -> Result<usher_ike::Configuration, ProtectionError> {
    let mask = policy.marks;
    let own = policy.host_by_key(host_key);
    let own = own.ok_or(ProtectionError::NoHost)?;
    let name = || own.name.to_string();
    let stated = ike_keys(own);
    if stated.is_empty() {
        return Err(ProtectionError::NoIkeKey(name()));
    }
    let key = IkeKey::read(Path::new(paths::IKE_KEY))?;
    if !stated.contains(&key.public()) {
        return Err(ProtectionError::OtherIkeKey(name()));
    }
    let peers: Vec<Peer> = peers(policy, Some(own)).map(peer).collect();
    let classes = classes(tables).into_iter().map(|class| PeerClass {
        class,
        reqid: reqid(class),
        mark: SetMark {
            value: mask.class_mark(class, Level::Mandatory),
            // The signature stays: by it the program at egress knows that the SPD has compared ports.
            mask: mask.class_bits(),
        },
    });
    Ok(usher_ike::Configuration {
        host: own.name.clone(),
        key: Arc::new(key),
        stated,
        on_demand: on_demand(tables, &peers),
        peers,
        classes: classes.collect(),
    })
}

/// The hosts with which SAs are negotiated: all but this one that have an `ike-key`.
pub(super) fn peers<'p>(policy: &'p Policy, own: Option<&Host>) -> impl Iterator<Item = &'p Host> {
    let own = own.map(|own| own.name.clone());
    let others = policy.hosts.values();
    let others = others.filter(move |host| Some(&host.name) != own.as_ref());
    others.filter(|host| !host.ike_keys.is_empty())
}

fn peer(host: &Host) -> Peer {
    let unlabelled = host.unlabelled;
    Peer {
        name: host.name.clone(),
        addresses: host.addresses.clone(),
        keys: ike_keys(host),
        unlabelled: unlabelled.map(|kind| Class::new(kind, Profile::Standard)),
    }
}

/// The classes that this host does not negotiate ahead of need: those that only its own services
/// demand, and those that it needs for destinations at other peers.
fn on_demand(tables: &Tables, peers: &[Peer]) -> BTreeSet<(HostName, Class)> {
    let items = tables.item_lists.iter().flatten();
    let by_application: BTreeSet<Class> = items.map(|item| tables.classes[item.class].0).collect();
    let destinations = tables.destinations.iter();
    let reached: BTreeSet<(Class, IpAddr)> = destinations
        .map(|destination| (destination.class, destination.peer))
        .collect();
    let reaches = |peer: &Peer, class| {
        let mut addresses = peer.addresses.iter();
        addresses.any(|address| reached.contains(&(class, address.to_canonical())))
    };
    let mut on_demand = BTreeSet::new();
    for class in classes(tables) {
        let waiting = peers.iter().filter(|peer| !reaches(peer, class));
        if !by_application.contains(&class) {
            on_demand.extend(waiting.map(|peer| (peer.name.clone(), class)));
        }
    }
    on_demand
}

/// The classes in use, each once.
pub(super) fn classes(tables: &Tables) -> Vec<Class> {
    let mut classes: Vec<Class> = tables.classes.iter().map(|(class, _)| *class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

fn ike_keys(host: &Host) -> Vec<IkePublicKey> {
    let keys = host.ike_keys.iter();
    keys.map(|key| IkePublicKey::from_bytes(*key.as_bytes()))
        .collect()
}

#[cfg(test)]
mod tests {
    use usher_policy::protection::Kind;

    use super::*;

    // Threat model: P70
    #[test]
    fn an_unlabelled_host_is_a_peer_of_its_one_class() {
        let unlabelled = |kind| {
            let host = Host {
                name: "appliance".parse().expect("a name"),
                addresses: vec![IpAddr::from([192, 0, 2, 1])],
                key: HostPublicKey::from_bytes([1; 32]),
                ike_keys: vec![HostPublicKey::from_bytes([2; 32])],
                is_held: true,
                unlabelled: kind,
                control: 3440,
                loopback: Vec::new(),
            };
            peer(&host).unlabelled
        };
        assert_eq!(unlabelled(None), None);
        for kind in [Kind::Encryption, Kind::Authentication] {
            let only = Class::new(kind, Profile::Standard);
            assert_eq!(unlabelled(Some(kind)), Some(only));
        }
    }
}
