//! The opening of a session, as the daemons of the server's host pass it on.

use ssh_key::HashAlg;

use crate::certificate::Certified;
use crate::key::KEY_FINGERPRINT_SIZE;
use crate::log_record::{MAX_LOG_RECORD, Verified};
use crate::session_end::Signed;
use crate::statement::MAX_STATEMENT_SIZE;
use crate::{Refusal, SessionId, Statement, session_id};
use usher_base::codec::{Bytes, fields};

/// A signed statement, and the key that signed it. The verifier claims an opening, and the recorder keeps the
/// log's record only if the record says the same. The keeper trusts what both have found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opening {
    /// The signed statement.
    pub statement: Statement,
    /// SHA-256 of the key that signed, in its wire form.
    pub key_fingerprint: [u8; KEY_FINGERPRINT_SIZE],
    /// The certificate by which the key is the user's; none if the key itself is listed.
    pub certificate: Option<Certified>,
}

fields! {
    Opening {
        statement: Statement as Signed,
        key_fingerprint: [u8; KEY_FINGERPRINT_SIZE],
        certificate: Option<Certified>,
    }
}

/// An opening, and the record of the log that proves it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authentication {
    /// The opening, as the verifier claims it.
    pub opening: Opening,
    /// The record, at most [`MAX_LOG_RECORD`] bytes: see [`crate::log_record`].
    pub record: Vec<u8>,
}

fields! { Authentication { opening: Opening, record: Vec<u8> as Bytes<MAX_LOG_RECORD> } }

impl Opening {
    /// The longest encoding in bytes.
    pub(crate) const MAX_SIZE: usize =
        4 + MAX_STATEMENT_SIZE + KEY_FINGERPRINT_SIZE + 1 + Certified::MAX_SIZE;

    /// The opening by an authenticator with a valid signature, at `now` in seconds since 1970.
    ///
    /// # Errors
    /// Those of [`Certificate::check`](crate::Certificate::check); [`Refusal::UnsupportedKey`].
    pub fn new(verified: Verified, now: u64) -> Result<Self, Refusal> {
        let certificate = match &verified.certificate {
            Some(certificate) => {
                certificate.check(now)?;
                Some(certificate.certified()?)
            }
            None => None,
        };
        let fingerprint = verified.key.fingerprint(HashAlg::Sha256);
        Ok(Self {
            statement: verified.statement,
            key_fingerprint: fingerprint.sha256().ok_or(Refusal::UnsupportedKey)?,
            certificate,
        })
    }

    /// The session that the statement opens.
    #[must_use]
    pub fn session(&self) -> SessionId {
        session_id(&self.statement.encode())
    }
}
