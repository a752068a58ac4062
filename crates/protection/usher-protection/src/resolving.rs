//! Protector to resolver and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The protector says which names it has, and the resolver answers whenever it has looked one up. The
//! resolver speaks to the network, so the protector takes nothing from it but addresses and a reason,
//! both of them bounded.

use std::net::{IpAddr, Ipv6Addr};

use usher_base::codec::{Bytes, Codec, List, Reader, Text, address_bytes, messages, packets};
use usher_base::{DecodeError, HostName};

use crate::limits::{MAXIMUM_ADDRESSES, MAXIMUM_NAMES};

/// Longest packet in bytes, in either direction: a request with all names that a policy may have.
pub const MAXIMUM_RESOLVER_PACKET: usize = 2 + 4 + MAXIMUM_NAMES * (4 + HostName::MAXIMUM_LENGTH);

/// Longest answer in bytes: a name and all addresses that are taken of it.
const MAXIMUM_REPLY: usize = 2 + 4 + HostName::MAXIMUM_LENGTH + 4 + MAXIMUM_ADDRESSES * 16;

/// The version of the packets.
const VERSION: u8 = 1;

messages! {
    /// From the protector.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ResolverRequest {
        /// The names to look up from now on, again and again, in place of the former ones.
        1 => Follow(names: Vec<HostName> as List<Text>),
    }
}

messages! {
    /// From the resolver, about one name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ResolverReply {
        /// The present answer for the name: one address at least.
        129 => Found {
            /// The name.
            name: HostName as Text,
            /// Its addresses, in any order.
            addresses: Vec<IpAddr> as List<Address>,
        },
        /// The name could not be looked up, or has no address.
        130 => Failed {
            /// The name.
            name: HostName as Text,
            /// The reason, for people: text that the resolver chooses.
            reason: Vec<u8> as Bytes<{ ResolverReply::LONGEST_REASON }>,
        },
    }
}

packets!(VERSION, MAXIMUM_RESOLVER_PACKET, ResolverRequest);
packets!(VERSION, MAXIMUM_REPLY, ResolverReply);

impl ResolverReply {
    /// Longest reason in bytes.
    pub const LONGEST_REASON: usize = 128;

    /// An answer of at most as many addresses as are taken; without any, a failure.
    #[must_use]
    pub fn found(name: HostName, mut addresses: Vec<IpAddr>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MAXIMUM_ADDRESSES);
        if addresses.is_empty() {
            Self::failed(name, "it has no address")
        } else {
            Self::Found { name, addresses }
        }
    }

    /// A failure, with as much of the reason as fits.
    #[must_use]
    pub fn failed(name: HostName, reason: &str) -> Self {
        let mut reason = reason.as_bytes().to_vec();
        reason.truncate(Self::LONGEST_REASON);
        Self::Failed { name, reason }
    }
}

/// An address as 16 bytes: IPv6 as it is, IPv4 mapped.
#[derive(Debug)]
pub struct Address;

impl Codec<IpAddr> for Address {
    fn put(value: &IpAddr, out: &mut Vec<u8>) {
        out.extend_from_slice(&address_bytes(*value));
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<IpAddr, DecodeError> {
        Ok(Ipv6Addr::from(reader.array::<16>()?).to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().expect("a name")
    }

    #[test]
    fn the_largest_packets_are_within_their_limits() {
        let longest = "a".repeat(HostName::MAXIMUM_LENGTH);
        let names = ResolverRequest::Follow(vec![name(&longest); MAXIMUM_NAMES]);
        assert_eq!(names.encode().len(), MAXIMUM_RESOLVER_PACKET);
        assert_eq!(ResolverRequest::decode(&names.encode()), Ok(names));
        let addresses = (0..100).map(|number| IpAddr::from([10, 0, 0, number]));
        let found = ResolverReply::found(name(&longest), addresses.collect());
        assert_eq!(found.encode().len(), MAXIMUM_REPLY);
        assert_eq!(ResolverReply::decode(&found.encode()), Ok(found));
        let failed = ResolverReply::failed(name(&longest), &"x".repeat(1000));
        assert_eq!(ResolverReply::decode(&failed.encode()), Ok(failed));
    }

    #[test]
    fn an_answer_without_an_address_is_a_failure() {
        let reply = ResolverReply::found(name("www.abc.com"), Vec::new());
        assert!(matches!(reply, ResolverReply::Failed { .. }), "{reply:?}");
    }

    #[test]
    fn packets_beyond_their_limits_are_refused() {
        let addresses = vec![IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]); 100];
        let many = ResolverReply::Found {
            name: name("www.abc.com"),
            addresses,
        };
        assert_eq!(
            ResolverReply::decode(&many.encode()),
            Err(DecodeError::Oversized)
        );
        let talkative = ResolverReply::Failed {
            name: name("www.abc.com"),
            reason: vec![b'x'; ResolverReply::LONGEST_REASON + 1],
        };
        assert_eq!(
            ResolverReply::decode(&talkative.encode()),
            Err(DecodeError::Oversized)
        );
        let names = ResolverRequest::Follow(vec![name("a"); 8 * MAXIMUM_NAMES * 8]);
        assert_eq!(
            ResolverRequest::decode(&names.encode()),
            Err(DecodeError::Oversized)
        );
    }
}
