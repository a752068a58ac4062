//! Why bytes were not a message of this protocol.

use crate::Refusal;

/// Why bytes could not be decoded.
///
/// Carries no part of the input, so that it can be logged as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the message does.
    #[error("the message ends too early")]
    Truncated,
    /// The message, or a length inside it, is above its limit.
    #[error("the message or one of its fields is longer than its limit")]
    Oversized,
    /// The format's version number is not one this code understands.
    #[error("the message has a version this program does not understand")]
    UnknownVersion,
    /// The message type is not defined in this version, or not in this direction.
    #[error("the message has an unknown type")]
    UnknownType,
    /// A field holds something it must not hold, or holds it in a spelling that is not canonical.
    #[error("the field \"{field}\" of the message is malformed")]
    Malformed {
        /// The field, in the words of `docs/PROTOCOL.md`.
        field: &'static str,
    },
    /// There are bytes after the end of the message.
    #[error("there are bytes after the end of the message")]
    TrailingBytes,
}

impl From<DecodeError> for Refusal {
    /// The reason a peer is told: the lengths and the version keep their own, the rest is
    /// [`Refusal::Malformed`].
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Truncated => Self::Truncated,
            DecodeError::Oversized => Self::Oversized,
            DecodeError::UnknownVersion => Self::UnknownVersion,
            DecodeError::UnknownType
            | DecodeError::Malformed { .. }
            | DecodeError::TrailingBytes => Self::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_versions_keep_their_own_reason() {
        assert_eq!(Refusal::from(DecodeError::Truncated), Refusal::Truncated);
        assert_eq!(Refusal::from(DecodeError::Oversized), Refusal::Oversized);
        assert_eq!(
            Refusal::from(DecodeError::UnknownVersion),
            Refusal::UnknownVersion
        );
    }

    #[test]
    fn everything_else_is_malformed() {
        for error in [
            DecodeError::UnknownType,
            DecodeError::Malformed { field: "user" },
            DecodeError::TrailingBytes,
        ] {
            assert_eq!(Refusal::from(error), Refusal::Malformed);
        }
    }
}
