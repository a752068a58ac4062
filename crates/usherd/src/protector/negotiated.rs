//! The hosts that have negotiated SAs while the policy said `optional`, by class, in memory and in a file.
//! While a policy says `optional`, such a host is held to its protection, also after a reboot: an attacker on
//! the path who drops IKE from the start must not bring its traffic back into the clear.
//!
//! A host is forgotten when its `host` block, or its `ike-key`, leaves the policy, or when its block says
//! `hold no`, whether or not that policy protects anything. A block with one of the host's keys is its block,
//! under any name, so a new name does not free the host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_ike::Peer;
use usher_policy::Host;
use usher_policy::protection::Class;

use crate::kept;

/// The largest file, in bytes: more than the hosts that can be held (65,536) need, with names of any length.
/// So each file that is written can be read again.
const LARGEST_FILE: u64 = 64 << 20;

/// The names of classes, each with the time since when a host is held to it, in seconds since 1970.
type Classes = BTreeMap<String, u64>;

/// A host's public keys, as text: its host key and its IKE keys.
type Keys = BTreeSet<String>;

/// What a host has negotiated, and the keys that its block had last.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    classes: Classes,
    keys: Keys,
}

/// A host in the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Held(Held),
    /// A host as earlier versions have written it.
    Since(Classes),
    /// A host as still earlier versions have written it: the names of its classes.
    Named(BTreeSet<String>),
}

/// The hosts, with the classes that each has negotiated.
#[derive(Debug, Default)]
pub(super) struct Negotiated {
    hosts: BTreeMap<HostName, Held>,
    /// The keys of the hosts with which the policy has SAs negotiated.
    keys: BTreeMap<HostName, Keys>,
    /// The file does not have the present hosts yet.
    is_unsaved: bool,
    /// The reason that the file could not be read or written.
    trouble: Option<String>,
}

impl Negotiated {
    /// Reads the file. Without one no host has negotiated yet. A file that cannot be read counts as
    /// none, and is reported as a trouble until it is written again.
    pub(super) fn load(path: &Path) -> Self {
        let stored = kept::load_kept::<BTreeMap<HostName, Stored>>(path, LARGEST_FILE);
        let now = unix_time();
        let (hosts, trouble) = match stored {
            Ok(stored) => {
                let without_keys = |classes| Held {
                    classes,
                    keys: Keys::new(),
                };
                let hosts = stored.into_iter().map(|(name, stored)| {
                    let held = match stored {
                        Stored::Held(held) => held,
                        Stored::Since(classes) => without_keys(classes),
                        Stored::Named(names) => {
                            without_keys(names.into_iter().map(|class| (class, now)).collect())
                        }
                    };
                    (name, held)
                });
                (hosts.collect(), None)
            }
            Err(error) => {
                let trouble = format!(
                    "{} is unusable ({error}): hosts that have negotiated before are served in the \
                     clear where the policy says `optional`, until they negotiate again",
                    path.display()
                );
                tracing::error!("{trouble}");
                (BTreeMap::new(), Some(trouble))
            }
        };
        Self {
            hosts,
            keys: BTreeMap::new(),
            is_unsaved: false,
            trouble,
        }
    }

    /// Moves hosts to the names that their keys have in a policy with these blocks. Forgets no host, so that
    /// the former policy can come back.
    pub(super) fn follow<'h>(&mut self, hosts: impl Iterator<Item = &'h Host>) {
        self.keys = hosts.map(|host| (host.name.clone(), keys(host))).collect();
        let by_key = self.keys.iter();
        let by_key = by_key.flat_map(|(name, keys)| keys.iter().map(move |key| (key, name)));
        let by_key: BTreeMap<&String, &HostName> = by_key.collect();
        let mut followed: BTreeMap<HostName, Held> = BTreeMap::new();
        for (name, held) in &self.hosts {
            let has_keys = held.keys.iter().filter_map(|key| by_key.get(key).copied());
            let mut names: BTreeSet<&HostName> = has_keys.collect();
            // A host keeps its name if no block has one of its keys: all of them may have been replaced, or
            // none is known.
            if names.is_empty() {
                names.insert(name);
            }
            for name in names {
                let keys = self.keys.get(name).unwrap_or(&held.keys);
                let entry = followed.entry(name.clone()).or_default();
                entry.keys.clone_from(keys);
                for (class, since) in &held.classes {
                    let first = entry.classes.entry(class.clone()).or_insert(*since);
                    *first = (*first).min(*since);
                }
            }
        }
        self.is_unsaved |= followed != self.hosts;
        self.hosts = followed;
    }

    /// Forgets all hosts but these.
    pub(super) fn keep_only(&mut self, names: &BTreeSet<HostName>) {
        let before = self.hosts.len();
        self.hosts.retain(|name, _| names.contains(name));
        self.is_unsaved |= self.hosts.len() < before;
    }

    /// Notes that a host has negotiated a class that the policy has as `optional`.
    pub(super) fn insert(&mut self, host: HostName, class: Class) {
        let keys = self.keys.get(&host);
        let held = self.hosts.entry(host).or_insert_with(|| Held {
            classes: Classes::new(),
            keys: keys.cloned().unwrap_or_default(),
        });
        held.classes
            .entry(class.name().to_owned())
            .or_insert_with(|| {
                self.is_unsaved = true;
                unix_time()
            });
    }

    /// Notes the hosts that already have SAs of `optional` classes: charon gives no notice of these again.
    /// `receivers`: class and destination of each SA.
    pub(super) fn note_present(
        &mut self,
        receivers: &BTreeSet<(Class, IpAddr)>,
        hosts: &[Peer],
        classes: &[Class],
    ) {
        for host in hosts {
            for class in classes {
                let mut addresses = host.addresses.iter().map(IpAddr::to_canonical);
                if addresses.any(|address| receivers.contains(&(*class, address))) {
                    self.insert(host.name.clone(), *class);
                }
            }
        }
    }

    /// Since when a host is held to a class, in seconds since 1970.
    pub(super) fn since(&self, host: &HostName, class: &str) -> Option<u64> {
        self.hosts.get(host)?.classes.get(class).copied()
    }

    /// The addresses to hold, each with its class: all addresses of each of these peers that has negotiated
    /// the class.
    pub(super) fn held(&self, peers: &[Peer], classes: &[Class]) -> Vec<(Class, IpAddr)> {
        let mut held = Vec::new();
        for peer in peers {
            let Some(negotiated) = self.hosts.get(&peer.name) else {
                continue;
            };
            let classes = classes.iter();
            for class in classes.filter(|class| negotiated.classes.contains_key(class.name())) {
                let addresses = peer.addresses.iter().map(IpAddr::to_canonical);
                held.extend(addresses.map(|address| (*class, address)));
            }
        }
        held
    }

    /// Writes the file, if something has changed. A failure is a trouble, and the next call tries again.
    pub(super) fn save(&mut self, path: &Path) {
        if !self.is_unsaved {
            return;
        }
        let written = kept::save(path, &self.hosts);
        self.is_unsaved = written.is_err();
        let trouble = written.err().map(|error| {
            format!(
                "cannot write {} ({error}): after a reboot hosts that have negotiated are served in the \
                 clear where the policy says `optional`, until they negotiate again",
                path.display()
            )
        });
        if let Some(trouble) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            tracing::error!("{trouble}");
        }
        self.trouble = trouble;
    }

    /// The reason that the file could not be read or written.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// The keys by which a host is known again.
fn keys(host: &Host) -> Keys {
    let keys = host.ike_keys.iter().map(ToString::to_string);
    keys.chain(host.keys.iter().map(ToString::to_string))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_ike::IkePublicKey;
    use usher_policy::protection::{Kind, Profile};
    use usher_proto::host_key::HostPublicKey;

    const ENCRYPTION: Class = Class::new(Kind::Encryption, Profile::Standard);
    const AUTHENTICATION: Class = Class::new(Kind::Authentication, Profile::Standard);

    fn peer(name: &str, last: u8) -> Peer {
        Peer {
            name: name.parse().expect("a name"),
            addresses: vec![IpAddr::from([192, 0, 2, last])],
            keys: vec![IkePublicKey::ed25519([last; 32])],
            unlabelled: None,
        }
    }

    #[test]
    fn hosts_that_negotiated_are_remembered_by_class() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("negotiated.json");
        let peers = [peer("a", 1), peer("b", 2)];
        let mut first = Negotiated::load(&path);
        first.insert("a".parse().expect("a name"), ENCRYPTION);
        first.save(&path);
        assert_eq!(first.trouble(), None);
        let mut next = Negotiated::load(&path);
        let all = [ENCRYPTION, AUTHENTICATION];
        assert_eq!(
            next.held(&peers, &all),
            [(ENCRYPTION, peers[0].addresses[0])]
        );
        assert!(next.held(&peers, &[AUTHENTICATION]).is_empty());
        // The host is forgotten with its block, for good.
        next.keep_only(&BTreeSet::from([peers[1].name.clone()]));
        next.save(&path);
        assert!(Negotiated::load(&path).held(&peers, &all).is_empty());
    }

    /// A block whose keys are made of these bytes.
    fn block(name: &str, key: u8, ike_key: u8) -> Host {
        Host {
            name: name.parse().expect("a name"),
            addresses: vec![IpAddr::from([192, 0, 2, key])],
            keys: vec![HostPublicKey::from_bytes([key; 32])],
            ike_keys: vec![IkePublicKey::ed25519([ike_key; 32])],
            is_held: true,
            unlabelled: None,
            control: 3440,
            loopback: Vec::new(),
        }
    }

    // Threat model: P60
    #[test]
    fn a_host_stays_held_under_another_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("negotiated.json");
        let mut negotiated = Negotiated::load(&path);
        negotiated.follow([block("a", 1, 11), block("b", 2, 12)].iter());
        negotiated.insert("a".parse().expect("a name"), ENCRYPTION);
        negotiated.save(&path);
        // The host stays held by a protector that has started since, even with another IKE key as well. The
        // former name belongs to another host now.
        let mut next = Negotiated::load(&path);
        let renamed = [block("c", 1, 13), block("a", 3, 14)];
        next.follow(renamed.iter());
        next.keep_only(&renamed.iter().map(|host| host.name.clone()).collect());
        let held = |negotiated: &Negotiated| -> Vec<String> {
            let hosts = negotiated.hosts.keys();
            hosts.map(ToString::to_string).collect()
        };
        assert_eq!(held(&next), ["c"]);
        next.save(&path);
        // Both keys can be replaced, one after the other, or at once under the same name.
        let mut next = Negotiated::load(&path);
        next.follow([block("d", 4, 13)].iter());
        next.follow([block("d", 5, 15)].iter());
        assert_eq!(held(&next), ["d"]);
        // The twin: a host with other keys and another name is another host.
        let stranger = block("e", 6, 16);
        next.follow([stranger.clone()].iter());
        next.keep_only(&BTreeSet::from([stranger.name]));
        assert_eq!(held(&next), [""; 0]);
    }

    #[test]
    fn a_rename_that_is_taken_back_leaves_the_host_held() {
        let mut negotiated = Negotiated::default();
        let names = ["a", "b"];
        let policies = [[block("a", 1, 11)], [block("b", 1, 11)]];
        negotiated.follow(policies[0].iter());
        negotiated.insert("a".parse().expect("a name"), ENCRYPTION);
        for turn in [1, 0] {
            negotiated.follow(policies[turn].iter());
            let name = names[turn].parse().expect("a name");
            assert!(negotiated.since(&name, "encryption").is_some(), "{name}");
            let former = names[1 - turn].parse().expect("a name");
            assert_eq!(negotiated.since(&former, "encryption"), None);
        }
    }

    #[test]
    fn hosts_that_have_sas_already_are_noted() {
        let peers = [peer("a", 1), peer("b", 2)];
        let mut negotiated = Negotiated::default();
        let receivers = BTreeSet::from([
            (ENCRYPTION, peers[0].addresses[0]),
            (AUTHENTICATION, peers[1].addresses[0]),
        ]);
        negotiated.note_present(&receivers, &peers, &[ENCRYPTION]);
        let held = [(ENCRYPTION, peers[0].addresses[0])];
        assert_eq!(negotiated.held(&peers, &Class::ALL), held);
    }

    #[test]
    fn the_file_of_an_earlier_version_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("negotiated.json");
        std::fs::write(&path, r#"{"a":["encryption"]}"#).expect("a file");
        let mut negotiated = Negotiated::load(&path);
        assert_eq!(negotiated.trouble(), None);
        let peers = [peer("a", 1), peer("b", 2)];
        let held = [(ENCRYPTION, peers[0].addresses[0])];
        assert_eq!(negotiated.held(&peers, &Class::ALL), held);
        assert!(negotiated.since(&peers[0].name, "encryption") > Some(0));
        negotiated.insert(peers[1].name.clone(), AUTHENTICATION);
        negotiated.save(&path);
        let next = Negotiated::load(&path);
        assert_eq!(
            next.held(&peers, &Class::ALL),
            negotiated.held(&peers, &Class::ALL)
        );
        assert_eq!(next.since(&peers[1].name, "encryption"), None);
    }

    #[test]
    fn the_file_of_as_many_hosts_as_can_be_held_is_read() {
        const HELD: usize = 65_536;
        let classes = Class::ALL.map(|class| (class.name().to_owned(), u64::MAX));
        let mut host = block("a", 1, 2);
        let ike_keys = (2_u8..).take(usher_policy::MAXIMUM_IKE_KEYS);
        let of_both = ike_keys.flat_map(|key| {
            let number = usher_ike::IkeKey::from_secret_number([key; 32]);
            let ecdsa = number.expect("below the order of the curve").public();
            [IkePublicKey::ed25519([key; 32]), ecdsa]
        });
        host.ike_keys = of_both.collect();
        let all = Held {
            classes: classes.into(),
            keys: keys(&host),
        };
        let longest: HostName = "a"
            .repeat(HostName::MAXIMUM_LENGTH)
            .parse()
            .expect("a name");
        let one = serde_json::to_vec(&BTreeMap::from([(longest, all)])).expect("a host");
        assert!((one.len() * HELD) as u64 <= LARGEST_FILE);
    }

    #[test]
    fn a_broken_file_is_a_trouble_until_it_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("negotiated.json");
        std::fs::write(&path, "{").expect("a file");
        let mut negotiated = Negotiated::load(&path);
        assert!(
            negotiated
                .trouble()
                .is_some_and(|words| words.contains("unusable"))
        );
        negotiated.insert("a".parse().expect("a name"), ENCRYPTION);
        negotiated.save(&folder.path().join("no-folder/negotiated.json"));
        assert!(
            negotiated
                .trouble()
                .is_some_and(|words| words.contains("cannot write"))
        );
        negotiated.save(&path);
        assert_eq!(negotiated.trouble(), None);
    }
}
