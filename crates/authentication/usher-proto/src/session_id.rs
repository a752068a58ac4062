//! The name of a session.

use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use usher_base::DecodeError;
use usher_base::codec::plain_bytes;
use usher_base::serde_text::serde_as_text;

/// Bytes of a [`SessionId`].
pub const SESSION_ID_SIZE: usize = 16;

plain_bytes! {
    /// Names a session: the first 16 bytes of SHA-256 over the statement that opened it.
    ///
    /// Neither secret nor a credential: a chain element proves an announcement. The nonce in the
    /// statement makes the id unique. A replayed authenticator is recognised because the same
    /// statement always has the same id.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct SessionId([u8; SESSION_ID_SIZE]);
}

/// The session that a statement opens, from the statement's exact signed bytes.
#[must_use]
pub fn session_id(statement_bytes: &[u8]) -> SessionId {
    let digest = Sha256::digest(statement_bytes);
    let mut bytes = [0; SESSION_ID_SIZE];
    bytes.copy_from_slice(&digest[..SESSION_ID_SIZE]);
    SessionId(bytes)
}

impl fmt::Display for SessionId {
    /// 32 lower-case hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}", base16ct::HexDisplay(&self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SessionId({self})")
    }
}

impl FromStr for SessionId {
    type Err = DecodeError;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, DecodeError> {
        let mut bytes = [0; SESSION_ID_SIZE];
        let length = base16ct::lower::decode(text, &mut bytes).map(<[u8]>::len);
        match length {
            Ok(SESSION_ID_SIZE) => Ok(Self(bytes)),
            _ => Err(DecodeError::Malformed { field: "session" }),
        }
    }
}

serde_as_text!(SessionId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_half_a_sha_256() {
        // FIPS 180-4 example: SHA-256("abc").
        assert_eq!(
            session_id(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223"
        );
    }

    #[test]
    fn text_goes_there_and_back() {
        let id = session_id(b"statement");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn other_text_is_refused() {
        let text = session_id(b"statement").to_string();
        for other in [
            &text[1..],
            &text.to_uppercase(),
            &format!("{text}0"),
            &"g".repeat(32),
        ] {
            other.parse::<SessionId>().unwrap_err();
        }
    }
}
