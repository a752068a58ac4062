//! The end of a session, as the log of the server's host signs it.

use crate::{MAX_STATEMENT_SIZE, Refusal, SessionId, Statement};
use usher_base::codec::{Codec, Reader, Text, decode_signed, encode_signed, fields, put_string};
use usher_base::{DecodeError, ServiceName, UserName};

/// The SSHSIG namespace of ends. So an end opens no session, and an authenticator ends none.
pub const SESSION_END_NAMESPACE: &str = "session-end@usher";

/// Longest encoded end in bytes.
pub const MAX_SESSION_END_SIZE: usize = 256;

/// Every end begins with these bytes, which tell readers of a log what was signed.
const MAGIC: &[u8; 17] = b"usher-session-end";
const VERSION: u32 = 1;
/// Longest name of a refusal in bytes.
const MAX_REASON: usize = 64;

/// "This session ended at this time, for this reason."
///
/// Only the server's host vouches for it. An authentication proves what a client wanted; an end shows
/// what the host says it did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionEnd {
    /// The session.
    pub session: SessionId,
    /// The session's user.
    pub user: UserName,
    /// The service, by its name when the end was recorded.
    pub service: ServiceName,
    /// When the session ended, by the server's clock, in seconds since 1970 (UTC).
    pub ended: u64,
    /// The reason.
    pub reason: Refusal,
}

fields! {
    SessionEnd {
        session: SessionId as Text,
        user: UserName as Text,
        service: ServiceName as Text,
        ended: u64,
        reason: Refusal as Text,
    }
}

/// A reason by its name, which readers of the log understand.
impl Codec<Refusal> for Text {
    fn put(value: &Refusal, out: &mut Vec<u8>) {
        put_string(out, value.name().as_bytes());
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Refusal, DecodeError> {
        let malformed = DecodeError::Malformed { field };
        let name = std::str::from_utf8(reader.string(MAX_REASON)?).map_err(|_| malformed)?;
        name.parse().map_err(|_| malformed)
    }
}

/// Inside another message: the signed bytes as a string.
pub(crate) struct Signed;

impl Codec<SessionEnd> for Signed {
    fn put(value: &SessionEnd, out: &mut Vec<u8>) {
        put_string(out, &value.encode());
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<SessionEnd, DecodeError> {
        SessionEnd::decode(reader.string(MAX_SESSION_END_SIZE)?)
    }
}

impl Codec<Statement> for Signed {
    fn put(value: &Statement, out: &mut Vec<u8>) {
        put_string(out, &value.encode());
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Statement, DecodeError> {
        Statement::decode(reader.string(MAX_STATEMENT_SIZE)?)
    }
}

impl SessionEnd {
    /// The canonical bytes, which are signed and logged.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_signed(MAGIC, VERSION, self)
    }

    /// Reads the canonical bytes. Only a signature over them proves anything.
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same end.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_signed(MAGIC, VERSION, MAX_SESSION_END_SIZE, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_fits_and_comes_back() {
        for reason in Refusal::ALL {
            let end = SessionEnd {
                session: SessionId::from_bytes([1; 16]),
                user: "u".repeat(UserName::MAXIMUM_LENGTH).parse().unwrap(),
                service: "s".repeat(ServiceName::MAXIMUM_LENGTH).parse().unwrap(),
                ended: u64::MAX,
                reason: *reason,
            };
            let bytes = end.encode();
            assert!(bytes.len() <= MAX_SESSION_END_SIZE, "{}", bytes.len());
            assert_eq!(SessionEnd::decode(&bytes), Ok(end));
        }
    }
}
