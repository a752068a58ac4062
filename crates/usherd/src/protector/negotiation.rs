//! Makes the configuration for charon from the policy and this host's IKE keys.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use usher_base::HostName;
use usher_ike::{IkeAlgorithm, IkeKey, Peer, PeerClass, SetMark};
use usher_ipsec::reqid;
use usher_local::paths;
use usher_policy::protection::{Class, Level, Profile, Tables};
use usher_policy::{Host, Policy};
use usher_proto::host_key::HostPublicKey;

use super::error::ProtectionError;

/// The configuration for charon, on the host with this key.
///
/// # Errors
/// When the policy has no block or no IKE key for this host, or the host lacks a private key of those that
/// its block states.
pub(super) fn configuration(
    policy: &Policy,
    tables: &Tables,
    host_key: &HostPublicKey,
) -> Result<usher_ike::Configuration, ProtectionError> {
    let mask = policy.marks;
    let own = policy.host_by_key(host_key);
    let own = own.ok_or(ProtectionError::NoHost)?;
    if own.ike_keys.is_empty() {
        return Err(ProtectionError::NoIkeKey(own.name.to_string()));
    }
    let keys = own_keys(own, file_of)?;
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
        keys,
        stated: own.ike_keys.clone(),
        on_demand: on_demand(tables, &peers),
        peers,
        classes: classes.collect(),
    })
}

/// This host's private keys: one for each algorithm of which its block states a key.
fn own_keys(
    own: &Host,
    file_of: impl Fn(IkeAlgorithm) -> &'static Path,
) -> Result<Vec<Arc<IkeKey>>, ProtectionError> {
    let is_stated = |algorithm: &&IkeAlgorithm| {
        let mut stated = own.ike_keys.iter();
        stated.any(|key| key.algorithm() == **algorithm)
    };
    let stated = IkeAlgorithm::ALL.iter().filter(is_stated);
    let keys = stated.map(|algorithm| {
        let file = file_of(*algorithm);
        let key = IkeKey::read(file, *algorithm)?;
        if own.ike_keys.contains(&key.public()) {
            Ok(Arc::new(key))
        } else {
            Err(ProtectionError::OtherIkeKey {
                host: own.name.to_string(),
                file,
            })
        }
    });
    keys.collect()
}

/// The file of this host's private key.
fn file_of(algorithm: IkeAlgorithm) -> &'static Path {
    Path::new(match algorithm {
        IkeAlgorithm::Ed25519 => paths::IKE_KEY,
        IkeAlgorithm::EcdsaP256 => paths::ECDSA_IKE_KEY,
    })
}

/// The other hosts with which SAs are negotiated: those with an `ike-key` of the same algorithm as one of
/// this host's. Without `own`, all hosts with an `ike-key`.
pub(super) fn peers<'p>(
    policy: &'p Policy,
    own: Option<&'p Host>,
) -> impl Iterator<Item = &'p Host> {
    let is_peer = move |host: &&Host| match own {
        Some(own) => host.name != own.name && host.shares_ike(own),
        None => !host.ike_keys.is_empty(),
    };
    policy.hosts.values().filter(is_peer)
}

/// The hosts that are held once they have had SAs. They include hosts that no longer share an algorithm of
/// keys with this host: otherwise a mistake in a policy would release them, and their traffic could pass in
/// the clear.
pub(super) fn held_peers(policy: &Policy, host_key: &HostPublicKey) -> Vec<Peer> {
    let hosts = peers(policy, None).filter(|host| host.is_held && !host.keys.contains(host_key));
    hosts.map(peer).collect()
}

fn peer(host: &Host) -> Peer {
    let unlabelled = host.unlabelled;
    Peer {
        name: host.name.clone(),
        addresses: host.addresses.clone(),
        keys: host.ike_keys.clone(),
        unlabelled: unlabelled.map(|kind| Class::new(kind, Profile::Standard)),
    }
}

/// The classes that this host negotiates with a peer only on demand: those that no `application` block uses,
/// and that this host needs for no destination at the peer.
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

#[cfg(test)]
mod tests {
    use usher_policy::protection::{IkePublicKey, Kind};

    use super::*;

    fn host(name: &str, ike_keys: &[IkePublicKey]) -> Host {
        Host {
            name: name.parse().expect("a name"),
            addresses: vec![IpAddr::from([192, 0, 2, 1])],
            keys: vec![HostPublicKey::from_bytes([1; 32])],
            ike_keys: ike_keys.to_vec(),
            is_held: true,
            unlabelled: None,
            control: 3440,
            loopback: Vec::new(),
        }
    }

    #[test]
    fn the_ecdsa_key_is_read_where_the_policy_states_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ecdsa_key");
        let file: &'static Path = Box::leak(path.into_boxed_path());
        let file_of = |_: IkeAlgorithm| file;
        let make = || {
            let made = std::process::Command::new("ssh-keygen")
                .args([
                    "-q", "-t", "ecdsa", "-b", "256", "-m", "PKCS8", "-N", "", "-f",
                ])
                .arg(file)
                .status();
            assert!(made.expect("ssh-keygen").success());
            let line = std::fs::read_to_string(file.with_extension("pub")).expect("a line");
            line.parse::<IkePublicKey>().expect("a key")
        };
        let key = make();
        let own = host("laptop", &[key]);
        let read = own_keys(&own, file_of).expect("a key");
        let read: Vec<IkePublicKey> = read.iter().map(|key| key.public()).collect();
        assert_eq!(read, [key]);
        // Without a statement the key is not even looked for.
        assert!(own_keys(&host("laptop", &[]), file_of).is_ok_and(|keys| keys.is_empty()));
        // The stated key is missing; then another key is in its place.
        std::fs::remove_file(file).expect("it is there");
        let lost = own_keys(&own, file_of).expect_err("no key").to_string();
        assert!(
            lost.contains("ecdsa_key") && lost.contains("ssh-keygen"),
            "{lost}"
        );
        make();
        let other = own_keys(&own, file_of)
            .expect_err("another key")
            .to_string();
        assert!(
            other.contains("of the `host` block of laptop is the key in"),
            "{other}"
        );
    }

    #[test]
    fn hosts_of_another_algorithm_are_no_peers() {
        let ed25519 = IkePublicKey::ed25519([2; 32]);
        let number = usher_ike::IkeKey::from_secret_number([3; 32]);
        let ecdsa = number.expect("below the order of the curve").public();
        let others = [("server", ed25519), ("appliance", ecdsa)];
        let hosts = others.map(|(name, key)| (name.parse().expect("a name"), host(name, &[key])));
        let policy = Policy {
            hosts: hosts.into(),
            ..Policy::default()
        };
        for (keys, expected) in [
            (&[ed25519][..], &["server"][..]),
            (&[ecdsa], &["appliance"]),
            (&[ecdsa, ed25519], &["appliance", "server"]),
        ] {
            let own = host("laptop", keys);
            let found: Vec<&str> = peers(&policy, Some(&own))
                .map(|peer| peer.name.as_str())
                .collect();
            assert_eq!(found, expected);
            let told = policy.unmatched_ike_keys(&own);
            assert_eq!(told.len(), 2 - expected.len(), "{told:?}");
        }
    }

    // Threat model: P60
    #[test]
    fn a_host_of_another_algorithm_stays_held() {
        let ed25519 = IkePublicKey::ed25519([2; 32]);
        let number = usher_ike::IkeKey::from_secret_number([3; 32]);
        let ecdsa = number.expect("below the order of the curve").public();
        let own = HostPublicKey::from_bytes([9; 32]);
        let hosts = [
            ("laptop", own, &[ed25519][..], true),
            (
                "server",
                HostPublicKey::from_bytes([1; 32]),
                &[ed25519],
                true,
            ),
            (
                "appliance",
                HostPublicKey::from_bytes([4; 32]),
                &[ecdsa],
                true,
            ),
            (
                "free",
                HostPublicKey::from_bytes([5; 32]),
                &[ed25519],
                false,
            ),
            ("keyless", HostPublicKey::from_bytes([6; 32]), &[], true),
        ];
        let hosts = hosts.map(|(name, key, ike_keys, is_held)| {
            let host = Host {
                keys: vec![key],
                is_held,
                ..host(name, ike_keys)
            };
            (host.name.clone(), host)
        });
        let policy = Policy {
            hosts: hosts.into(),
            ..Policy::default()
        };
        let held = held_peers(&policy, &own);
        let held: Vec<&str> = held.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!(held, ["appliance", "server"]);
    }

    // Threat model: P70
    #[test]
    fn an_unlabelled_host_is_a_peer_of_its_one_class() {
        let unlabelled = |kind| {
            let host = Host {
                unlabelled: kind,
                ..host("appliance", &[IkePublicKey::ed25519([2; 32])])
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
