//! The authenticator: a statement and the user's SSHSIG signature over it.
//!
//! With SSHSIG (OpenSSH, PROTOCOL.sshsig) `ssh-keygen -Y verify` can check the log, and security keys
//! (FIDO, OpenSSH PROTOCOL.u2f) and ssh-agents can sign.

use std::borrow::Cow;

use ssh_encoding::Encode;
use ssh_key::public::KeyData;
use ssh_key::{Algorithm, HashAlg, PrivateKey, PublicKey};

use crate::agent::{self, SignatureFault};
use crate::key::{rsa_numbers, signs_from_a_file};
use crate::sshsig::{self, MAX_SIGNATURE_SIZE, Signed};
use crate::statement::MAX_STATEMENT_SIZE;
use crate::{Certificate, Refusal, Statement};
use usher_base::codec::{Bytes, Reader, fields, put_string};

/// The SSHSIG namespace of authenticators: signatures made for git, files or mail open no session, and
/// an authenticator proves nothing elsewhere.
pub const NAMESPACE: &str = "authenticator@usher";

/// A statement that could not be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The private key has a passphrase.
    #[error("the private key is protected by a passphrase")]
    Encrypted,
    /// Keys of this kind cannot sign from a file.
    #[error(
        "{0} keys do not sign from a file: use an agent, or an Ed25519 or ECDSA P-256 or P-384 key"
    )]
    UnsupportedKey(Algorithm),
    /// The signature operation failed.
    #[error("cannot make the signature")]
    Signature(#[source] ssh_key::Error),
}

/// A statement and the signature over it, as their bytes on the wire and in the log.
///
/// The bytes are unchecked until [`Authenticator::verify_signature`] succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authenticator {
    /// The bytes of [`Statement::encode`], at most [`MAX_STATEMENT_SIZE`].
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
        if !signs_from_a_file(&algorithm) {
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

    /// Joins a statement and an agent's signature over [`Authenticator::signed_data`], and verifies
    /// the result.
    ///
    /// # Errors
    /// As [`Authenticator::verify_signature`]; [`Refusal::BadSignature`] also if another key has
    /// signed, [`Refusal::Malformed`] also for another algorithm than
    /// [`sign_request`](crate::agent::sign_request) asks for.
    pub fn from_signature(
        statement: Vec<u8>,
        key: &PublicKey,
        signature: &[u8],
    ) -> Result<Self, Refusal> {
        let public_key = key.to_bytes().map_err(|_| Refusal::UnsupportedKey)?;
        agent::check_algorithm(&public_key, signature).map_err(|fault| match fault {
            SignatureFault::Sha1 => Refusal::Sha1Signature,
            SignatureFault::Algorithm { .. } | SignatureFault::Form(_) => Refusal::Malformed,
        })?;
        let signature = with_leading_zeros(key.key_data(), signature);
        let authenticator = Self {
            statement,
            signature: sshsig::blob(&public_key, NAMESPACE, &signature),
        };
        let signer = authenticator.verify_signature()?.key;
        if signer.key_data() != key.key_data() {
            return Err(Refusal::BadSignature);
        }
        Ok(authenticator)
    }

    /// Replaces the key inside the signature by its certificate, as `ssh-keygen -Y sign -f KEY-cert.pub`
    /// does. The signature covers only the statement, so the signature stays valid.
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

    /// The bytes that an agent signs for a statement (PROTOCOL.sshsig).
    ///
    /// # Errors
    /// [`SignError::Signature`]; no known input causes it.
    pub fn signed_data(statement: &[u8]) -> Result<Vec<u8>, SignError> {
        sshsig::signed_data(NAMESPACE, statement).map_err(SignError::Signature)
    }

    /// Checks the signature over the statement bytes, and returns the key that made it and the
    /// certificate that took its place, if there is one.
    ///
    /// This proves only that the holder of *that* key signed *these* bytes for this purpose, with a
    /// touch if it is on a security key, and that the authority in the certificate signed the
    /// certificate. The caller checks whether the key or the authority is trusted for the user
    /// ([`Refusal::UnknownKey`], [`Refusal::UnknownAuthority`]), whether the certificate is valid now
    /// ([`Certificate::check`]), and the statement.
    ///
    /// # Errors
    /// [`Refusal::Oversized`] for a statement above its limit, and for the signature:
    /// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::UnknownVersion`],
    /// [`Refusal::Malformed`] if it is not a canonical SSHSIG blob; [`Refusal::UnsupportedKey`] for
    /// kinds of keys that [`is_supported`](crate::key::is_supported) excludes, weak Ed25519 keys, and
    /// hashes other than SHA-512; [`Refusal::UnsuitableRsaKey`], [`Refusal::Sha1Signature`];
    /// [`Refusal::BadSignature`] if it is for another namespace or does not verify;
    /// [`Refusal::UserNotPresent`] if a security key signed without a touch.
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

/// Pads an RSA signature to the length of the modulus, its only spelling here. Agents may leave out leading
/// zeros, which sshd(8) accepts.
fn with_leading_zeros<'s>(key: &KeyData, signature: &'s [u8]) -> Cow<'s, [u8]> {
    let KeyData::Rsa(key) = key else {
        return signature.into();
    };
    let mut reader = Reader::new(signature);
    let mut part = || reader.string(MAX_SIGNATURE_SIZE);
    let (Ok(algorithm), Ok(value)) = (part(), part()) else {
        return signature.into();
    };
    let missing = rsa_numbers(key).0.len().saturating_sub(value.len());
    if missing == 0 || !reader.is_empty() {
        return signature.into();
    }
    let mut out = Vec::with_capacity(signature.len() + missing);
    put_string(&mut out, algorithm);
    put_string(&mut out, &[vec![0; missing].as_slice(), value].concat());
    out.into()
}
