//! The connections of a configuration, found by the names and addresses that charon and the kernel use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use usher_protection::{Class, IkePublicKey, common_algorithm};

use crate::configuration::{Configuration, Path};
use crate::key::{fingerprint, hexadecimal};

/// The names of Usher's connections begin with this; other connections are left alone.
const PREFIX: &str = "usher-";

/// How many hexadecimal digits of the fingerprint of this host's key a connection's name has. Usher must
/// not mistake a key of the administrator for its own.
const OWN_KEY: usize = 16;

/// How many hexadecimal digits of the [beginning](IkePublicKey::beginning) of a peer's key a connection's
/// name has.
const PEER_KEY: usize = 8;

/// All paths of a configuration. There may be thousands, and each SA asks for its own.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    all: Vec<Path>,
    /// The place of each path in `all`, by the beginning that the names of all its connections have.
    places: BTreeMap<String, usize>,
    /// The places of an address. Peers may share one.
    addresses: BTreeMap<IpAddr, Vec<usize>>,
    /// The fingerprints of this host's keys by the policy.
    stated: Vec<String>,
}

impl Paths {
    pub(crate) fn of(configuration: &Configuration) -> Self {
        let own: Vec<IkePublicKey> = configuration.keys.iter().map(|key| key.public()).collect();
        let stated = configuration.stated.iter().map(fingerprint);
        let mut paths = Self {
            stated: stated.collect(),
            ..Self::default()
        };
        let peers = configuration.peers.iter();
        for peer in peers.filter(|peer| peer.name != configuration.host) {
            let common = common_algorithm(&own, &peer.keys);
            let is_common = |key: &&IkePublicKey| Some(key.algorithm()) == common;
            let Some(own) = own.iter().find(is_common) else {
                continue;
            };
            let mut keys: Vec<IkePublicKey> = peer.keys.iter().filter(is_common).copied().collect();
            keys.sort_unstable();
            let digits = fingerprint(own);
            let accepted: String = keys.iter().map(|key| beginning(*key)).collect();
            for address in &peer.addresses {
                let address = address.to_canonical();
                let beginning = format!("{PREFIX}{}-{address}", peer.name);
                let path = Path {
                    peer: peer.name.clone(),
                    address,
                    connection: format!("{beginning}-{}{accepted}", &digits[..OWN_KEY]),
                    own: *own,
                    keys: keys.clone(),
                    unlabelled: peer.unlabelled,
                };
                paths.add(beginning, path);
            }
        }
        paths
    }

    fn add(&mut self, beginning: String, path: Path) {
        let place = self.all.len();
        // A peer may list an address twice.
        if self.places.contains_key(&beginning) {
            return;
        }
        self.places.insert(beginning, place);
        self.addresses.entry(path.address).or_default().push(place);
        self.all.push(path);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> + Clone {
        self.all.iter()
    }

    /// The fingerprints of this host's keys that paths use.
    pub(crate) fn own_keys(&self) -> BTreeSet<String> {
        let used: BTreeSet<IkePublicKey> = self.all.iter().map(|path| path.own).collect();
        used.iter().map(fingerprint).collect()
    }

    /// The paths to an address.
    pub(crate) fn to(&self, address: IpAddr) -> impl Iterator<Item = &Path> {
        let places = self.addresses.get(&address).into_iter().flatten();
        places.filter_map(|place| self.all.get(*place))
    }

    /// Returns whether this connection is a path's.
    pub(crate) fn have(&self, connection: &str) -> bool {
        self.named(connection)
            .is_some_and(|(path, _)| path.connection == connection)
    }

    /// The path that SAs of another connection serve until it has its own: both hosts have authenticated
    /// themselves by keys that the policy still has.
    pub(crate) fn kept_for(&self, connection: &str) -> Option<&Path> {
        let (path, keys) = self.named(connection)?;
        let (own, accepted) = split(keys)?;
        let accepts = |digits: &[u8]| {
            let mut keys = path.keys.iter();
            keys.any(|key| beginning(*key).as_bytes() == digits)
        };
        let is_kept = connection != path.connection
            && self.stated.iter().any(|key| key.starts_with(own))
            && accepted.as_bytes().chunks(PEER_KEY).all(accepts);
        is_kept.then_some(path)
    }

    /// The only class of the peer whose connection this is, if it is unlabelled.
    pub(crate) fn unlabelled(&self, connection: &str) -> Option<Class> {
        self.named(connection).and_then(|(path, _)| path.unlabelled)
    }

    /// The path of this connection, or of others with the same host and address, and the keys in the
    /// connection's name.
    fn named<'n>(&self, connection: &'n str) -> Option<(&Path, &'n str)> {
        let (beginning, keys) = connection.rsplit_once('-')?;
        let path = self.all.get(*self.places.get(beginning)?)?;
        Some((path, keys))
    }
}

/// The beginning of charon's name for the private key that one of Usher's connections uses.
pub(crate) fn key_of(connection: &str) -> Option<&str> {
    let (_, keys) = connection.rsplit_once('-')?;
    let (own, _) = split(keys).filter(|_| is_ours(connection))?;
    Some(own)
}

/// The digits of this host's key and of the peer's keys at the end of a connection's name.
fn split(keys: &str) -> Option<(&str, &str)> {
    let (own, accepted) = keys.split_at_checked(OWN_KEY)?;
    let is_whole = !accepted.is_empty() && accepted.len().is_multiple_of(PEER_KEY);
    is_whole.then_some((own, accepted))
}

/// Returns whether a connection is one of Usher's.
pub(crate) fn is_ours(connection: &str) -> bool {
    connection.starts_with(PREFIX)
}

/// The first bytes of a key, in hexadecimal.
fn beginning(key: IkePublicKey) -> String {
    hexadecimal(&key.beginning())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::configuration::tests::configuration;
    use crate::key::IkeKey;

    /// The connections of a configuration with this key of the peer.
    fn connections(peer_key: u8) -> Vec<String> {
        let paths = Paths::of(&configuration(peer_key, &[]));
        paths.iter().map(|path| path.connection.clone()).collect()
    }

    #[test]
    fn each_address_has_a_connection() {
        let names = connections(7);
        assert_eq!(names.len(), 2);
        assert_ne!(names[0], names[1]);
        let paths = Paths::of(&configuration(7, &[]));
        assert!(names.iter().all(|name| is_ours(name) && paths.have(name)));
        let to = |address: &str| paths.to(address.parse().expect("an address")).count();
        assert_eq!(
            [to("192.0.2.1"), to("2001:db8::1"), to("192.0.2.2")],
            [1, 1, 0]
        );
    }

    #[test]
    fn this_host_is_no_peer_of_its_own() {
        let mut configuration = configuration(7, &[]);
        configuration.host = "mailhost".parse().expect("a name");
        assert_eq!(Paths::of(&configuration).iter().count(), 0);
    }

    #[test]
    fn another_key_is_another_connection() {
        assert_ne!(connections(7), connections(8));
        let paths = Paths::of(&configuration(8, &[]));
        assert!(connections(7).iter().all(|name| !paths.have(name)));
    }

    // Threat model: P74
    #[test]
    fn sas_by_keys_that_the_policy_still_has_are_kept() {
        let former = configuration(7, &[]);
        let names = connections(7);
        let keeps = |present: &Configuration, name: &str| {
            let paths = Paths::of(present);
            let kept = paths.kept_for(name).map(|path| path.address);
            kept.map(|address| address.to_string())
        };
        let first = Some("192.0.2.1".to_owned());
        assert_eq!(keeps(&former, &names[0]), None, "it is the path's own");
        // The peer is going to replace its key.
        let mut present = configuration(7, &[]);
        let added = IkePublicKey::ed25519([8; 32]);
        present.peers[0].keys.push(added);
        assert_eq!(keeps(&present, &names[0]), first);
        assert_eq!(keeps(&present, &names[1]).as_deref(), Some("2001:db8::1"));
        let paths = Paths::of(&present);
        let two = paths.iter().next().expect("an address").connection.clone();
        assert!(key_of(&two).is_some(), "{two}");
        // Either key may have been used, so the removal of one ends what was negotiated by both.
        assert_eq!(keeps(&former, &two), None);
        // This host has replaced its own.
        let mut present = configuration(7, &[]);
        present.keys = vec![Arc::new(IkeKey::from_seed([2; 32]))];
        present.stated.push(present.keys[0].public());
        assert_eq!(keeps(&present, &names[0]), first);
        present.stated.remove(0);
        let revoked = keeps(&present, &names[0]);
        assert_eq!(revoked, None, "the policy no longer has the former key");
        // Another peer, and nonsense.
        for other in [
            "usher-mailhost-192.0.2.1-",
            "usher-mailhost-192.0.2.2-9ad19e0f16eef71407070707",
            "home",
            "usher-mailhost-192.0.2.1-0123",
        ] {
            assert_eq!(keeps(&present, other), None, "{other}");
        }
    }

    #[test]
    fn a_connection_s_name_tells_this_host_s_key() {
        let fingerprint = fingerprint(&configuration(7, &[]).keys[0].public());
        for name in connections(7) {
            let own = key_of(&name).expect("a connection of Usher's");
            assert!(own.len() == OWN_KEY && fingerprint.starts_with(own));
        }
        for other in [
            "home",
            "usher-",
            "usher-x-y",
            "home-0123456789abcdef01234567",
        ] {
            assert_eq!(key_of(other), None, "{other}");
        }
    }
}
