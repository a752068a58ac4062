//! `host` blocks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use usher_base::HostName;
use usher_language::{Declared, Field, Fields, Item, Location, Reporter, Unique};
use usher_protection::{IkeAlgorithm, IkeKeyError, IkePublicKey};
use usher_proto::HostPublicKey;

use crate::limits::{
    DEFAULT_CONTROL_PORT, MAXIMUM_HOST_ADDRESSES, MAXIMUM_HOST_KEYS, MAXIMUM_IKE_KEYS,
};
use crate::mistake::PolicyMistake;
use crate::model::Host;

/// Remembers what no two hosts may share.
#[derive(Default)]
pub(super) struct HostChecker {
    /// Addresses of hosts, and loopback addresses at which the proxy stands for hosts. No two are alike.
    addresses: Unique<IpAddr>,
    /// Host keys and IKE keys of all hosts. No two are alike.
    claimed_keys: Unique<IkePublicKey>,
    controls: BTreeMap<u16, ControlPort>,
}

/// A port that services must leave to the control channel.
pub(super) enum ControlPort {
    /// The place of its `control` statement.
    Written(Location),
    /// The host whose block leaves the port at the default.
    Default(HostName),
}

impl HostChecker {
    pub(super) fn check(
        &mut self,
        declared: Declared<'_, HostName>,
        reporter: &Reporter<'_>,
    ) -> Option<Host> {
        let fields = Fields::read(declared.block, reporter);
        let addresses = fields.one("address").map(|field| self.addresses(field));
        let keys = fields.one("key").map(|field| self.keys(field));
        let ike_keys = fields.one("ike-key").map(|field| self.ike_keys(field));
        let loopback = fields.one("loopback").map(|field| self.loopback(field));
        let name = declared.name;
        let control = match (fields.one("control"), &name) {
            (Some(field), _) => {
                let written = field.items().next();
                written.map(|item| ControlPort::Written(item.location))
            }
            (None, name) => name.clone().map(ControlPort::Default),
        };
        let port = fields.number("control").unwrap_or(DEFAULT_CONTROL_PORT);
        if let Some(control) = control {
            self.controls.entry(port).or_insert(control);
        }
        Some(Host {
            name: name?,
            addresses: addresses?,
            keys: keys.filter(|keys| !keys.is_empty())?,
            ike_keys: ike_keys.unwrap_or_default(),
            is_held: fields.word("hold") != Some("no"),
            unlabelled: fields
                .word("unlabelled")
                .and_then(usher_protection::Kind::of_word),
            control: port,
            loopback: loopback.unwrap_or_default(),
        })
    }

    /// The control ports of all hosts checked so far.
    pub(super) fn controls(self) -> BTreeMap<u16, ControlPort> {
        self.controls
    }

    fn addresses(&mut self, field: &Field<'_>) -> Vec<IpAddr> {
        if field.has_too_many(MAXIMUM_HOST_ADDRESSES, ": those that others reach best") {
            return Vec::new();
        }
        let addresses = field.words().filter_map(|(word, item)| {
            let Ok(address) = word.parse::<IpAddr>() else {
                let found = word.into();
                return field.refuse(item, PolicyMistake::InvalidAddress { found });
            };
            match mistake(address) {
                Some(mistake) => field.refuse(item, mistake),
                None => self.claim(address, item, field),
            }
        });
        addresses.collect()
    }

    fn loopback(&mut self, field: &Field<'_>) -> Vec<Ipv4Addr> {
        const TAKEN: [[u8; 4]; 3] = [[127, 0, 0, 0], [127, 0, 0, 1], [127, 255, 255, 255]];
        let usable =
            |address: &Ipv4Addr| address.is_loopback() && !TAKEN.contains(&address.octets());
        let addresses = field.words().filter_map(|(word, item)| {
            match word.parse::<Ipv4Addr>().ok().filter(usable) {
                Some(address) => self.claim(address.into(), item, field).and(Some(address)),
                None => {
                    let found = word.into();
                    field.refuse(item, PolicyMistake::InvalidLoopback { found })
                }
            }
        });
        addresses.collect()
    }

    fn claim(&mut self, address: IpAddr, item: &Item, field: &Field<'_>) -> Option<IpAddr> {
        let taken = |first| PolicyMistake::DuplicateAddress { address, first };
        self.addresses.take(address, item, field.reporter, taken)?;
        Some(address)
    }

    fn keys(&mut self, field: &Field<'_>) -> Vec<HostPublicKey> {
        let hint = ": its key, and the one that takes its place";
        if field.has_too_many(MAXIMUM_HOST_KEYS, hint) {
            return Vec::new();
        }
        let keys = field.texts().filter_map(|(text, item)| {
            let Ok(key) = HostPublicKey::from_openssh(text) else {
                return field.refuse(item, PolicyMistake::InvalidHostKey);
            };
            self.claim_key(IkePublicKey::ed25519(*key.as_bytes()), item, field)?;
            Some(key)
        });
        keys.collect()
    }

    fn ike_keys(&mut self, field: &Field<'_>) -> Vec<IkePublicKey> {
        let hint = ": of each algorithm its key, and the one that takes its place";
        if field.has_too_many(MAXIMUM_IKE_KEYS * IkeAlgorithm::ALL.len(), hint) {
            return Vec::new();
        }
        let mut keys: Vec<IkePublicKey> = Vec::new();
        for (text, item) in field.texts() {
            let key = match text.parse::<IkePublicKey>() {
                Ok(key) => self.claim_key(key, item, field),
                Err(IkeKeyError::NotAKey) => field.refuse(item, PolicyMistake::InvalidIkeKey),
                Err(IkeKeyError::OtherAlgorithm(algorithm)) => {
                    let algorithm = algorithm.to_string();
                    field.refuse(item, PolicyMistake::OtherIkeKey { algorithm })
                }
            };
            let Some(key) = key else { continue };
            let algorithm = key.algorithm();
            let mut same = keys.iter().filter(|key| key.algorithm() == algorithm);
            match same.nth(MAXIMUM_IKE_KEYS - 1) {
                None => keys.push(key),
                Some(_) => {
                    let mistake = PolicyMistake::TooManyIkeKeys { algorithm };
                    let _none: Option<IkePublicKey> = field.refuse(item, mistake);
                }
            }
        }
        keys
    }

    fn claim_key(
        &mut self,
        key: IkePublicKey,
        item: &Item,
        field: &Field<'_>,
    ) -> Option<IkePublicKey> {
        let taken = |first| PolicyMistake::DuplicateKey { first };
        self.claimed_keys.take(key, item, field.reporter, taken)?;
        Some(key)
    }
}

/// The mistake if an address cannot be that of a host.
fn mistake(address: IpAddr) -> Option<PolicyMistake> {
    let v4 = |is: fn(Ipv4Addr) -> bool| matches!(address, IpAddr::V4(address) if is(address));
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let fault = if address.is_unspecified() {
        "is no machine's address"
    } else if address.is_multicast() || v4(|address| address.is_broadcast()) {
        "is not the address of one machine"
    } else if v4(|address| address.octets()[0] >= 240) {
        // RFC 1112: the keeper's own listeners are bound there.
        "is in the reserved 240.0.0.0/4, which Usher's listeners use"
    } else if address.to_canonical() != address {
        return Some(PolicyMistake::MappedAddress { address });
    } else if is_link_local {
        // RFC 4291, section 2.5.6.
        "is link-local and means nothing without an interface"
    } else {
        return None;
    };
    Some(PolicyMistake::UnusableAddress { address, fault })
}
