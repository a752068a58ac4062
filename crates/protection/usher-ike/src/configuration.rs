//! The configuration that charon gets: connections, their children, and the key of this host.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use usher_base::HostName;
use usher_protection::{Class, Kind, Profile};

use crate::key::{IkeKey, IkePublicKey};
use crate::vici::Section;

/// Every connection of Usher's has a name that begins with this; others are left alone.
const PREFIX: &str = "usher-";

/// Algorithms of the IKE SA. It carries no traffic.
const IKE_PROPOSALS: [&str; 2] = [
    "aes256gcm16-prfsha384-x25519",
    "chacha20poly1305-prfsha256-x25519",
];

/// How charon names the post-quantum part of a hybrid key exchange, from version 6.0 on.
pub(crate) const HYBRID_ALGORITHM: &str = "ML_KEM_768";

/// After this long without a packet charon asks a peer whether it is still there.
const IDLE_BEFORE_ASKING: &str = "15s";

/// This host and its peers.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// This host's name in the policy: its IKE identity.
    pub host: HostName,
    /// Its key.
    pub key: Arc<IkeKey>,
    /// The hosts with which it negotiates.
    pub peers: Vec<Peer>,
    /// The classes that the policy uses; the same for every peer.
    pub classes: Vec<PeerClass>,
}

/// A host with which SAs are negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in the policy: its IKE identity.
    pub name: HostName,
    /// Where it is. SAs in transport mode are for one address, so each has its own.
    pub addresses: Vec<IpAddr>,
    /// Its IKE key: no other is accepted.
    pub key: IkePublicKey,
}

/// A class of traffic, and how the kernel's entries know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClass {
    /// The class.
    pub class: Class,
    /// The `reqid` of its SAs and of the templates of the SPD's entries.
    pub reqid: u32,
    /// The mark that its inbound SAs set on packets.
    pub mark: SetMark,
}

/// A mark that an SA sets: `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMark {
    /// Within the mask.
    pub value: u32,
    /// The bits that change.
    pub mask: u32,
}

/// One address of one peer: a connection of charon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) peer: HostName,
    pub(crate) address: IpAddr,
    /// The connection's name. It has the keys of both sides in it, so that a connection with another
    /// key is another connection, and the old one's SAs end.
    pub(crate) connection: String,
    key: IkePublicKey,
}

impl Configuration {
    /// The connections that it takes.
    pub(crate) fn paths(&self) -> Vec<Path> {
        let own = beginning(self.key.public());
        let peers = self.peers.iter().filter(|peer| peer.name != self.host);
        peers
            .flat_map(|peer| {
                let keys = format!("{own}{}", beginning(peer.key));
                peer.addresses.iter().map(move |address| {
                    let address = address.to_canonical();
                    Path {
                        peer: peer.name.clone(),
                        address,
                        connection: format!("{PREFIX}{}-{address}-{keys}", peer.name),
                        key: peer.key,
                    }
                })
            })
            .collect()
    }

    /// The classes that a charon can negotiate.
    pub(crate) fn negotiable(&self, hybrid: bool) -> impl Iterator<Item = &PeerClass> {
        let classes = self.classes.iter();
        classes.filter(move |wanted| hybrid || wanted.class.profile != Profile::Strong)
    }

    /// The request `load-conn` for one of the connections.
    pub(crate) fn load_connection(&self, path: &Path, hybrid: bool) -> Section {
        let side = |name: &HostName, key: IkePublicKey| {
            Section::new()
                .value("auth", "pubkey")
                .value("id", name.as_str())
                .list("pubkeys", [key.to_spki()])
        };
        let mut children = Section::new();
        let mut has_strong = false;
        for wanted in self.negotiable(hybrid) {
            has_strong |= wanted.class.profile == Profile::Strong;
            children = children.section(wanted.class.name(), child(wanted));
        }
        let mut proposals: Vec<String> = IKE_PROPOSALS.map(str::to_owned).to_vec();
        if hybrid {
            let combined = IKE_PROPOSALS.map(|proposal| format!("{proposal}-ke1_mlkem768"));
            proposals.splice(0..0, combined);
        }
        let connection = Section::new()
            .value("version", "2")
            .list("remote_addrs", [path.address.to_string()])
            .list("proposals", proposals)
            .value("mobike", "no")
            .value("dpd_delay", IDLE_BEFORE_ASKING)
            // A child that is made with the IKE SA has no key exchange of its own.
            .value("childless", if has_strong { "force" } else { "allow" })
            .section("local", side(&self.host, self.key.public()))
            .section("remote", side(&path.peer, path.key))
            .section("children", children);
        Section::new().section(&path.connection, connection)
    }
}

/// Whether a connection is one of Usher's.
pub(crate) fn is_ours(connection: &str) -> bool {
    connection.starts_with(PREFIX)
}

/// A child: the SAs of one class. The kernel's policies are Usher's and traps choose by `reqid` alone,
/// which peers share: charon installs neither.
fn child(wanted: &PeerClass) -> Section {
    let SetMark { value, mask } = wanted.mark;
    Section::new()
        .value("mode", "transport")
        .value("policies", "no")
        .value("start_action", "none")
        .value("reqid", wanted.reqid.to_string())
        // A responder chooses by traffic selectors, which all classes share, and by label.
        .value("label", wanted.class.name())
        .value("label_mode", "simple")
        .value("set_mark_in", format!("{value:#x}/{mask:#x}"))
        .list("local_ts", ["dynamic"])
        .list("remote_ts", ["dynamic"])
        .list("esp_proposals", proposals(wanted.class))
}

/// The algorithms of a class, the best first. A rekeyed child has a key exchange of its own.
fn proposals(class: Class) -> Vec<String> {
    let algorithms = match class.kind {
        Kind::Encryption => ["aes256gcm16", "chacha20poly1305"],
        Kind::Authentication => ["aes256gmac", "null-sha256"],
    };
    let exchange = match class.profile {
        Profile::Standard => "x25519",
        Profile::Strong => "x25519-ke1_mlkem768",
    };
    let proposals = algorithms.map(|algorithm| format!("{algorithm}-{exchange}"));
    proposals.to_vec()
}

/// The first four bytes of a key, in hexadecimal.
fn beginning(key: IkePublicKey) -> String {
    let spki = key.to_spki();
    spki[spki.len() - 32..][..4]
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing into a String cannot fail.
            let _infallible = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(peer_key: u8, profiles: &[Profile]) -> Configuration {
        let peer = Peer {
            name: "mailhost".parse().expect("a name"),
            addresses: ["192.0.2.1", "2001:db8::1"]
                .map(|a| a.parse().expect("an address"))
                .to_vec(),
            key: IkePublicKey::from_bytes([peer_key; 32]),
        };
        let classes = profiles.iter().map(|profile| PeerClass {
            class: Class::new(Kind::Encryption, *profile),
            reqid: 0x7500,
            mark: SetMark {
                value: 0x0030_0000,
                mask: 0x00f0_0000,
            },
        });
        Configuration {
            host: "laptop".parse().expect("a name"),
            key: Arc::new(IkeKey::from_seed([1; 32])),
            peers: vec![peer],
            classes: classes.collect(),
        }
    }

    fn connection(configuration: &Configuration, hybrid: bool) -> Section {
        let path = &configuration.paths()[0];
        let message = configuration.load_connection(path, hybrid);
        message
            .inner(&path.connection)
            .expect("the connection")
            .clone()
    }

    #[test]
    fn each_address_has_a_connection() {
        let paths = configuration(7, &[Profile::Standard]).paths();
        assert_eq!(paths.len(), 2);
        assert_ne!(paths[0].connection, paths[1].connection);
        assert!(paths.iter().all(|path| is_ours(&path.connection)));
    }

    #[test]
    fn this_host_is_no_peer_of_its_own() {
        let mut configuration = configuration(7, &[Profile::Standard]);
        configuration.host = "mailhost".parse().expect("a name");
        assert!(configuration.paths().is_empty());
    }

    #[test]
    fn another_key_is_another_connection() {
        let name = |key| configuration(key, &[]).paths()[0].connection.clone();
        assert_ne!(name(7), name(8));
    }

    #[test]
    fn a_child_has_the_reqid_and_the_mark_of_its_class() {
        let connection = connection(&configuration(7, &[Profile::Standard]), false);
        let children = connection.inner("children").expect("children");
        let child = children.inner("encryption").expect("the class");
        assert_eq!(child.text("reqid").as_deref(), Some("29952"));
        assert_eq!(
            child.text("set_mark_in").as_deref(),
            Some("0x300000/0xf00000")
        );
        assert_eq!(child.text("policies").as_deref(), Some("no"));
    }

    #[test]
    fn a_strong_class_waits_for_a_hybrid_exchange() {
        let configuration = configuration(7, &[Profile::Standard, Profile::Strong]);
        let children = |hybrid| {
            let connection = connection(&configuration, hybrid);
            let children = connection.inner("children").expect("children");
            children
                .sections()
                .map(|(name, _)| name.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(children(false), ["encryption"]);
        assert_eq!(children(true), ["encryption", "encryption-strong"]);
        let with_hybrid = connection(&configuration, true);
        assert_eq!(with_hybrid.text("childless").as_deref(), Some("force"));
    }
}
