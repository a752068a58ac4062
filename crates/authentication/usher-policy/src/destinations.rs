//! `connect` of a service: where its processes may connect, and the same as tables that a kernel
//! looks up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv4Subnets;
use serde::Serialize;
use usher_base::HostName;
use usher_language::{AddressRange, Origin, address_from_number, address_number};

/// Peers, as written.
pub type Peers = usher_language::Peers<HostName>;

/// Limit of entries of `connect`.
pub const MAXIMUM_DESTINATIONS: usize = 256;

/// Limit of entries of the kernel's table for one service: [`DestinationTable::size`].
pub const MAXIMUM_DESTINATION_TABLE: usize = 16_384;

/// The destinations to which the processes of a service may connect; without entries, none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Destinations {
    /// The permitted destinations, in the order of the text.
    pub entries: Vec<Destination>,
}

/// Addresses, each with the same ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Destination {
    /// As written; a name is that of one of the policy's hosts.
    pub peers: Peers,
    /// The addresses.
    pub addresses: Vec<AddressRange>,
    /// The ports; none: all.
    pub ports: Option<PortRange>,
    /// Its place in the text, which is no part of its meaning.
    #[serde(skip)]
    pub origin: Origin,
}

/// All ports from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest; not below the first.
    pub last: u16,
}

impl Destinations {
    /// Whether a process of the service may connect to an address and port. An IPv4-mapped address
    /// is the IPv4 address that it stands for. The address of zeros, which the kernel takes for one
    /// of this host's, is never permitted.
    pub fn permits(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        let mut entries = self.entries.iter();
        !address.is_unspecified() && entries.any(|entry| entry.contains(address, port))
    }

    /// The destinations as a table of prefixes. The longest prefix of an address decides, and so does that of
    /// a port.
    pub fn table(&self) -> DestinationTable {
        let mut table = DestinationTable::default();
        let mut sets: BTreeMap<Ports, usize> = BTreeMap::new();
        for Area { addresses, ports } in areas(self.entries.iter()) {
            let ports = *sets.entry(ports).or_insert_with_key(|ports| {
                let prefixes = ports
                    .0
                    .iter()
                    .flat_map(|&(first, last)| prefixes(first, last));
                table.ports.push(prefixes.collect());
                table.ports.len() - 1
            });
            let networks = addresses.networks();
            let network = networks.map(|net| (net.network(), net.prefix_len().into(), ports));
            table.networks.extend(network);
        }
        table
    }

    /// The entries that permit nothing beyond the others. Of two equal entries it is the second.
    pub(crate) fn needless(&self) -> Vec<&Destination> {
        let mut kept: Vec<bool> = vec![true; self.entries.len()];
        for (index, entry) in self.entries.iter().enumerate().rev() {
            let entries = self.entries.iter().zip(&kept).enumerate();
            let others = entries.filter(|(other, (_, kept))| **kept && *other != index);
            let others: Vec<Area> = areas(others.map(|(_, (other, _))| other));
            kept[index] = !areas(std::iter::once(entry))
                .iter()
                .all(|area| area.is_covered(&others));
        }
        let needless = self.entries.iter().zip(kept);
        needless
            .filter_map(|(entry, kept)| (!kept).then_some(entry))
            .collect()
    }
}

impl Destination {
    fn contains(&self, address: IpAddr, port: u16) -> bool {
        let mut addresses = self.addresses.iter();
        let ports = |ports: PortRange| (ports.first..=ports.last).contains(&port);
        addresses.any(|range| range.contains(address)) && self.ports.is_none_or(ports)
    }
}

/// [`Destinations`] by prefixes, none of which is within another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationTable {
    /// The first address of a network, the length of its prefix in bits, and which of `ports` are
    /// permitted there.
    pub networks: Vec<(IpAddr, u32, usize)>,
    /// Sets of ports: the first of those that share a prefix, and its length in bits.
    pub ports: Vec<Vec<(u16, u32)>>,
}

impl DestinationTable {
    /// How many entries it has.
    pub fn size(&self) -> usize {
        self.networks.len() + self.ports.iter().map(Vec::len).sum::<usize>()
    }
}

/// Addresses with the ports that are permitted at each of them.
struct Area {
    addresses: AddressRange,
    ports: Ports,
}

impl Area {
    /// Whether areas, which do not overlap and are in order, contain all of this one.
    fn is_covered(&self, by: &[Area]) -> bool {
        let last = address_number(self.addresses.last());
        let mut next = address_number(self.addresses.first());
        for area in by {
            let (start, end) = (
                address_number(area.addresses.first()),
                address_number(area.addresses.last()),
            );
            let family = self.addresses.first().is_ipv4() == area.addresses.first().is_ipv4();
            if !family || end < next {
                continue;
            }
            if start > next || !area.ports.covers(&self.ports) {
                return false;
            }
            if end >= last {
                return true;
            }
            next = end + 1;
        }
        false
    }
}

/// A set of ports: ranges in order, which neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Ports(Vec<(u16, u16)>);

impl Ports {
    fn of<'d>(entries: impl Iterator<Item = &'d Destination>) -> Self {
        let ranges = entries.map(|entry| match entry.ports {
            Some(PortRange { first, last }) => (first, last),
            None => (0, u16::MAX),
        });
        let mut ranges: Vec<(u16, u16)> = ranges.collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if before.1.saturating_add(1) >= first => {
                    before.1 = before.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    fn covers(&self, other: &Self) -> bool {
        let within = |&(first, last): &(u16, u16)| {
            let mut ranges = self.0.iter();
            ranges.any(|range| range.0 <= first && last <= range.1)
        };
        other.0.iter().all(within)
    }
}

/// The destinations that entries permit together, as areas in the order of their addresses, IPv4 first. No
/// two overlap, and areas that touch have different ports.
fn areas<'d>(entries: impl Iterator<Item = &'d Destination>) -> Vec<Area> {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for entry in entries {
        for &range in &entry.addresses {
            match range.first() {
                IpAddr::V4(_) => v4.push((range, entry)),
                IpAddr::V6(_) => v6.push((range, entry)),
            }
        }
    }
    let mut areas = areas_of_family(&v4);
    areas.append(&mut areas_of_family(&v6));
    areas
}

fn areas_of_family(entries: &[(AddressRange, &Destination)]) -> Vec<Area> {
    let Some((any, _)) = entries.first() else {
        return Vec::new();
    };
    let family = any.first();
    let highest = match family {
        IpAddr::V4(_) => address_number(Ipv4Addr::BROADCAST.into()),
        IpAddr::V6(_) => address_number(Ipv6Addr::from(u128::MAX).into()),
    };
    // All addresses from one start to the next are in the same entries.
    let mut starts = BTreeSet::new();
    for (range, _) in entries {
        starts.insert(address_number(range.first()));
        let last = address_number(range.last());
        if last < highest {
            starts.insert(last + 1);
        }
    }
    let starts: Vec<u128> = starts.into_iter().collect();
    let mut areas: Vec<Area> = Vec::new();
    for (index, &first) in starts.iter().enumerate() {
        let last = starts.get(index + 1).map_or(highest, |next| next - 1);
        let here = address_from_number(family, first);
        let present = entries.iter().filter(|(range, _)| range.contains(here));
        let ports = Ports::of(present.map(|(_, entry)| *entry));
        if ports.0.is_empty() {
            continue;
        }
        match areas.last_mut() {
            Some(Area {
                addresses,
                ports: before,
            }) if *before == ports && address_number(addresses.last()) + 1 == first => {
                *addresses = addresses.part(address_number(addresses.first()), last);
            }
            _ => areas.push(Area {
                addresses: any.part(first, last),
                ports,
            }),
        }
    }
    areas
}

/// The fewest prefixes that together cover the ports from `first` to `last`: the first port of each and the
/// prefix's length. Ports are the low half of an IPv4 address here.
fn prefixes(first: u16, last: u16) -> impl Iterator<Item = (u16, u32)> {
    let [first, last] = [first, last].map(|port| Ipv4Addr::from(u32::from(port)));
    Ipv4Subnets::new(first, last, 16).map(|prefix| {
        let [_, _, high, low] = prefix.network().octets();
        (
            u16::from_be_bytes([high, low]),
            u32::from(prefix.prefix_len()) - 16,
        )
    })
}

/// As the language has it.
impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peers.fmt(formatter)?;
        match self.ports {
            None => Ok(()),
            Some(PortRange { first, last }) if first == last => write!(formatter, " port {first}"),
            Some(PortRange { first, last }) => write!(formatter, " port {first} - {last}"),
        }
    }
}

/// As the language has it, without the keyword.
impl fmt::Display for Destinations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, more)) = self.entries.split_first() else {
            return formatter.write_str("none");
        };
        first.fmt(formatter)?;
        more.iter()
            .try_for_each(|entry| write!(formatter, ", {entry}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_exactly_the_range_of_ports() {
        let ends = [1, 2, 3, 7, 8, 9, 1023, 1024, 1025, 32_768, 65_534, 65_535];
        for (first, last) in ends
            .iter()
            .flat_map(|first| ends.map(|last| (*first, last)))
        {
            let mut next = u32::from(first);
            for (start, length) in prefixes(first, last.max(first)) {
                assert_eq!(u32::from(start), next, "{first} - {last}");
                let size = 1 << (16 - length);
                assert_eq!(next % size, 0, "{first} - {last}");
                next += size;
            }
            assert_eq!(next, u32::from(last.max(first)) + 1);
        }
    }
}
