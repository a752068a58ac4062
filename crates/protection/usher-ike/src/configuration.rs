//! The configuration that charon gets: connections, their children, and the keys of this host.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use usher_base::HostName;
use usher_protection::{Class, IkePublicKey, Kind, Profile};

use crate::key::IkeKey;
use crate::vici::Section;

/// Algorithms of the IKE SA. It carries no traffic.
const IKE_PROPOSALS: [&str; 2] = [
    "aes256gcm16-prfsha384-x25519",
    "chacha20poly1305-prfsha256-x25519",
];

/// How charon names the post-quantum part of a hybrid key exchange, from version 6.0 on.
pub(crate) const HYBRID_ALGORITHM: &str = "ML_KEM_768";

/// The time without a packet after which charon asks a peer whether it is still there, and logs some lines.
/// charon gives a peer up 165 seconds after the first question, so asking sooner would gain little.
const IDLE_BEFORE_ASKING: &str = "60s";

/// SAs are rekeyed after this many packets, too: their sequence numbers end at 2³², and the kernel's clock
/// may be set back.
const REKEY_PACKETS: &str = "1073741824";

/// The number of packets by which another one may be behind the newest: older ones, and repeated ones, are
/// dropped (RFC 4303, section 3.4.3).
const REPLAY_WINDOW: &str = "32";

/// This host and its peers.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// This host's name in the policy: its IKE identity.
    pub host: HostName,
    /// Its keys, at most one of each algorithm. With each peer it uses the key of the
    /// [`common_algorithm`](usher_protection::common_algorithm). With a peer that has none in common it does
    /// not negotiate.
    pub keys: Vec<Arc<IkeKey>>,
    /// Its keys in the policy. SAs that were negotiated with one of these stay until new ones have come.
    pub stated: Vec<IkePublicKey>,
    /// The hosts with which it negotiates.
    pub peers: Vec<Peer>,
    /// The classes that the policy uses; the same for every peer.
    pub classes: Vec<PeerClass>,
    /// The peers and classes whose SAs this host does not negotiate ahead of need: the peer does, or the
    /// kernel asks for them.
    pub on_demand: BTreeSet<(HostName, Class)>,
}

/// A host with which SAs are negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in the policy: its IKE identity.
    pub name: HostName,
    /// Its addresses. SAs in transport mode are for one address, so each has its own.
    pub addresses: Vec<IpAddr>,
    /// Its IKE keys. No others are accepted, and of these only those of one algorithm. There are several of
    /// one algorithm while the peer replaces its key.
    pub keys: Vec<IkePublicKey>,
    /// The only class of its SAs, which have no label then: without labels SAs of several cannot be told apart.
    /// None: its SAs are of all classes, and have their names as labels.
    pub unlabelled: Option<Class>,
}

/// A class of traffic, and how the kernel's entries know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClass {
    /// The class.
    pub class: Class,
    /// The `reqid` of its SAs and of the templates of the SPD's entries.
    pub reqid: u32,
    /// The mark that its SAs set on packets.
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

/// One address of one peer: a connection in charon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) peer: HostName,
    pub(crate) address: IpAddr,
    /// The connection's name. It contains the keys of both sides, so a connection with other keys has
    /// another name.
    pub(crate) connection: String,
    /// This host's key.
    pub(crate) own: IkePublicKey,
    /// The peer's keys, all of the algorithm of this host's, sorted.
    pub(crate) keys: Vec<IkePublicKey>,
    /// See [`Peer::unlabelled`](crate::Peer::unlabelled).
    pub(crate) unlabelled: Option<Class>,
}

impl Configuration {
    /// Returns whether SAs with a peer are negotiated only when they are needed.
    pub(crate) fn is_on_demand(&self, peer: &HostName, class: Class) -> bool {
        self.on_demand.contains(&(peer.clone(), class))
    }

    /// The classes that a charon can negotiate.
    pub(crate) fn negotiable(&self, hybrid: bool) -> impl Iterator<Item = &PeerClass> {
        let classes = self.classes.iter();
        classes.filter(move |wanted| hybrid || wanted.class.profile != Profile::Strong)
    }

    /// The classes that a charon can negotiate with a peer that is unlabelled or not.
    pub(crate) fn negotiable_with(
        &self,
        only: Option<Class>,
        hybrid: bool,
    ) -> impl Iterator<Item = &PeerClass> {
        self.negotiable(hybrid)
            .filter(move |wanted| only.is_none_or(|only| only == wanted.class))
    }

    /// The request `load-conn` for one of the connections.
    pub(crate) fn load_connection(&self, path: &Path, hybrid: bool) -> Section {
        let side = |name: &HostName, keys: &[IkePublicKey]| {
            Section::new()
                .value("auth", "pubkey")
                .value("id", name.as_str())
                .list("pubkeys", keys.iter().map(|key| key.to_spki()))
        };
        let mut children = Section::new();
        let mut has_strong = false;
        for wanted in self.negotiable_with(path.unlabelled, hybrid) {
            has_strong |= wanted.class.profile == Profile::Strong;
            let mut child = child(wanted);
            if path.unlabelled.is_none() {
                // A responder chooses by traffic selectors, which all classes share, and by label.
                child = child
                    .value("label", wanted.class.name())
                    .value("label_mode", "simple");
            }
            children = children.section(wanted.class.name(), child);
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
            .section("local", side(&self.host, &[path.own]))
            .section("remote", side(&path.peer, &path.keys))
            .section("children", children);
        Section::new().section(&path.connection, connection)
    }
}

/// A child: the SAs of one class. charon installs no policies, because the kernel's are Usher's, and no
/// traps, because these choose by `reqid` alone, which peers share. Both levels of a class share the SAs,
/// because one host may demand what is optional for the other.
fn child(wanted: &PeerClass) -> Section {
    let SetMark { value, mask } = wanted.mark;
    Section::new()
        .value("mode", "transport")
        .value("policies", "no")
        .value("start_action", "none")
        .value("reqid", wanted.reqid.to_string())
        .value("set_mark_in", format!("{value:#x}/{mask:#x}"))
        // Overrides charon.replay_window of the administrator's strongswan.conf.
        .value("replay_window", REPLAY_WINDOW)
        .value("rekey_packets", REKEY_PACKETS)
        // The program at egress compares the class of what leaves.
        .value("set_mark_out", format!("{value:#x}/{mask:#x}"))
        .list("local_ts", ["dynamic"])
        .list("remote_ts", ["dynamic"])
        .list(
            match wanted.class.profile {
                Profile::Standard | Profile::Strong => "esp_proposals",
                Profile::Ah => "ah_proposals",
            },
            proposals(wanted.class),
        )
}

/// The algorithms of a class, the best first. A rekeyed child has a key exchange of its own.
fn proposals(class: Class) -> Vec<String> {
    let algorithms: &[&str] = match (class.kind, class.profile) {
        (_, Profile::Ah) => &["sha256"],
        (Kind::Encryption, _) => &["aes256gcm16", "chacha20poly1305"],
        (Kind::Authentication, _) => &["aes256gmac", "null-sha256"],
    };
    let exchange = match class.profile {
        Profile::Standard | Profile::Ah => "x25519",
        Profile::Strong => "x25519-ke1_mlkem768",
    };
    let proposals = algorithms.iter();
    proposals
        .map(|algorithm| format!("{algorithm}-{exchange}"))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::paths::Paths;

    /// Host `laptop` and its peer `mailhost`, at an address of each family.
    pub(crate) fn configuration(peer_key: u8, profiles: &[Profile]) -> Configuration {
        let peer = Peer {
            name: "mailhost".parse().expect("a name"),
            addresses: ["192.0.2.1", "2001:db8::1"]
                .map(|a| a.parse().expect("an address"))
                .to_vec(),
            keys: vec![IkePublicKey::ed25519([peer_key; 32])],
            unlabelled: None,
        };
        let classes = profiles.iter().map(|profile| PeerClass {
            class: Class::new(Kind::Encryption, *profile),
            reqid: 0x7500,
            mark: SetMark {
                value: 0x0030_0000,
                mask: 0x00f0_0000,
            },
        });
        let key = IkeKey::from_seed([1; 32]);
        Configuration {
            host: "laptop".parse().expect("a name"),
            stated: vec![key.public()],
            keys: vec![Arc::new(key)],
            peers: vec![peer],
            classes: classes.collect(),
            on_demand: BTreeSet::new(),
        }
    }

    fn connection(configuration: &Configuration, hybrid: bool) -> Section {
        let paths = Paths::of(configuration);
        let path = paths.iter().next().expect("an address");
        let message = configuration.load_connection(path, hybrid);
        message
            .inner(&path.connection)
            .expect("the connection")
            .clone()
    }

    #[test]
    fn a_child_has_the_reqid_and_the_mark_of_its_class() {
        let connection = connection(&configuration(7, &[Profile::Standard]), false);
        let children = connection.inner("children").expect("children");
        let child = children.inner("encryption").expect("the class");
        assert_eq!(child.text("reqid").as_deref(), Some("29952"));
        for direction in ["set_mark_in", "set_mark_out"] {
            assert_eq!(child.text(direction).as_deref(), Some("0x300000/0xf00000"));
        }
        assert_eq!(child.text("policies").as_deref(), Some("no"));
    }

    #[test]
    fn an_unlabelled_peer_has_one_class_without_a_label() {
        let authentication = Class::new(Kind::Authentication, Profile::Standard);
        let mut configuration = configuration(7, &[Profile::Standard]);
        configuration.classes.push(PeerClass {
            class: authentication,
            reqid: 0x7501,
            mark: SetMark { value: 1, mask: 1 },
        });
        let labels = |configuration: &Configuration| {
            let connection = connection(configuration, false);
            let children = connection.inner("children").expect("children");
            let children = children.sections();
            let labels = children.map(|(name, child)| (name.to_owned(), child.text("label")));
            labels.collect::<Vec<_>>()
        };
        let label = |name: &str| (name.to_owned(), Some(name.to_owned()));
        let labelled = [label("encryption"), label("authentication")];
        assert_eq!(labels(&configuration), labelled);
        configuration.peers[0].unlabelled = Some(authentication);
        assert_eq!(
            labels(&configuration),
            [("authentication".to_owned(), None)]
        );
    }

    #[test]
    fn a_class_of_ah_proposes_ah_only() {
        let mut configuration = configuration(7, &[]);
        configuration.classes = vec![PeerClass {
            class: Class::new(Kind::Authentication, Profile::Ah),
            reqid: 0x7504,
            mark: SetMark { value: 1, mask: 1 },
        }];
        let connection = connection(&configuration, false);
        let children = connection.inner("children").expect("children");
        let child = children.inner("authentication-ah").expect("the class");
        assert_eq!(child.texts("ah_proposals"), ["sha256-x25519"]);
        assert!(child.texts("esp_proposals").is_empty());
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
