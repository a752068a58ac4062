//! The error of bytes that are no message of this protocol.

/// A fault of bytes that could not be decoded.
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
