//! The tables to which a policy's `application` blocks are compiled, and their decisions.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;

use crate::class::{Class, Level};
use crate::program::ProgramName;

/// The rules of all applications, with what they share stated once.
///
/// The same policy always makes the same tables. Indices ([`Item::class`], [`Treatment::Items`],
/// signatures) hold within one set of tables only: another policy may number anew. [`Class::mark`] and
/// [`Class::number`] outlive a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The classes in use, each with the level at which it is demanded: none twice.
    pub classes: Vec<(Class, Level)>,
    /// Ports of other hosts that are reached over protected connections only: by every program that
    /// no `application` block has.
    pub destinations: Vec<Destination>,
    /// Ports of this host that are reached over protected connections only.
    pub services: Vec<ProtectedService>,
    /// The lists of items in use, none twice. In a list the first item that has both ports decides;
    /// where none has, the traffic is discarded. No item is behind one of any ports, and no list is
    /// empty.
    pub item_lists: Vec<Vec<Item>>,
    /// The applications, in the order of the policy's blocks: an `application` block has one entry.
    pub applications: Vec<Rules>,
    /// The addresses of the hosts with which SAs are negotiated. With any other address there can be
    /// none: mandatory traffic is refused, and optional traffic passes as it is.
    pub peers: BTreeSet<IpAddr>,
}

/// A TCP port of another host. Connections with it are protected from the first packet on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    /// An address of the other host.
    pub peer: IpAddr,
    /// Its port.
    pub port: u16,
    /// The class of the SAs.
    pub class: Class,
}

/// A TCP port of this host. Its packets are protected by SAs of these classes only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProtectedService {
    /// The port.
    pub port: u16,
    /// The classes. Each of them meets the demand.
    pub classes: BTreeSet<Class>,
}

/// The rules of one `application` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The programs of the block. No program is in two blocks.
    pub programs: Vec<ProgramName>,
    /// The same for applications with equal networks, and for these only. 0: all traffic has one
    /// treatment, whatever the peer and the ports.
    pub signature: u16,
    /// How the traffic with each network's addresses is treated, for the longest-prefix match: the
    /// order of the text is resolved. Sorted, no network twice. Always has 0.0.0.0/0 and ::/0, so a
    /// match is always found; what the text leaves out is [`Treatment::Discard`] there. IPv4-mapped
    /// addresses are not among them: look up the IPv4 address.
    pub networks: Vec<(IpNet, Treatment)>,
}

/// The treatment of traffic with a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// It passes without IPsec.
    Bypass,
    /// It passes in neither direction.
    Discard,
    /// By the ports: an index of [`Tables::item_lists`].
    Items(usize),
}

/// How the traffic between two ports is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// The application's own port; none: any.
    pub local_port: Option<NonZeroU16>,
    /// The peer's port; none: any.
    pub remote_port: Option<NonZeroU16>,
    /// An index of [`Tables::classes`].
    pub class: usize,
}

/// The verdict of the tables on one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes without IPsec.
    Bypass,
    /// It does not pass.
    Discard,
    /// It is protected by this class.
    Protect(Class, Level),
}

impl Tables {
    /// Returns whether there is nothing to enforce.
    pub fn is_empty(&self) -> bool {
        self.applications.is_empty() && self.classes.is_empty()
    }

    /// Adds the protection of connections with services, whichever program has them: services of this
    /// host, and destinations that this host reaches.
    pub fn add_services(
        &mut self,
        services: Vec<ProtectedService>,
        destinations: Vec<Destination>,
    ) {
        let demanded = services.iter().flat_map(|service| &service.classes);
        let reached = destinations.iter().map(|destination| &destination.class);
        for &class in demanded.chain(reached) {
            // Added behind the other classes, because items refer to classes by index.
            let wanted = (class, Level::Mandatory);
            if !self.classes.contains(&wanted) {
                self.classes.push(wanted);
            }
        }
        self.services = services;
        self.destinations = destinations;
    }

    /// The verdict on a packet between a local port of an application (an index of
    /// [`Tables::applications`]) and a port of a peer. An IPv4-mapped address is the IPv4 address
    /// that it stands for.
    ///
    /// Loopback addresses (127.0.0.0/8, ::1) are always [`Verdict::Bypass`]: the kernel never
    /// protects traffic that stays on a host, and the tables say nothing of them.
    ///
    /// # Panics
    ///
    /// When the application is none of these tables.
    pub fn treat(
        &self,
        application: usize,
        peer: IpAddr,
        local_port: u16,
        remote_port: u16,
    ) -> Verdict {
        let peer = peer.to_canonical();
        if peer.is_loopback() {
            return Verdict::Bypass;
        }
        let networks = self.applications[application].networks.iter();
        let matching = networks.filter(|(network, _)| network.contains(&peer));
        let longest = matching.max_by_key(|(network, _)| network.prefix_len());
        match longest.map(|(_, treatment)| *treatment) {
            Some(Treatment::Bypass) => Verdict::Bypass,
            None | Some(Treatment::Discard) => Verdict::Discard,
            Some(Treatment::Items(list)) => {
                let mut items = self.item_lists[list].iter();
                let item = items.find(|item| item.fits(local_port, remote_port));
                item.map_or(Verdict::Discard, |item| {
                    let (class, level) = self.classes[item.class];
                    Verdict::Protect(class, level)
                })
            }
        }
    }
}

impl Item {
    /// Returns whether the item has both ports.
    pub fn fits(&self, local_port: u16, remote_port: u16) -> bool {
        let fits = |own: Option<NonZeroU16>, port| own.is_none_or(|own| own.get() == port);
        fits(self.local_port, local_port) && fits(self.remote_port, remote_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Kind, Profile};

    const ENCRYPTED: (Class, Level) = (
        Class::new(Kind::Encryption, Profile::Standard),
        Level::Mandatory,
    );

    /// Peers of 10.0.0.0/8 are trusted, but 10.1.0.0/16 only at port 21, encrypted, and 10.1.1.0/24
    /// not at all.
    fn tables() -> Tables {
        let network = |text: &str| text.parse::<IpNet>().expect("a network");
        let item = Item {
            local_port: None,
            remote_port: NonZeroU16::new(21),
            class: 0,
        };
        Tables {
            classes: vec![ENCRYPTED],
            item_lists: vec![vec![item]],
            applications: vec![Rules {
                programs: vec![ProgramName::Name("ftp".to_owned())],
                signature: 1,
                networks: vec![
                    (network("0.0.0.0/0"), Treatment::Discard),
                    (network("10.0.0.0/8"), Treatment::Bypass),
                    (network("10.1.0.0/16"), Treatment::Items(0)),
                    (network("10.1.1.0/24"), Treatment::Discard),
                    (network("::/0"), Treatment::Bypass),
                ],
            }],
            ..Tables::default()
        }
    }

    #[test]
    fn the_longest_prefix_and_the_first_item_decide() {
        let tables = tables();
        let encrypted = Verdict::Protect(ENCRYPTED.0, ENCRYPTED.1);
        for (peer, remote, expected) in [
            ("10.2.0.1", 21, Verdict::Bypass),
            ("10.1.0.1", 21, encrypted),
            ("10.1.0.1", 22, Verdict::Discard),
            ("10.1.1.1", 21, Verdict::Discard),
            ("192.0.2.1", 21, Verdict::Discard),
            ("2001:db8::1", 21, Verdict::Bypass),
            ("::ffff:10.1.0.1", 21, encrypted),
        ] {
            let peer: IpAddr = peer.parse().expect("an address");
            assert_eq!(tables.treat(0, peer, 40000, remote), expected, "{peer}");
        }
    }

    #[test]
    fn loopback_passes_whatever_the_tables_say() {
        let mut tables = tables();
        for (_, treatment) in &mut tables.applications[0].networks {
            *treatment = Treatment::Discard;
        }
        for peer in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let peer: IpAddr = peer.parse().expect("an address");
            assert_eq!(tables.treat(0, peer, 1, 2), Verdict::Bypass, "{peer}");
        }
        let peer: IpAddr = "128.0.0.1".parse().expect("an address");
        assert_eq!(tables.treat(0, peer, 1, 2), Verdict::Discard);
    }
}
