//! The end of a session, as the log of the server's host signs it.

use crate::codec::{Reader, parse_name, put_string};
use crate::{DecodeError, Refusal, ServiceName, SessionId, UserName};

/// The SSHSIG namespace of ends: they open no session, and an authenticator ends none.
pub const SESSION_END_NAMESPACE: &str = "session-end@usher";

/// Longest encoded end in bytes.
pub const MAX_SESSION_END_SIZE: usize = 256;

/// What every end begins with: says what was signed to whoever finds it in a log.
const MAGIC: &[u8; 17] = b"usher-session-end";
const VERSION: u32 = 1;
/// Longest name of a refusal in bytes.
const MAX_REASON: usize = 64;

/// "This session has ended then, for this reason."
///
/// The server's host says so and nobody else: an authentication proves what a client wanted, an end
/// what the host says that it did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionEnd {
    /// The session.
    pub session: SessionId,
    /// Its user.
    pub user: UserName,
    /// The service, by the name that it had when the end was recorded.
    pub service: ServiceName,
    /// When it ended, by the server's clock, in seconds since 1970 (UTC).
    pub ended: u64,
    /// Why.
    pub reason: Refusal,
}

impl SessionEnd {
    /// The canonical bytes, which are what is signed and logged.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_SESSION_END_SIZE);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        put_string(&mut out, self.session.as_bytes());
        put_string(&mut out, self.user.as_str().as_bytes());
        put_string(&mut out, self.service.as_str().as_bytes());
        out.extend_from_slice(&self.ended.to_be_bytes());
        put_string(&mut out, self.reason.name().as_bytes());
        out
    }

    /// Reads the canonical bytes. Says nothing about truth: the signature does.
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same end.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(bytes, MAX_SESSION_END_SIZE)?;
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(DecodeError::Malformed { field: "magic" });
        }
        if reader.u32()? != VERSION {
            return Err(DecodeError::UnknownVersion);
        }
        let end = Self {
            session: SessionId::from_bytes(reader.fixed_string("session")?),
            user: parse_name(reader.string(UserName::MAXIMUM_LENGTH)?, "user")?,
            service: parse_name(reader.string(ServiceName::MAXIMUM_LENGTH)?, "service")?,
            ended: reader.u64()?,
            reason: parse_name(reader.string(MAX_REASON)?, "reason")?,
        };
        reader.finish()?;
        Ok(end)
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
