//! The records of the signed log: authentications, signed by clients; ends of sessions and changes of
//! the log's key, signed by the log.

use ssh_key::PublicKey;

use crate::sshsig;
use crate::{
    Authenticator, Certificate, KEY_CHANGE_NAMESPACE, KeyChange, LogKey, MAX_KEY_CHANGE_SIZE,
    MAX_SESSION_END_SIZE, MAX_SIGNATURE_SIZE, Refusal, SESSION_END_NAMESPACE, SessionEnd,
    Statement,
};
use usher_base::DecodeError;
use usher_base::codec::{self, Bytes, fields, messages};

/// Longest record in bytes. The formats inside are bounded lower; the entry bundles of C2SP
/// tlog-tiles could hold 65,535.
pub const MAX_LOG_RECORD: usize = 16 * 1024;

/// Longest public key in bytes (RFC 4253 section 6.6). An Ed25519 one has 51.
pub const MAX_PUBLIC_KEY_SIZE: usize = 4096;

/// A fault of a record that does not belong in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes are not a record.
    #[error("not a record: {0}")]
    Malformed(#[from] DecodeError),
    /// The statement's bytes are no statement.
    #[error("not a statement: {0}")]
    Statement(#[source] DecodeError),
    /// The signature opens no sessions, or is over another statement.
    #[error("not signed by the client: {0}")]
    Signature(#[source] Refusal),
    /// The public key beside the signature is not the key that made the signature.
    #[error("the public key beside the signature is not the one that made it")]
    OtherKey,
    /// The signed bytes are not the end of a session.
    #[error("not the end of a session: {0}")]
    End(#[source] DecodeError),
    /// The signed bytes are not a change of the log's key.
    #[error("not a change of the log's key: {0}")]
    KeyChange(#[source] DecodeError),
    /// A signature of an end or of a change of key is invalid.
    #[error("not signed by the log: {0}")]
    LogSignature(#[source] Refusal),
    /// Another key than the log's has signed an end, or a change names another key.
    #[error("signed by another key than the log's")]
    OtherLog,
    /// A change of key is not signed by both keys, names one key twice, or was made for another place or
    /// another history, or by another key than the log's.
    #[error("a change of key for another place, or not signed by both keys")]
    UnsignedChange,
}

messages! {
    /// A record of the log.
    ///
    /// Its bytes are unchecked until [`Record::verify`] succeeds.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum Record {
        /// A client has authenticated.
        1 => Authentication(record: AuthenticationRecord),
        /// A session has ended.
        2 => End(record: EndRecord),
        /// The log's key was changed.
        3 => KeyChange(record: KeyChangeRecord),
    }
}

/// One authentication, as the bytes that came from the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthenticationRecord {
    /// Statement and SSHSIG signature.
    pub authenticator: Authenticator,
    /// The public key in its wire form (RFC 4253 section 6.6), or the certificate that contains it.
    /// The signature also contains it; here it can be read without SSHSIG.
    pub public_key: Vec<u8>,
}

/// The end of one session, signed with the log's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndRecord {
    /// [`SessionEnd::encode`]'s bytes, at most [`MAX_SESSION_END_SIZE`].
    pub end: Vec<u8>,
    /// The binary SSHSIG blob in the namespace [`SESSION_END_NAMESPACE`], at most
    /// [`MAX_SIGNATURE_SIZE`] bytes.
    pub signature: Vec<u8>,
}

/// A change of the log's key, signed with both keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyChangeRecord {
    /// [`KeyChange::encode`]'s bytes, at most [`MAX_KEY_CHANGE_SIZE`].
    pub change: Vec<u8>,
    /// The former key's binary SSHSIG blob in the namespace [`KEY_CHANGE_NAMESPACE`], at most
    /// [`MAX_SIGNATURE_SIZE`] bytes.
    pub former_signature: Vec<u8>,
    /// The next key's binary SSHSIG blob, in the same namespace and of the same limit.
    pub next_signature: Vec<u8>,
}

/// The contents of a record whose signature is valid. Whether the log's own key has signed an end or a
/// change depends on its place in the log, which a reader of the whole log knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// A client has authenticated.
    Authentication(Box<Verified>),
    /// A session has ended.
    End(SignedEnd),
    /// The log's key was changed.
    KeyChange(KeyChange),
}

/// The end of a session, and the key that signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedEnd {
    /// The end.
    pub end: SessionEnd,
    /// The key.
    pub key: LogKey,
}

/// The contents of an authentication whose signature is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The signed statement.
    pub statement: Statement,
    /// The key that signed. The log does not know which user has it.
    pub key: PublicKey,
    /// The key's certificate. Neither its authority nor its time has been checked.
    pub certificate: Option<Certificate>,
}

impl Record {
    /// Checks the signature and reads the signed contents. Any key may have signed.
    pub fn verify(&self) -> Result<Says, RecordError> {
        Ok(match self {
            Self::Authentication(record) => Says::Authentication(Box::new(record.verify()?)),
            Self::End(record) => Says::End(record.verify()?),
            Self::KeyChange(record) => Says::KeyChange(record.verify()?),
        })
    }

    /// The bytes in the log, which are hashed into the tree.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads the bytes in the log. Checks their form only: see [`Record::verify`].
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(MAX_LOG_RECORD, bytes)
    }
}

impl AuthenticationRecord {
    /// Checks the signature and reads the statement. Any key may have signed it.
    pub fn verify(&self) -> Result<Verified, RecordError> {
        let signed = self
            .authenticator
            .verify_signature()
            .map_err(RecordError::Signature)?;
        if signed.public_key != self.public_key {
            return Err(RecordError::OtherKey);
        }
        let statement =
            Statement::decode(&self.authenticator.statement).map_err(RecordError::Statement)?;
        Ok(Verified {
            statement,
            key: signed.key,
            certificate: signed.certificate,
        })
    }
}

impl EndRecord {
    /// The bytes that the log signs.
    ///
    /// # Errors
    /// No known input causes one.
    pub fn signed_data(end: &SessionEnd) -> Result<Vec<u8>, ssh_key::Error> {
        sshsig::signed_data(SESSION_END_NAMESPACE, &end.encode())
    }

    /// The record with the log's key and its signature over [`EndRecord::signed_data`].
    #[must_use]
    pub fn new(end: &SessionEnd, log: LogKey, signature: &[u8; 64]) -> Self {
        Self {
            end: end.encode(),
            signature: sshsig::ed25519_blob(log.as_bytes(), SESSION_END_NAMESPACE, signature),
        }
    }

    /// Checks the signature and reads the end. Any Ed25519 key may have signed it.
    ///
    /// # Errors
    /// [`RecordError::LogSignature`], [`RecordError::OtherLog`], [`RecordError::End`].
    pub fn verify(&self) -> Result<SignedEnd, RecordError> {
        let key = signer(SESSION_END_NAMESPACE, &self.end, &self.signature)?;
        let end = SessionEnd::decode(&self.end).map_err(RecordError::End)?;
        Ok(SignedEnd { end, key })
    }

    /// The signature in the armoured form that `ssh-keygen -Y verify -s` reads.
    ///
    /// # Errors
    /// [`RecordError::LogSignature`] when it is not a canonical SSHSIG blob.
    pub fn signature_pem(&self) -> Result<String, RecordError> {
        sshsig::armoured(SESSION_END_NAMESPACE, &self.signature).map_err(RecordError::LogSignature)
    }
}

impl KeyChangeRecord {
    /// The bytes that both keys sign.
    ///
    /// # Errors
    /// No known input causes one.
    pub fn signed_data(change: &KeyChange) -> Result<Vec<u8>, ssh_key::Error> {
        sshsig::signed_data(KEY_CHANGE_NAMESPACE, &change.encode())
    }

    /// The record with the signatures of the former key and the next one over
    /// [`KeyChangeRecord::signed_data`].
    #[must_use]
    pub fn new(change: &KeyChange, former: &[u8; 64], next: &[u8; 64]) -> Self {
        let blob = |key: &LogKey, signature| {
            sshsig::ed25519_blob(key.as_bytes(), KEY_CHANGE_NAMESPACE, signature)
        };
        Self {
            change: change.encode(),
            former_signature: blob(&change.former, former),
            next_signature: blob(&change.next, next),
        }
    }

    /// Reads the change, and checks that the two keys that it names have signed it.
    ///
    /// # Errors
    /// [`RecordError::LogSignature`], [`RecordError::OtherLog`], [`RecordError::KeyChange`],
    /// [`RecordError::UnsignedChange`].
    pub fn verify(&self) -> Result<KeyChange, RecordError> {
        let change = KeyChange::decode(&self.change).map_err(RecordError::KeyChange)?;
        let signer = |blob| signer(KEY_CHANGE_NAMESPACE, &self.change, blob);
        let signers = [
            signer(&self.former_signature)?,
            signer(&self.next_signature)?,
        ];
        if signers != [change.former, change.next] || change.former == change.next {
            return Err(RecordError::UnsignedChange);
        }
        Ok(change)
    }

    /// The former key's signature in the armoured form that `ssh-keygen -Y verify -s` reads.
    ///
    /// # Errors
    /// [`RecordError::LogSignature`] when it is not a canonical SSHSIG blob.
    pub fn signature_pem(&self) -> Result<String, RecordError> {
        sshsig::armoured(KEY_CHANGE_NAMESPACE, &self.former_signature)
            .map_err(RecordError::LogSignature)
    }
}

/// The key that has signed a message of a log.
fn signer(namespace: &str, message: &[u8], blob: &[u8]) -> Result<LogKey, RecordError> {
    let signed = sshsig::verify(namespace, message, blob).map_err(RecordError::LogSignature)?;
    LogKey::of(&signed.key)
        .filter(|_| signed.certificate.is_none())
        .ok_or(RecordError::OtherLog)
}

fields! {
    AuthenticationRecord {
        authenticator: Authenticator,
        public_key: Vec<u8> as Bytes<MAX_PUBLIC_KEY_SIZE>,
    }
}

fields! {
    EndRecord {
        end: Vec<u8> as Bytes<MAX_SESSION_END_SIZE>,
        signature: Vec<u8> as Bytes<MAX_SIGNATURE_SIZE>,
    }
}

fields! {
    KeyChangeRecord {
        change: Vec<u8> as Bytes<MAX_KEY_CHANGE_SIZE>,
        former_signature: Vec<u8> as Bytes<MAX_SIGNATURE_SIZE>,
        next_signature: Vec<u8> as Bytes<MAX_SIGNATURE_SIZE>,
    }
}
