//! A record of the signed log: what a client signed, its signature, and the key that made it.

use ssh_key::PublicKey;

use crate::codec::{Reader, put_string};
use crate::{
    Authenticator, Certificate, DecodeError, MAX_SIGNATURE_SIZE, MAX_STATEMENT_SIZE, Refusal,
    SessionId, Statement, session_id,
};

/// Longest record in bytes. The formats inside are bounded lower; the entry bundles of C2SP
/// tlog-tiles could hold 65,535.
pub const MAX_LOG_RECORD: usize = 16 * 1024;

/// Longest public key in bytes (RFC 4253 section 6.6). An Ed25519 one has 51.
pub const MAX_PUBLIC_KEY_SIZE: usize = 4096;

const RECORD_VERSION: u8 = 1;

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
}

/// One authentication, as the bytes that came from the client.
///
/// Nothing is promised about the bytes until [`Record::verify`] succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Statement and SSHSIG signature.
    pub authenticator: Authenticator,
    /// The public key in its wire form (RFC 4253 section 6.6), or its certificate, which has it
    /// inside. The signature has it, too; here it can be read without knowing SSHSIG.
    pub public_key: Vec<u8>,
}

/// What a record says, once its signature is known to be good.
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
            public_key: signed.public_key().map_err(RecordError::Signature)?,
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
        if signed.public_key().map_err(RecordError::Signature)? != self.public_key {
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

    /// The session that the statement opened, by which daemons and `usher who` name it.
    #[must_use]
    pub fn session(&self) -> SessionId {
        session_id(&self.authenticator.statement)
    }

    /// The bytes in the log, which are what is hashed into the tree.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Authenticator {
            statement,
            signature,
        } = &self.authenticator;
        let mut out = vec![RECORD_VERSION];
        for part in [statement, signature, &self.public_key] {
            put_string(&mut out, part);
        }
        out
    }

    /// Reads the bytes in the log. Says nothing about truth: [`Record::verify`] does.
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(bytes, MAX_LOG_RECORD)?;
        if reader.u8()? != RECORD_VERSION {
            return Err(DecodeError::UnknownVersion);
        }
        let authenticator = Authenticator {
            statement: reader.string(MAX_STATEMENT_SIZE)?.to_vec(),
            signature: reader.string(MAX_SIGNATURE_SIZE)?.to_vec(),
        };
        let public_key = reader.string(MAX_PUBLIC_KEY_SIZE)?.to_vec();
        reader.finish()?;
        Ok(Self {
            authenticator,
            public_key,
        })
    }
}
