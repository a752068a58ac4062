//! The statement that a user signs to open a session.

use crate::chain::{CHAIN_ELEMENT_SIZE, MAX_CHAIN_LENGTH};
use crate::token::TokenElement;
use crate::{HostPublicKey, Refusal};
use std::net::SocketAddr;
use usher_base::codec::{
    Codec, Reader, Text, address_bytes, decode_signed, encode_signed, fields, socket_address,
};
use usher_base::{DecodeError, ServiceName, UserName};

/// Every statement begins with these bytes, which tell readers of a log what was signed.
pub const STATEMENT_MAGIC: &[u8; 15] = b"usher-statement";

/// The version of the statement's format.
pub const STATEMENT_VERSION: u32 = 2;

/// Longest encoded statement in bytes (the longest of version 2 has 282).
pub const MAX_STATEMENT_SIZE: usize = 512;

/// Bytes of the nonce.
pub const NONCE_SIZE: usize = 16;

/// "I, `user`, on this client host, ask for a session with this service on this server host, until
/// this time. Whoever reveals the elements of these chains is me."
///
/// The user signs the bytes of [`Statement::encode`]; the log keeps them beside the signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Statement {
    /// The user, by the name that the server knows.
    pub user: UserName,
    /// The service.
    pub service: ServiceName,
    /// The user's host, which must be the peer on the control channel.
    pub client_host_key: HostPublicKey,
    /// The server's host. No other host accepts the statement.
    pub server_host_key: HostPublicKey,
    /// Address and port of the service. Canonical: never an IPv4-mapped address.
    pub server: SocketAddr,
    /// The time of the signature by the client's clock, in seconds since 1970 (UTC).
    pub issued: u64,
    /// The latest end of the session, in seconds since 1970 (UTC).
    pub expires: u64,
    /// Fresh from the system's random generator, so that no two statements are equal.
    pub nonce: [u8; NONCE_SIZE],
    /// `h[0]` of the chain that announcements spend.
    pub chain_anchor: [u8; CHAIN_ELEMENT_SIZE],
    /// `t[0]` of the chain that tokens in SYNs spend.
    pub token_anchor: TokenElement,
    /// Number of elements of either chain, 1 to [`MAX_CHAIN_LENGTH`].
    pub chain_length: u32,
    /// Salt of both chains.
    pub chain_salt: [u8; CHAIN_ELEMENT_SIZE],
}

fields! {
    Statement {
        user: UserName as Text,
        service: ServiceName as Text,
        client_host_key: HostPublicKey as Text,
        server_host_key: HostPublicKey as Text,
        server: SocketAddr as ServerAddress,
        issued: u64,
        expires: u64,
        nonce: [u8; NONCE_SIZE] as Text,
        chain_anchor: [u8; CHAIN_ELEMENT_SIZE] as Text,
        token_anchor: TokenElement as Text,
        chain_length: u32,
        chain_salt: [u8; CHAIN_ELEMENT_SIZE] as Text,
    }
}

/// A string of 16 bytes of address, and four bytes of port.
struct ServerAddress;

impl Codec<SocketAddr> for ServerAddress {
    fn put(value: &SocketAddr, out: &mut Vec<u8>) {
        Text::put(&address_bytes(value.ip()), out);
        u32::put(&value.port().into(), out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<SocketAddr, DecodeError> {
        let malformed = DecodeError::Malformed { field };
        let address = Text::read(reader, field)?;
        let port = u16::try_from(reader.u32()?).map_err(|_| malformed)?;
        socket_address(address, port).ok_or(malformed)
    }
}

/// A verifier's expectations of a statement: its own clock, the two hosts of the control channel as
/// TLS authenticated them, and the limits of its policy. All times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Expectation<'a> {
    /// The verifier's clock, in seconds since 1970 (UTC).
    pub now: u64,
    /// The keys of the peer on the control channel: the one that it proved to hold, or, where that is not
    /// known, those that it may have.
    pub client_host_keys: &'a [HostPublicKey],
    /// This host's own keys.
    pub server_host_keys: &'a [HostPublicKey],
    /// Greatest age of a statement. The server must remember accepted session ids for
    /// `maximum_age + maximum_skew`, or replays pass.
    pub maximum_age: u64,
    /// How far the client's clock may be ahead at most.
    pub maximum_skew: u64,
    /// The longest session granted, from `issued` to `expires`.
    pub maximum_lifetime: u64,
}

impl Statement {
    /// The canonical bytes, which are signed and logged.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_signed(STATEMENT_MAGIC, STATEMENT_VERSION, self)
    }

    /// Reads the canonical bytes. Checks neither the signature nor [`Statement::check`].
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same statement.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_signed(
            STATEMENT_MAGIC,
            STATEMENT_VERSION,
            MAX_STATEMENT_SIZE,
            bytes,
        )
    }

    /// Whether this statement may open a session, on this channel and now.
    ///
    /// The caller checks the signature and, by its policy, the user, the service and the service's
    /// address ([`Refusal::WrongServerAddress`]).
    ///
    /// # Errors
    /// The first [`Refusal`] that applies, in the order: wrong server host, wrong client host,
    /// chain length ([`Refusal::Malformed`]), future-dated, expired (also when it expires before
    /// it was issued), stale, lifetime too long. A time exactly at its limit is still accepted,
    /// except that a session ends with the second in which it expires.
    pub fn check(&self, expectation: &Expectation<'_>) -> Result<(), Refusal> {
        let now = expectation.now;
        if !expectation.server_host_keys.contains(&self.server_host_key) {
            return Err(Refusal::WrongServerHost);
        }
        if !expectation.client_host_keys.contains(&self.client_host_key) {
            return Err(Refusal::WrongClientHost);
        }
        if !(1..=MAX_CHAIN_LENGTH).contains(&self.chain_length) {
            return Err(Refusal::Malformed);
        }
        if self.issued > now.saturating_add(expectation.maximum_skew) {
            return Err(Refusal::FutureDated);
        }
        if self.expires <= now || self.expires <= self.issued {
            return Err(Refusal::Expired);
        }
        if now.saturating_sub(self.issued) > expectation.maximum_age {
            return Err(Refusal::Stale);
        }
        if self.expires - self.issued > expectation.maximum_lifetime {
            return Err(Refusal::LifetimeTooLong);
        }
        Ok(())
    }
}
