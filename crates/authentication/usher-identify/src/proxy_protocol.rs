//! The header of the PROXY protocol, version 2 (HAProxy's doc/proxy-protocol.txt), with the user's name in
//! each of the values in which servers look for it.

use std::io;

use ppp::v2::{Builder, Command, Protocol, Type, Version};
use usher::ConnectionTuple;

/// The certificate's common name, a value inside of PP2_TYPE_SSL.
const SUBTYPE_CN: u8 = 0x22;
/// The first of the types for applications (PP2_TYPE_MIN_CUSTOM).
const CUSTOM: u8 = 0xe0;
/// The client has authenticated itself over this connection and in this session (PP2_CLIENT_CERT_CONN,
/// PP2_CLIENT_CERT_SESS). Not PP2_CLIENT_SSL: there is no TLS.
const CLIENT: u8 = 0x02 | 0x04;
/// The client's certificate was verified.
const VERIFIED: [u8; 4] = [0; 4];

/// The header of a connection of this user.
///
/// # Errors
/// When the name is too long; no user's name is.
pub fn header(connection: &ConnectionTuple, user: &str) -> io::Result<Vec<u8>> {
    let addresses = (connection.client, connection.server);
    Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, addresses)
        .write_tlv(Type::Authority, user.as_bytes())?
        .write_tlv(Type::SSL, &certificate(user)?)?
        .write_tlv(CUSTOM, user.as_bytes())?
        .build()
}

/// The value of PP2_TYPE_SSL: the client's bits, the outcome, the common name.
fn certificate(name: &str) -> io::Result<Vec<u8>> {
    let length = u16::try_from(name.len()).map_err(io::Error::other)?;
    let mut value = vec![CLIENT];
    value.extend(VERIFIED);
    value.push(SUBTYPE_CN);
    value.extend(length.to_be_bytes());
    value.extend(name.as_bytes());
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_ends_and_the_user_three_times() {
        let ends = |client: &str, server: &str| {
            ConnectionTuple::new(client.parse().unwrap(), server.parse().unwrap()).unwrap()
        };
        let signature = b"\r\n\r\n\0\r\nQUIT\n";
        let values = b"\x02\x00\x05alice\x20\x00\x0d\x06\0\0\0\0\x22\x00\x05alice\xe0\x00\x05alice";
        let of_four = b"\x21\x11\x00\x2c\x0a\0\0\x02\x0a\0\0\x01\xc0\x01\x1f\x90";
        let written = header(&ends("10.0.0.2:49153", "10.0.0.1:8080"), "alice").unwrap();
        assert_eq!(written, [&signature[..], of_four, values].concat());

        let written = header(&ends("[fd00::2]:49153", "[fd00::1]:8080"), "alice").unwrap();
        assert_eq!(written[..14], [&signature[..], b"\x21\x21"].concat());
        assert_eq!(written[14..16], [0, 68]);
        assert!(written.ends_with(values));
    }
}
