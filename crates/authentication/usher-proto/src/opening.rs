//! What a session is opened with, as the daemons of the server's host tell each other.

use ssh_key::HashAlg;

use crate::certificate::Certified;
use crate::key::KEY_FINGERPRINT_SIZE;
use crate::log_record::{MAX_LOG_RECORD, Verified};
use crate::session_end::Signed;
use crate::statement::MAX_STATEMENT_SIZE;
use crate::{Refusal, SessionId, Statement, session_id};
use usher_base::codec::{Bytes, fields};

/// What a user has signed, and with which key. The verifier says so to the keeper, and the recorder
/// keeps what was signed when it finds the same: the keeper believes what both find.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opening {
    /// What was signed.
    pub statement: Statement,
    /// SHA-256 of the key that signed, in its wire form.
    pub key_fingerprint: [u8; KEY_FINGERPRINT_SIZE],
    /// By which certificate the key is the user's; none: it is listed itself.
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
    /// What was signed, by the verifier's word.
    pub opening: Opening,
    /// The record, at most [`MAX_LOG_RECORD`] bytes: see [`crate::log_record`].
    pub record: Vec<u8>,
}

fields! { Authentication { opening: Opening, record: Vec<u8> as Bytes<MAX_LOG_RECORD> } }

impl Opening {
    /// The longest encoding in bytes.
    pub(crate) const MAX_SIZE: usize =
        4 + MAX_STATEMENT_SIZE + KEY_FINGERPRINT_SIZE + 1 + Certified::MAX_SIZE;

    /// Of an authenticator whose signature is good, at `now` in seconds since 1970.
    ///
    /// # Errors
    /// Those of [`Certificate::check`](crate::Certificate::check), as a certificate counts in its
    /// time only; [`Refusal::UnsupportedKey`].
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

    /// The session that it opens.
    #[must_use]
    pub fn session(&self) -> SessionId {
        session_id(&self.statement.encode())
    }
}
