//! One record: what a client signed, its signature, and the key that made it.

use usher_proto::ssh_key::PublicKey;
use usher_proto::statement::MAX_STATEMENT_SIZE;
use usher_proto::{Authenticator, DecodeError, MAX_SIGNATURE_SIZE, Refusal, Statement, session_id};

/// Longest record in bytes, as it is in the log. The formats inside are bounded lower; the
/// entry bundles of C2SP tlog-tiles could hold 65,535.
pub const MAX_RECORD: usize = 16 * 1024;

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
    /// The public key in its wire form (RFC 4253 section 6.6). The signature has it inside, too;
    /// here it can be read without knowing SSHSIG.
    pub public_key: Vec<u8>,
}

/// What a record says, once its signature is known to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What was signed.
    pub statement: Statement,
    /// The key that signed. Whose it is, the log does not know.
    pub key: PublicKey,
}

impl Record {
    /// A record of an authenticator whose signature is good.
    ///
    /// # Errors
    /// [`RecordError::Signature`] and [`RecordError::Statement`].
    pub fn new(authenticator: Authenticator) -> Result<Self, RecordError> {
        let key = authenticator
            .verify_signature()
            .map_err(RecordError::Signature)?;
        Statement::decode(&authenticator.statement).map_err(RecordError::Statement)?;
        Ok(Self {
            authenticator,
            public_key: key_bytes(&key)?,
        })
    }

    /// Checks the signature and reads the statement.
    ///
    /// # Errors
    /// [`RecordError`]; which users the key belongs to is not looked at.
    pub fn verify(&self) -> Result<Verified, RecordError> {
        let key = self
            .authenticator
            .verify_signature()
            .map_err(RecordError::Signature)?;
        if key_bytes(&key)? != self.public_key {
            return Err(RecordError::OtherKey);
        }
        let statement =
            Statement::decode(&self.authenticator.statement).map_err(RecordError::Statement)?;
        Ok(Verified { statement, key })
    }

    /// The session that the statement opened, by which daemons and `usher who` name it.
    #[must_use]
    pub fn session(&self) -> usher_proto::SessionId {
        session_id(&self.authenticator.statement)
    }

    /// The bytes in the log, which are what is hashed into the tree.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Authenticator {
            statement,
            signature,
        } = &self.authenticator;
        let parts = [statement, signature, &self.public_key];
        let mut out =
            Vec::with_capacity(1 + parts.iter().map(|part| 4 + part.len()).sum::<usize>());
        out.push(RECORD_VERSION);
        for part in parts {
            // Parts that do not fit are refused by the decoder, as the lengths say.
            out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    /// Reads the bytes in the log. Says nothing about truth: [`Record::verify`] does.
    ///
    /// # Errors
    /// [`DecodeError`]; no two byte strings decode to the same record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MAX_RECORD {
            return Err(DecodeError::Oversized);
        }
        let (&version, mut rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
        if version != RECORD_VERSION {
            return Err(DecodeError::UnknownVersion);
        }
        let statement = string(&mut rest, MAX_STATEMENT_SIZE)?;
        let signature = string(&mut rest, MAX_SIGNATURE_SIZE)?;
        let public_key = string(&mut rest, MAX_PUBLIC_KEY_SIZE)?;
        if !rest.is_empty() {
            return Err(DecodeError::TrailingBytes);
        }
        Ok(Self {
            authenticator: Authenticator {
                statement,
                signature,
            },
            public_key,
        })
    }
}

/// An RFC 4251 `string` of at most `limit` bytes.
fn string(rest: &mut &[u8], limit: usize) -> Result<Vec<u8>, DecodeError> {
    let (length, after) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(DecodeError::Oversized);
    }
    let (part, after) = after
        .split_at_checked(length)
        .ok_or(DecodeError::Truncated)?;
    *rest = after;
    Ok(part.to_vec())
}

fn key_bytes(key: &PublicKey) -> Result<Vec<u8>, RecordError> {
    key.to_bytes().map_err(|_| {
        RecordError::Malformed(DecodeError::Malformed {
            field: "public key",
        })
    })
}
