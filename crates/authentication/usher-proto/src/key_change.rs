//! The public key of a log, and its change, as the former key and the next one sign it.

use ssh_key::PublicKey;
use ssh_key::public::{Ed25519PublicKey, KeyData};
use usher_base::DecodeError;
use usher_base::codec::{Text, decode_signed, encode_signed, fields, plain_bytes};

/// The SSHSIG namespace of changes: the signature under a session's end changes no key.
pub const KEY_CHANGE_NAMESPACE: &str = "log-key-change@usher";

/// Longest encoded change in bytes.
pub const MAX_KEY_CHANGE_SIZE: usize = 160;

/// Every change begins with these bytes, which tell readers of a log what was signed.
const MAGIC: &[u8; 20] = b"usher-log-key-change";
const VERSION: u32 = 1;

plain_bytes! {
    /// A log's Ed25519 public key (RFC 8032 section 5.1.5).
    ///
    /// Holds any 32 bytes; bytes that are no point of the curve verify no signature.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LogKey([u8; 32]);
}

impl LogKey {
    /// The key, if it is Ed25519.
    #[must_use]
    pub fn of(key: &PublicKey) -> Option<Self> {
        key.key_data().ed25519().map(|key| Self(key.0))
    }

    /// The key in SSH's form.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        KeyData::Ed25519(Ed25519PublicKey(self.0)).into()
    }
}

/// "From this record of the log on, the next key signs in place of the former one."
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyChange {
    /// The key that has signed the log before this record.
    pub former: LogKey,
    /// The key that signs the log from this record on.
    pub next: LogKey,
    /// The index of this record, so that the change counts at no other place.
    pub index: u64,
    /// The root of the tree over the records before this one, so that the change counts in no other history.
    pub root: [u8; 32],
    /// When the change was made, by the server's clock, in seconds since 1970 (UTC).
    pub changed: u64,
}

fields! {
    KeyChange {
        former: LogKey as Text,
        next: LogKey as Text,
        index: u64,
        root: [u8; 32],
        changed: u64,
    }
}

impl KeyChange {
    /// The canonical bytes, which are signed and logged.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_signed(MAGIC, VERSION, self)
    }

    /// Reads the canonical bytes. Only the signatures of both keys over them prove anything.
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same change.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_signed(MAGIC, VERSION, MAX_KEY_CHANGE_SIZE, bytes)
    }
}
