//! `application` blocks as data, and what they say of a packet: by the order of the text, one
//! statement after the other. [`crate::Tables`] say the same of the same packet.
//!
//! The language is that of "Building an Application-aware IPsec Policy System" (USENIX Security
//! 2005), as published there, with `strong` and `ah` added.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use serde::Serialize;
use usher_base::HostName;
use usher_language::{AddressRange, AddressSet, BlockText, Name, Origin};

use crate::class::{Class, Kind, Level, Profile};
use crate::dialect::{APPLICATION, PROTECTION};
use crate::names::Names;
use crate::ports::PortPairs;
use crate::program::ProgramName;

/// The peers of a [`Network`], as written.
pub type Peers = usher_language::Peers<HostName>;

/// An `application` block: one policy for one or more programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Application {
    /// The programs. None stands in two blocks of a policy.
    pub programs: Vec<ProgramName>,
    /// The networks of their peers, in the order of the text: the first that has the peer's address
    /// decides ([`Application::addresses`]). A peer that none has is treated as
    /// [`NetworkType::Untrusted`].
    pub networks: Vec<Network>,
    /// The protections that the networks name.
    pub protections: BTreeMap<Name, Protection>,
    /// The block's head.
    pub origin: Origin,
}

/// A `network` statement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// The peers, as the text names them.
    pub peers: Peers,
    /// The addresses that the policy itself knows of it: none of a name that no `host` block has.
    pub addresses: Vec<AddressRange>,
    /// The treatment of traffic with them.
    #[serde(rename = "type")]
    pub network_type: NetworkType,
    /// Its place in the text.
    pub origin: Origin,
}

/// The treatment of traffic with a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkType {
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
    pub local: Option<NonZeroU16>,
    /// The peer's port; none is `any`.
    pub remote: Option<NonZeroU16>,
    /// Its protection by IPsec.
    pub kind: Kind,
    /// The rule for such traffic in the clear.
    pub level: Level,
    /// The algorithms.
    pub profile: Profile,
    /// Its place in the text.
    pub origin: Origin,
}

/// The verdict of an [`Application`] on one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic<'p> {
    /// It passes without IPsec.
    Bypass,
    /// It passes in neither direction.
    Discard,
    /// It is protected as this item says.
    Protect(&'p ProtectionItem),
}

/// An [`Application`] with what its names stand for.
#[derive(Clone, Debug)]
pub struct Deciding<'p> {
    application: &'p Application,
    /// The networks that decide at the moment, in the order of the text, each with its addresses.
    ///
    /// They end before the first network of a name that has never been answered, unless it is
    /// trusted. Any machine that no network before it has may be this one, so no later network,
    /// which may be a weaker one, decides about such a machine: all of them are treated as
    /// [`NetworkType::Untrusted`]. A trusted network needs no such care: what decides in its place
    /// protects as much or more.
    pub networks: Vec<(&'p Network, Vec<AddressRange>)>,
    /// The network before which they end.
    unanswered: Option<&'p Network>,
}

const ALL_V4: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V4(Ipv4Addr::BROADCAST),
];
const ALL_V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
];

impl Application {
    /// The classes by which the block has traffic protected, as far as its names have addresses.
    pub fn classes(&self, names: &Names) -> BTreeSet<Class> {
        let networks = self.deciding(names).networks.into_iter();
        let protections = networks.filter_map(|(network, _)| match &network.network_type {
            NetworkType::Protected(name) => self.protections.get(name),
            NetworkType::Trusted | NetworkType::Untrusted => None,
        });
        let items = protections.flat_map(Protection::deciding);
        items.map(ProtectionItem::class).collect()
    }

    /// The block with what its names stand for, for many questions.
    pub fn deciding(&self, names: &Names) -> Deciding<'_> {
        let unanswered = |network: &Network| network.may_be_anyone(names);
        let decide = self.networks.iter().position(unanswered);
        let decide = decide.unwrap_or(self.networks.len());
        let (networks, rest) = self.networks.split_at(decide);
        Deciding {
            networks: networks.iter().zip(self.addresses(names)).collect(),
            unanswered: rest.first(),
            application: self,
        }
    }

    /// The names of its networks that have to be looked up.
    pub fn names_to_look_up(&self) -> impl Iterator<Item = &HostName> {
        self.networks.iter().filter_map(Network::name_to_look_up)
    }

    /// The addresses of each network, in the order of the networks; of a name without an answer
    /// none.
    ///
    /// In a block without a network of IPv6 addresses, `0.0.0.0/0` has all of these too. The
    /// published language is older than IPv6's use and means "everybody else" by it: so such a
    /// block neither cuts IPv6 off nor leaves it unprotected. Names do not count, because their
    /// addresses change.
    pub fn addresses(&self, names: &Names) -> Vec<Vec<AddressRange>> {
        let [first, last] = ALL_V6;
        let every_v6 = AddressRange::new(first, last);
        let has_v6 = self.networks.iter().any(
            |network| matches!(&network.peers, Peers::Range(range) if range.first().is_ipv6()),
        );
        let addresses = self.networks.iter().map(|network| match &network.peers {
            Peers::Range(range) => {
                let is_all = [range.first(), range.last()] == ALL_V4;
                let too = every_v6.filter(|_| is_all && !has_v6);
                [Some(*range), too].into_iter().flatten().collect()
            }
            Peers::Name(name) if network.addresses.is_empty() => names.addresses(name),
            Peers::Name(_) => network.addresses.clone(),
        });
        addresses.collect()
    }

    /// The treatment of traffic between a local port and a port of a peer. An IPv4-mapped address is
    /// the IPv4 address that it stands for. Loopback addresses are always [`Traffic::Bypass`]: the
    /// kernel never protects what stays on a host.
    pub fn traffic(&self, names: &Names, peer: IpAddr, local: u16, remote: u16) -> Traffic<'_> {
        self.deciding(names).traffic(peer, local, remote).0
    }

    /// The name of the block's first program, by which messages call the block.
    pub fn name(&self) -> String {
        let first = self.programs.first();
        first.map(ToString::to_string).unwrap_or_default()
    }
}

impl<'p> Deciding<'p> {
    /// The networks that decide, each with those of its addresses that no network before it has.
    pub fn apart(&self) -> Vec<(&'p Network, Vec<AddressRange>)> {
        let mut covered = AddressSet::default();
        let networks = self.networks.iter().map(|(network, ranges)| {
            let own = ranges.iter().flat_map(|&range| {
                let own = covered.missing(range);
                covered.add(range);
                own
            });
            (*network, own.collect())
        });
        networks.collect()
    }

    /// The verdict of [`Application::traffic`], and the statement that decides: an item; a `network`;
    /// the head of a protection none of whose items has the ports; the head of the block for a peer
    /// that no network has, or the `network` whose name is unanswered. None for loopback addresses,
    /// which no statement is about.
    pub fn traffic(
        &self,
        peer: IpAddr,
        local: u16,
        remote: u16,
    ) -> (Traffic<'p>, Option<&'p Origin>) {
        let peer = peer.to_canonical();
        if peer.is_loopback() {
            return (Traffic::Bypass, None);
        }
        let application = self.application;
        let has_peer = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(peer));
        let mut networks = self.networks.iter();
        let Some((network, _)) = networks.find(|(_, ranges)| has_peer(ranges)) else {
            let unanswered = self.unanswered.map(|network| &network.origin);
            return (Traffic::Discard, unanswered.or(Some(&application.origin)));
        };
        let NetworkType::Protected(name) = &network.network_type else {
            let traffic = match network.network_type {
                NetworkType::Trusted => Traffic::Bypass,
                _ => Traffic::Discard,
            };
            return (traffic, Some(&network.origin));
        };
        let Some(protection) = application.protections.get(name) else {
            return (Traffic::Discard, Some(&network.origin));
        };
        match protection.decides(local, remote) {
            Some(item) => (Traffic::Protect(item), Some(&item.origin)),
            None => (Traffic::Discard, Some(&protection.origin)),
        }
    }
}

impl Network {
    /// The network's name, if that has to be looked up: neither addresses nor a `host` block say what it is.
    pub fn name_to_look_up(&self) -> Option<&HostName> {
        match &self.peers {
            Peers::Name(name) if self.addresses.is_empty() => Some(name),
            Peers::Name(_) | Peers::Range(_) => None,
        }
    }

    /// Returns whether the network's machines are unknown and no later network may decide about them.
    fn may_be_anyone(&self, names: &Names) -> bool {
        let is_unanswered = |name| names.get(name).is_none();
        self.network_type != NetworkType::Trusted
            && self.name_to_look_up().is_some_and(is_unanswered)
    }

    /// The treatment of traffic with the network's machines until its name is answered, for people.
    pub fn meanwhile(&self) -> &'static str {
        match self.network_type {
            NetworkType::Trusted => "the networks after it decide",
            NetworkType::Untrusted | NetworkType::Protected(_) => {
                "traffic with all peers that no network before it has is discarded"
            }
        }
    }
}

impl Protection {
    /// The items to which the items before them leave some ports to decide about.
    pub fn deciding(&self) -> Vec<&ProtectionItem> {
        let mut covered = PortPairs::default();
        let mut deciding = Vec::new();
        for item in &self.items {
            let (local, remote) = item.ports();
            if !covered.covers(local, remote) {
                deciding.push(item);
            }
            covered.add(local, remote);
        }
        deciding
    }

    /// The item that decides about these ports.
    pub fn decides(&self, local: u16, remote: u16) -> Option<&ProtectionItem> {
        let fits = |own: Option<NonZeroU16>, port| own.is_none_or(|own| own.get() == port);
        let mut items = self.items.iter();
        items.find(|item| fits(item.local, local) && fits(item.remote, remote))
    }
}

impl ProtectionItem {
    /// The class of the item.
    pub fn class(&self) -> Class {
        Class::new(self.kind, self.profile)
    }

    /// The ports of the item, local and remote.
    pub(crate) fn ports(&self) -> (Option<u16>, Option<u16>) {
        (
            self.local.map(NonZeroU16::get),
            self.remote.map(NonZeroU16::get),
        )
    }
}

impl fmt::Display for NetworkType {
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
        let ports = self.ports();
        let (local, remote) = (port(ports.0), port(ports.1));
        let (kind, level) = (self.kind, self.level);
        write!(
            formatter,
            "localport={local} remoteport={remote} {kind} {level}"
        )?;
        match self.profile {
            Profile::Standard => Ok(()),
            Profile::Strong | Profile::Ah => write!(formatter, " {}", self.profile),
        }
    }
}

impl Application {
    /// The `application` block in its canonical form: reads as the same block.
    pub fn to_text(&self) -> String {
        let programs: Vec<String> = self.programs.iter().map(ToString::to_string).collect();
        let mut block = BlockText::new(APPLICATION, programs.join(", "));
        for network in &self.networks {
            let value = format_args!("{} {}", network.peers, network.network_type);
            block.statement("network", value);
        }
        for (name, protection) in &self.protections {
            block.open(PROTECTION, name);
            for item in &protection.items {
                block.word(&item.to_string());
            }
            block.close();
        }
        block.end()
    }
}
