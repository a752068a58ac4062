//! `application` blocks: how the traffic of programs is protected by IPsec.
//!
//! The language is that of "Building an Application-aware IPsec Policy System" (USENIX Security
//! 2005), as published there. This version reads, checks and explains such blocks; it does not
//! protect traffic.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Serialize;
use usher_base::HostName;
use usher_language::{AddressRange, Name, Origin, words};

/// An `application` block: one policy for one or more programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApplicationPolicy {
    /// The programs. None stands in two blocks of a policy.
    pub applications: Vec<Application>,
    /// Where their peers are, in the order of the text: the first that has the peer's address
    /// decides. A peer that none has is treated as [`Treatment::Untrusted`].
    pub networks: Vec<Network>,
    /// The protections that the networks name.
    pub protections: BTreeMap<Name, Protection>,
    /// The block's head.
    pub origin: Origin,
}

/// A program whose traffic has a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Application {
    /// The name of its file, in whatever folder it is.
    Name(String),
    /// The absolute path of its file.
    Path(String),
}

/// A `network` statement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// What the text says.
    pub peers: Peers,
    /// The addresses that it covers. Of a name that no `host` block has, none until
    /// [`crate::Policy::look_up_names`] has been asked.
    pub addresses: Vec<AddressRange>,
    /// What becomes of traffic with them.
    pub treatment: Treatment,
    /// Where it is written.
    pub origin: Origin,
}

/// The peers of a [`Network`], as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peers {
    /// One address, or all from one to another.
    Range(AddressRange),
    /// A host of the policy, or a name to be looked up.
    Name(HostName),
}

/// What becomes of traffic with a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Treatment {
    /// It passes without IPsec.
    Trusted,
    /// It is discarded.
    Untrusted,
    /// As the protection of this name in the same block says.
    Protected(Name),
}

/// A `protection` block inside an `application` block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Protection {
    /// Its items in the order of the text: the first whose ports are those of the traffic decides.
    /// Traffic that fits none is discarded.
    pub items: Vec<ProtectionItem>,
    /// The block's head.
    pub origin: Origin,
}

/// How the traffic between two ports is protected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProtectionItem {
    /// The application's own port; none is `any`.
    pub local: Option<u16>,
    /// The peer's port; none is `any`.
    pub remote: Option<u16>,
    /// What IPsec does with it.
    pub transform: Transform,
    /// Whether it may pass without.
    pub level: Level,
    /// Where it is written.
    pub origin: Origin,
}

words! {
    /// What IPsec does with traffic.
    pub enum Transform {
        /// Nobody else can read or change it: encryption includes authentication.
        Encryption = "encryption",
        /// Nobody else can change it.
        Authentication = "authentication",
    }

    /// Whether traffic may pass without protection.
    pub enum Level {
        /// Protected when both sides can.
        Optional = "optional",
        /// Never in the clear.
        Mandatory = "mandatory",
    }
}

/// What an [`ApplicationPolicy`] says of one packet's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic<'p> {
    /// It passes without IPsec.
    Bypass,
    /// It passes in neither direction.
    Discard,
    /// It is protected as this item says.
    Protect(&'p ProtectionItem),
}

impl ApplicationPolicy {
    /// What becomes of traffic between a local port and a port of a peer. An IPv4-mapped address is
    /// the IPv4 address that it stands for.
    pub fn traffic(&self, peer: IpAddr, local: u16, remote: u16) -> Traffic<'_> {
        let peer = peer.to_canonical();
        let has_peer = |network: &&Network| {
            let mut ranges = network.addresses.iter();
            ranges.any(|range| range.contains(peer))
        };
        let network = self.networks.iter().find(has_peer);
        match network.map(|network| &network.treatment) {
            Some(Treatment::Trusted) => Traffic::Bypass,
            None | Some(Treatment::Untrusted) => Traffic::Discard,
            Some(Treatment::Protected(name)) => self
                .protections
                .get(name)
                .and_then(|protection| protection.decides(local, remote))
                .map_or(Traffic::Discard, Traffic::Protect),
        }
    }
}

impl Protection {
    /// The item that decides about these ports.
    pub fn decides(&self, local: u16, remote: u16) -> Option<&ProtectionItem> {
        let fits = |pattern: Option<u16>, port| pattern.is_none_or(|pattern| pattern == port);
        let mut items = self.items.iter();
        items.find(|item| fits(item.local, local) && fits(item.remote, remote))
    }
}

impl Application {
    /// A path, or the name of a file: letters, digits, `_`, `.`, `+` and `-`, at most 255, not
    /// beginning with `-`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            return is_plain_path(text).then(|| Self::Path(text.to_owned()));
        }
        let name = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte));
        let named = name && (1..=255).contains(&text.len());
        (named && !text.starts_with('-') && !["any", ".", ".."].contains(&text))
            .then(|| Self::Name(text.to_owned()))
    }
}

/// An absolute path without `.`, `..`, `//` and `/` at its end.
pub(crate) fn is_plain_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|path| {
        path.split('/')
            .all(|component| !["", ".", ".."].contains(&component))
    })
}

impl fmt::Display for Application {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) | Self::Path(text) => formatter.write_str(text),
        }
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) => range.fmt(formatter),
            Self::Name(name) => name.fmt(formatter),
        }
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trusted => formatter.write_str("trusted"),
            Self::Untrusted => formatter.write_str("untrusted"),
            Self::Protected(name) => write!(formatter, "protected {name}"),
        }
    }
}

impl fmt::Display for ProtectionItem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port =
            |port: Option<u16>| port.map_or_else(|| "any".to_owned(), |port| port.to_string());
        let (transform, level) = (self.transform, self.level);
        let (local, remote) = (port(self.local), port(self.remote));
        write!(
            formatter,
            "localport={local} remoteport={remote} {transform} {level}"
        )
    }
}
