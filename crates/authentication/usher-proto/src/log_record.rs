//! The records of the signed log: authentications, signed by clients, and ends of sessions, signed by
//! the log.

use ssh_key::PublicKey;

use crate::sshsig;
use crate::{
    Authenticator, Certificate, MAX_SESSION_END_SIZE, MAX_SIGNATURE_SIZE, Refusal,
    SESSION_END_NAMESPACE, SessionEnd, Statement,
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
    /// The bytes of the statement are not one.
    #[error("not a statement: {0}")]
    Statement(#[source] DecodeError),
    /// The signature opens no sessions, or is over another statement.
    #[error("not signed by the client: {0}")]
    Signature(#[source] Refusal),
    /// The public key beside the signature is not the one that made it.
    #[error("the public key beside the signature is not the one that made it")]
    OtherKey,
    /// The signed bytes are not the end of a session.
    #[error("not the end of a session: {0}")]
    End(#[source] DecodeError),
    /// The signature of an end is invalid.
    #[error("not signed by the log: {0}")]
    EndSignature(#[source] Refusal),
    /// Another key has signed an end.
    #[error("signed by another key than the log's")]
    OtherLog,
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

/// The contents of a record whose signature is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// A client has authenticated.
    Authentication(Box<Verified>),
    /// A session has ended.
    End(SessionEnd),
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
    /// Checks the signature and reads the signed contents. The log's key must have signed an end;
    /// any key may have signed an authentication.
    pub fn verify(&self, log: &PublicKey) -> Result<Says, RecordError> {
        match self {
            Self::Authentication(record) => Ok(Says::Authentication(Box::new(record.verify()?))),
            Self::End(record) => Ok(Says::End(record.verify(log)?)),
        }
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
    pub fn new(end: &SessionEnd, log: &[u8; 32], signature: &[u8; 64]) -> Self {
        Self {
            end: end.encode(),
            signature: sshsig::ed25519_blob(log, SESSION_END_NAMESPACE, signature),
        }
    }

    /// Checks that the log's key has signed it, and reads it.
    ///
    /// # Errors
    /// [`RecordError::EndSignature`], [`RecordError::OtherLog`], [`RecordError::End`].
    pub fn verify(&self, log: &PublicKey) -> Result<SessionEnd, RecordError> {
        let signed = sshsig::verify(SESSION_END_NAMESPACE, &self.end, &self.signature)
            .map_err(RecordError::EndSignature)?;
        if signed.key.key_data() != log.key_data() || signed.certificate.is_some() {
            return Err(RecordError::OtherLog);
        }
        SessionEnd::decode(&self.end).map_err(RecordError::End)
    }

    /// The signature in the armoured form that `ssh-keygen -Y verify -s` reads.
    ///
    /// # Errors
    /// [`RecordError::EndSignature`] when it is not a canonical SSHSIG blob.
    pub fn signature_pem(&self) -> Result<String, RecordError> {
        sshsig::armoured(SESSION_END_NAMESPACE, &self.signature).map_err(RecordError::EndSignature)
    }
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
