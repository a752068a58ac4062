//! The authenticator: a statement and the user's SSHSIG signature over it.
//!
//! SSHSIG (OpenSSH, PROTOCOL.sshsig) so that `ssh-keygen -Y verify` checks the log, and so that
//! keys on a security key (FIDO, OpenSSH's PROTOCOL.u2f) or in an ssh-agent can sign.

use ssh_encoding::Encode;
use ssh_key::{Algorithm, HashAlg, PrivateKey, PublicKey};

use crate::key::{is_security_key, is_supported};
use crate::sshsig::{self, MAX_SIGNATURE_SIZE, Signed};
use crate::statement::MAX_STATEMENT_SIZE;
use crate::{Certificate, Refusal, Statement};
use usher_base::codec::{Bytes, fields};

/// The SSHSIG namespace of authenticators: a signature made for git, for files or for mail can
/// never open a session, and an authenticator proves nothing elsewhere.
pub const NAMESPACE: &str = "authenticator@usher";

/// Why a statement could not be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The private key is still under its passphrase.
    #[error("the private key is protected by a passphrase")]
    Encrypted,
    /// A file of this kind holds no key that can sign here.
    #[error(
        "keys of the kind {0} do not sign from a file: use an Ed25519 or ECDSA key, or an agent"
    )]
    UnsupportedKey(Algorithm),
    /// The signature operation failed.
    #[error("the signature could not be made")]
    Signature(#[source] ssh_key::Error),
}

/// A statement and the signature over it, both as the bytes they are on the wire and in the log.
///
/// Nothing is promised about the bytes until [`Authenticator::verify_signature`] succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authenticator {
    /// [`Statement::encode`]'s bytes, at most [`MAX_STATEMENT_SIZE`].
    pub statement: Vec<u8>,
    /// The binary SSHSIG blob, at most [`MAX_SIGNATURE_SIZE`] bytes.
    pub signature: Vec<u8>,
}

fields! {
    Authenticator {
        statement: Vec<u8> as Bytes<MAX_STATEMENT_SIZE>,
        signature: Vec<u8> as Bytes<MAX_SIGNATURE_SIZE>,
    }
}

impl Authenticator {
    /// Signs a statement: SSHSIG, namespace [`NAMESPACE`], SHA-512. Deterministic (RFC 8032,
    /// RFC 6979).
    ///
    /// # Errors
    /// [`SignError`]; the key is never part of it.
    pub fn sign(statement: &Statement, key: &PrivateKey) -> Result<Self, SignError> {
        if key.is_encrypted() {
            return Err(SignError::Encrypted);
        }
        let algorithm = key.algorithm();
        if !is_supported(&algorithm) || is_security_key(&algorithm) {
            return Err(SignError::UnsupportedKey(algorithm));
        }
        let statement = statement.encode();
        let signature = key
            .sign(NAMESPACE, HashAlg::Sha512, &statement)
            .map_err(SignError::Signature)?;
        let mut blob = Vec::with_capacity(512);
        signature
            .encode(&mut blob)
            .map_err(|error| SignError::Signature(ssh_key::Error::Encoding(error)))?;
        Ok(Self {
            statement,
            signature: blob,
        })
    }

    /// Puts together a statement and the signature that somebody else's agent made over
    /// [`Authenticator::signed_data`]. Gives nothing that a verifier would refuse for its signature.
    ///
    /// # Errors
    /// As [`Authenticator::verify_signature`]; [`Refusal::BadSignature`] also for what another key
    /// has signed.
    pub fn from_signature(
        statement: Vec<u8>,
        key: &PublicKey,
        signature: &[u8],
    ) -> Result<Self, Refusal> {
        let public_key = key.to_bytes().map_err(|_| Refusal::UnsupportedKey)?;
        let authenticator = Self {
            statement,
            signature: sshsig::blob(&public_key, NAMESPACE, signature),
        };
        let signer = authenticator.verify_signature()?.key;
        if signer.key_data() != key.key_data() {
            return Err(Refusal::BadSignature);
        }
        Ok(authenticator)
    }

    /// The same, with the certificate of the key that signed in the key's place, as `ssh-keygen -Y
    /// sign -f KEY-cert.pub` makes it. The signature is over the statement only, and stays.
    ///
    /// # Errors
    /// As [`Authenticator::verify_signature`]; [`Refusal::BadSignature`] also for a certificate of
    /// another key.
    pub fn with_certificate(self, certificate: &Certificate) -> Result<Self, Refusal> {
        let certified = Self {
            signature: sshsig::with_certificate(&self.signature, certificate)?,
            statement: self.statement,
        };
        certified.verify_signature()?;
        Ok(certified)
    }

    /// What is signed of a statement (PROTOCOL.sshsig): what an agent is given.
    ///
    /// # Errors
    /// [`SignError::Signature`], for no input that is known.
    pub fn signed_data(statement: &[u8]) -> Result<Vec<u8>, SignError> {
        sshsig::signed_data(NAMESPACE, statement).map_err(SignError::Signature)
    }

    /// Checks the signature over the statement bytes and gives the key that made it, with its
    /// certificate where that stands in its place.
    ///
    /// This says only that the holder of *that* key signed *these* bytes for this purpose, and
    /// touched it where it is on a security key, and that the authority in the certificate has
    /// signed that. The caller asks whether the key or the authority counts for the user
    /// ([`Refusal::UnknownKey`], [`Refusal::UnknownAuthority`]) and the certificate now
    /// ([`Certificate::check`]), and checks the statement.
    ///
    /// # Errors
    /// [`Refusal::Oversized`] for a statement above its limit, and those of the signature:
    /// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::UnknownVersion`],
    /// [`Refusal::Malformed`] when it is no canonical SSHSIG blob; [`Refusal::UnsupportedKey`]
    /// for other keys than those of [`sshsig::is_supported`], for weak Ed25519 keys, and for another
    /// hash than SHA-512; [`Refusal::BadSignature`] when it is for another namespace or does not
    /// verify; [`Refusal::UserNotPresent`] when a security key has signed without a touch.
    pub fn verify_signature(&self) -> Result<Signed, Refusal> {
        if self.statement.len() > MAX_STATEMENT_SIZE {
            return Err(Refusal::Oversized);
        }
        sshsig::verify(NAMESPACE, &self.statement, &self.signature)
    }

    /// The signature in the armoured form that `ssh-keygen -Y verify -s` reads.
    ///
    /// # Errors
    /// [`Refusal`] when the signature is not a canonical SSHSIG blob.
    pub fn signature_pem(&self) -> Result<String, Refusal> {
        sshsig::armoured(NAMESPACE, &self.signature)
    }
}
