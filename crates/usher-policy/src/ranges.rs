//! Ranges of addresses; exact sets of them are [`crate::cover`]'s.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Serialize, Serializer};

/// All addresses from one to another of the same family, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// Why a text is no range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeFault {
    /// It is none at all.
    Form,
    /// The first address is after the last.
    Backwards,
    /// An address with bits after its prefix; this is the network that it lies in.
    HostBits(AddressRange),
    /// An IPv4 address written as IPv6.
    Mapped,
}

impl AddressRange {
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

    /// Whether the address is one of these.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && (self.first..=self.last).contains(&address)
    }

    /// The addresses of these numbers, which are of this range.
    pub(crate) fn part(self, first: u128, last: u128) -> Self {
        Self {
            first: address(self.first, first),
            last: address(self.first, last),
        }
    }

    /// `a`, `a/n` or `a-b`.
    pub(crate) fn parse(text: &str) -> Result<Self, RangeFault> {
        let address = |text: &str| match text.parse::<IpAddr>() {
            Ok(address) if address.to_canonical() != address => Err(RangeFault::Mapped),
            Ok(address) => Ok(address),
            Err(_) => Err(RangeFault::Form),
        };
        if let Some((base, length)) = text.split_once('/') {
            return Self::of_prefix(address(base)?, length);
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

    fn of_prefix(base: IpAddr, length: &str) -> Result<Self, RangeFault> {
        let bits = width(base);
        let canonical = length.bytes().all(|byte| byte.is_ascii_digit())
            && (length == "0" || !length.starts_with('0'));
        let length = length.parse::<u32>().ok();
        let length = length.filter(|&length| canonical && length <= bits);
        let length = length.ok_or(RangeFault::Form)?;
        let free = mask(bits - length);
        let number = number(base);
        let range = Self {
            first: address(base, number & !free),
            last: address(base, number | free),
        };
        if range.first == base {
            Ok(range)
        } else {
            Err(RangeFault::HostBits(range))
        }
    }

    /// The length of the prefix that the addresses share, when they are all that have it.
    fn prefix(self) -> Option<u32> {
        let (first, last) = (number(self.first), number(self.last));
        let free = first ^ last;
        let aligned = free & free.wrapping_add(1) == 0 && first & free == 0;
        aligned.then(|| width(self.first) - (u128::BITS - free.leading_zeros()))
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

/// As the language has it.
impl fmt::Display for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix() {
            _ if self.first == self.last => self.first.fmt(formatter),
            Some(length) => write!(formatter, "{}/{length}", self.first),
            None => write!(formatter, "{} - {}", self.first, self.last),
        }
    }
}

impl Serialize for AddressRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The bits of an address of this family.
pub(crate) fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The lowest bits set.
pub(crate) fn mask(bits: u32) -> u128 {
    1_u128.checked_shl(bits).map_or(u128::MAX, |bit| bit - 1)
}

/// The address as a number: its order within its family.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The address of this number in a family.
pub(crate) fn address(family: IpAddr, number: u128) -> IpAddr {
    match family {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}
