//! The 4-tuple of a TCP connection, as it is announced and admitted.

use crate::DecodeError;
use crate::codec::{Codec, Reader, address_bytes, socket_address};
use std::fmt;
use std::net::SocketAddr;

/// Bytes of an encoded [`ConnectionTuple`].
pub const CONNECTION_TUPLE_SIZE: usize = 36;

/// The endpoints are of different address families, which no TCP connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client's and the server's address are of different families")]
pub struct MixedFamilies;

/// The two endpoints of one TCP connection.
///
/// Both addresses are of one family, and an IPv4 address is never written as an IPv4-mapped IPv6 one:
/// [`ConnectionTuple::new`] and [`ConnectionTuple::decode`] make sure of both. Scope and flow label of IPv6
/// are left out.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ConnectionTuple {
    /// The endpoint that connects.
    pub client: SocketAddr,
    /// The endpoint that listens: the service's address and port.
    pub server: SocketAddr,
}

impl ConnectionTuple {
    /// A canonical tuple: mapped addresses become IPv4, scope and flow label are dropped.
    ///
    /// # Errors
    /// [`MixedFamilies`] when one endpoint is IPv4 and the other is not.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Result<Self, MixedFamilies> {
        let client = canonical(client);
        let server = canonical(server);
        if client.is_ipv4() != server.is_ipv4() {
            return Err(MixedFamilies);
        }
        Ok(Self { client, server })
    }

    /// The fixed encoding: client address, server address (16 bytes each, IPv4 mapped to
    /// `::ffff:0:0/96`), client port, server port (big endian).
    #[must_use]
    pub fn encode(&self) -> [u8; CONNECTION_TUPLE_SIZE] {
        let mut bytes = [0; CONNECTION_TUPLE_SIZE];
        bytes[..16].copy_from_slice(&address_bytes(self.client.ip()));
        bytes[16..32].copy_from_slice(&address_bytes(self.server.ip()));
        bytes[32..34].copy_from_slice(&self.client.port().to_be_bytes());
        bytes[34..].copy_from_slice(&self.server.port().to_be_bytes());
        bytes
    }

    /// Reads the fixed encoding.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] when an address is unspecified, a port is zero, or the families
    /// differ.
    pub fn decode(bytes: &[u8; CONNECTION_TUPLE_SIZE]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed {
            field: "connection",
        };
        let mut reader = Reader::new(bytes);
        let (client, server) = (reader.array()?, reader.array()?);
        let client = socket_address(client, reader.u16()?).ok_or(malformed)?;
        let server = socket_address(server, reader.u16()?).ok_or(malformed)?;
        Self::new(client, server).map_err(|_| malformed)
    }
}

impl Codec for ConnectionTuple {
    fn put(value: &Self, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.encode());
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        Self::decode(&reader.array()?)
    }
}

impl fmt::Display for ConnectionTuple {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} to {}", self.client, self.server)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const MALFORMED: DecodeError = DecodeError::Malformed {
        field: "connection",
    };

    #[test]
    fn the_bytes_are_as_documented() {
        let tuple =
            ConnectionTuple::new(address("10.1.2.3:40000"), address("10.9.8.7:143")).unwrap();
        let mut expected = Vec::new();
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 8, 7]);
        expected.extend_from_slice(&[0x9c, 0x40, 0, 143]);
        assert_eq!(tuple.encode().as_slice(), expected);
    }

    #[test]
    fn both_families_go_there_and_back() {
        for (client, server) in [
            ("192.0.2.1:1", "192.0.2.2:65535"),
            ("[2001:db8::1]:40000", "[2001:db8::2]:143"),
        ] {
            let tuple = ConnectionTuple::new(address(client), address(server)).unwrap();
            assert_eq!(ConnectionTuple::decode(&tuple.encode()), Ok(tuple));
        }
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        let tuple =
            ConnectionTuple::new(address("[::ffff:192.0.2.1]:5"), address("192.0.2.2:6")).unwrap();
        assert_eq!(tuple.client, address("192.0.2.1:5"));
        let uncanonical = ConnectionTuple {
            client: address("[::ffff:192.0.2.1]:5"),
            server: tuple.server,
        };
        assert_eq!(ConnectionTuple::decode(&uncanonical.encode()), Ok(tuple));
    }

    #[test]
    fn mixed_families_are_refused() {
        let client = address("192.0.2.1:5");
        let server = address("[2001:db8::2]:6");
        assert_eq!(ConnectionTuple::new(client, server), Err(MixedFamilies));
        assert_eq!(
            ConnectionTuple::decode(&ConnectionTuple { client, server }.encode()),
            Err(MALFORMED)
        );
    }

    #[test]
    fn an_endpoint_that_no_socket_has_is_refused() {
        let good = ConnectionTuple::new(address("192.0.2.1:5"), address("192.0.2.2:6")).unwrap();
        ConnectionTuple::decode(&good.encode()).unwrap();
        for (client, server) in [
            ("192.0.2.1:0", "192.0.2.2:6"),
            ("192.0.2.1:5", "192.0.2.2:0"),
            ("0.0.0.0:5", "192.0.2.2:6"),
            ("[::1]:5", "[::]:6"),
        ] {
            let tuple = ConnectionTuple {
                client: address(client),
                server: address(server),
            };
            assert_eq!(
                ConnectionTuple::decode(&tuple.encode()),
                Err(MALFORMED),
                "{tuple}"
            );
        }
    }
}
