//! Many users with many sessions. The program that fills a host's tables and the one that connects
//! share these definitions.

use usher_proto::{Chain, SessionId};

/// The service that all these users use, and its port.
pub const SERVICE: &str = "crowd";
/// See [`SERVICE`].
pub const PORT: u16 = 7006;
/// The host from which they all connect.
pub const HOST: &str = "laptop";
const FIRST_UID: u32 = 100_000;
/// The length of each session's chain: enough to start a worker.
const CHAIN: u32 = 4;

/// A user's name.
#[must_use]
pub fn name(user: u32) -> String {
    format!("crowd{user}")
}

/// A user's uid, which is the gid as well.
#[must_use]
pub fn uid(user: u32) -> u32 {
    FIRST_UID + user
}

/// The id of a session. User `n` of `u` has the sessions `n`, `n + u`, `n + 2u` and so on.
#[must_use]
pub fn session(number: u32) -> SessionId {
    SessionId::from_bytes(bytes(number, 1))
}

/// The chain of a session, from its beginning.
#[must_use]
pub fn chain(number: u32) -> Chain {
    Chain::generate(CHAIN, bytes(number, 2), bytes(number, 3))
}

fn bytes(number: u32, purpose: u8) -> [u8; 16] {
    let mut bytes = [purpose; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}
