//! Ranges of addresses; [`crate::cover`] has exact sets of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};
use serde::{Serialize, Serializer};

/// All addresses from one to another of the same family, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// A fault of a text that is no range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeFault {
    /// The text does not have the form of a range.
    Form,
    /// The first address is after the last.
    Backwards,
    /// A prefix longer than an address of the family, which has this many bits.
    PrefixTooLong(u8),
    /// An address with bits after its prefix, and the network in which it lies.
    HostBits(AddressRange),
    /// An IPv4 address written as IPv6.
    Mapped,
}

impl AddressRange {
    /// All addresses of IPv4, and all of IPv6.
    pub(crate) const EVERYBODY: [Self; 2] = [
        Self {
            first: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            last: IpAddr::V4(Ipv4Addr::BROADCAST),
        },
        Self {
            first: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            last: IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        },
    ];

    /// From one address to another; none for addresses of two families, backwards, or IPv4-mapped.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let one_family = first.is_ipv4() == last.is_ipv4();
        let mapped = first.to_canonical() != first || last.to_canonical() != last;
        (one_family && first <= last && !mapped).then_some(Self { first, last })
    }

    /// The lowest address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// The highest address.
    pub fn last(self) -> IpAddr {
        self.last
    }

    /// Whether the range has all addresses of its family: `0.0.0.0/0` or `::/0`.
    pub fn is_everybody(self) -> bool {
        Self::EVERYBODY.contains(&self)
    }

    /// Whether the address is in the range.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && (self.first..=self.last).contains(&address)
    }

    /// The part of this range from one address to another, by their numbers.
    pub fn part(self, first: u128, last: u128) -> Self {
        Self {
            first: address_from_number(self.first, first),
            last: address_from_number(self.first, last),
        }
    }

    /// The fewest networks that together are this range, in order.
    pub fn networks(self) -> IpSubnets {
        match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => Ipv4Subnets::new(first, last, 0).into(),
            (first, last) => {
                let v6 = |address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                Ipv6Subnets::new(v6(first), v6(last), 0).into()
            }
        }
    }

    /// Reads `a`, `a/n` or `a-b`.
    ///
    /// # Errors
    ///
    /// A [`RangeFault`].
    pub fn parse(text: &str) -> Result<Self, RangeFault> {
        let address = |text: &str| match text.parse::<IpAddr>() {
            Ok(address) if address.to_canonical() != address => Err(RangeFault::Mapped),
            Ok(address) => Ok(address),
            Err(_) => Err(RangeFault::Form),
        };
        if let Some((base, length)) = text.split_once('/') {
            let base = address(base)?;
            let length = digits(length).ok_or(RangeFault::Form)?;
            let most = if base.is_ipv4() { 32 } else { 128 };
            let network = u8::try_from(length).ok();
            let network = network.and_then(|length| IpNet::new(base, length).ok());
            let network = network.ok_or(RangeFault::PrefixTooLong(most))?;
            let range = Self {
                first: network.network(),
                last: network.broadcast(),
            };
            return if range.first == base {
                Ok(range)
            } else {
                Err(RangeFault::HostBits(range))
            };
        }
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (address(first)?, address(last)?),
            None => (address(text)?, address(text)?),
        };
        if first.is_ipv4() != last.is_ipv4() {
            return Err(RangeFault::Form);
        }
        Self::new(first, last).ok_or(RangeFault::Backwards)
    }
}

impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            first: address,
            last: address,
        }
    }
}

/// The range as the policy language has it.
impl fmt::Display for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.networks().next() {
            _ if self.first == self.last => self.first.fmt(formatter),
            Some(network) if network.broadcast() == self.last => network.fmt(formatter),
            _ => write!(formatter, "{} - {}", self.first, self.last),
        }
    }
}

impl Serialize for AddressRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The address as a number: its order within its family.
pub fn address_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The address of this number in a family; the family's highest address for a larger number.
pub fn address_from_number(family: IpAddr, number: u128) -> IpAddr {
    match family {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

/// Decimal digits without sign or leading zero; zero itself is one digit.
pub fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = plain && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| canonical)
}
