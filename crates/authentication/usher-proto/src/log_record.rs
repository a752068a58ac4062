//! The records of the signed log: what a client signed to authenticate, and how a session ended.

use ssh_key::PublicKey;

use crate::sshsig;
use crate::{
    Authenticator, Certificate, MAX_SESSION_END_SIZE, MAX_SIGNATURE_SIZE, Refusal,
    SESSION_END_NAMESPACE, SessionEnd, Statement,
};
use usher_base::DecodeError;
use usher_base::codec::{Bytes, Codec, Reader, fields};

/// Longest record in bytes. The formats inside are bounded lower; the entry bundles of C2SP
/// tlog-tiles could hold 65,535.
pub const MAX_LOG_RECORD: usize = 16 * 1024;

/// Longest public key in bytes (RFC 4253 section 6.6). An Ed25519 one has 51.
pub const MAX_PUBLIC_KEY_SIZE: usize = 4096;

/// The kinds of records, by their first byte.
const AUTHENTICATION: u8 = 1;
const END: u8 = 2;

/// Why a record does not belong in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes are no record.
    #[error("not a record: {0}")]
    Malformed(#[from] DecodeError),
    /// The statement inside is none.
    #[error("not a statement: {0}")]
    Statement(#[source] DecodeError),
    /// The signature is not one that opens sessions, or not one over this statement.
    #[error("not signed by the client: {0}")]
    Signature(#[source] Refusal),
    /// The public key beside the signature is not the one that made it.
    #[error("the public key beside the signature is not the one that made it")]
    OtherKey,
    /// What was signed as the end of a session is none.
    #[error("not the end of a session: {0}")]
    End(#[source] DecodeError),
    /// The signature of an end is none.
    #[error("not signed by the log: {0}")]
    EndSignature(#[source] Refusal),
    /// Another key has signed an end.
    #[error("signed by another key than the log's")]
    OtherLog,
}

/// A record of the log.
///
/// Nothing is promised about the bytes until [`Record::verify`] succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// A client has authenticated.
    Authentication(AuthenticationRecord),
    /// A session has ended.
    End(EndRecord),
}

/// One authentication, as the bytes that came from the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthenticationRecord {
    /// Statement and SSHSIG signature.
    pub authenticator: Authenticator,
    /// The public key in its wire form (RFC 4253 section 6.6), or its certificate, which has it
    /// inside. The signature has it, too; here it can be read without knowing SSHSIG.
    pub public_key: Vec<u8>,
}

/// The end of one session, signed with the log's key: who has not got that cannot write one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndRecord {
    /// [`SessionEnd::encode`]'s bytes, at most [`MAX_SESSION_END_SIZE`].
    pub end: Vec<u8>,
    /// The binary SSHSIG blob in the namespace [`SESSION_END_NAMESPACE`], at most
    /// [`MAX_SIGNATURE_SIZE`] bytes.
    pub signature: Vec<u8>,
}

/// What a record says, once its signature is known to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// What a client has signed.
    Authentication(Box<Verified>),
    /// What the log has signed.
    End(SessionEnd),
}

/// What the record of an authentication says, once its signature is known to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What was signed.
    pub statement: Statement,
    /// The key that signed. Whose it is, the log does not know.
    pub key: PublicKey,
    /// What an authority says of the key. Whether that authority counts, and whether the
    /// certificate was valid then, is not looked at.
    pub certificate: Option<Certificate>,
}

impl Record {
    /// Checks the signature, of an end against the key of the log, and reads what was signed.
    ///
    /// # Errors
    /// [`RecordError`]; which users the key of a client belongs to is not looked at.
    pub fn verify(&self, log: &PublicKey) -> Result<Says, RecordError> {
        match self {
            Self::Authentication(record) => Ok(Says::Authentication(Box::new(record.verify()?))),
            Self::End(record) => Ok(Says::End(record.verify(log)?)),
        }
    }

    /// The bytes in the log, which are what is hashed into the tree.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Authentication(record) => record.encode(),
            Self::End(record) => record.encode(),
        }
    }

    /// Reads the bytes in the log. Says nothing about truth: [`Record::verify`] does.
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = *bytes.first().ok_or(DecodeError::Truncated)?;
        match kind {
            END => Ok(Self::End(EndRecord::decode(bytes)?)),
            _ => Ok(Self::Authentication(AuthenticationRecord::decode(bytes)?)),
        }
    }
}

impl AuthenticationRecord {
    /// A record of an authenticator whose signature is good.
    ///
    /// # Errors
    /// [`RecordError::Signature`] and [`RecordError::Statement`].
    pub fn new(authenticator: Authenticator) -> Result<Self, RecordError> {
        let signed = authenticator
            .verify_signature()
            .map_err(RecordError::Signature)?;
        Statement::decode(&authenticator.statement).map_err(RecordError::Statement)?;
        Ok(Self {
            authenticator,
            public_key: signed.public_key,
        })
    }

    /// Checks the signature and reads the statement.
    ///
    /// # Errors
    /// [`RecordError`]; which users the key belongs to is not looked at.
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

    /// As [`Record::encode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(AUTHENTICATION, self)
    }

    /// As [`Record::decode`], of an authentication only.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(AUTHENTICATION, bytes)
    }
}

impl EndRecord {
    /// What the log signs with its key.
    ///
    /// # Errors
    /// For no input that is known.
    pub fn signed_data(end: &SessionEnd) -> Result<Vec<u8>, ssh_key::Error> {
        sshsig::signed_data(SESSION_END_NAMESPACE, &end.encode())
    }

    /// The record with the log's key and the signature that it has made over
    /// [`EndRecord::signed_data`].
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

    /// As [`Record::encode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(END, self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(END, bytes)
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

fn encode<T: Codec>(kind: u8, record: &T) -> Vec<u8> {
    let mut out = vec![kind];
    T::put(record, &mut out);
    out
}

fn decode<T: Codec>(kind: u8, bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::bounded(bytes, MAX_LOG_RECORD)?;
    if reader.u8()? != kind {
        return Err(DecodeError::UnknownType);
    }
    let record = T::read(&mut reader, "record")?;
    reader.finish()?;
    Ok(record)
}
