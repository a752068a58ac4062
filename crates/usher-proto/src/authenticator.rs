//! The authenticator: a statement and the user's SSHSIG signature over it.
//!
//! SSHSIG (OpenSSH, PROTOCOL.sshsig) so that `ssh-keygen -Y verify` checks the log, and so that
//! every key an ssh-agent can hold can sign.

use crate::codec::Reader;
use crate::statement::MAX_STATEMENT_SIZE;
use crate::{DecodeError, Refusal, Statement};
use ssh_encoding::{Decode, Encode};
use ssh_key::public::KeyData;
use ssh_key::{Algorithm, EcdsaCurve, HashAlg, LineEnding, PrivateKey, PublicKey, SshSig};

/// The SSHSIG namespace of authenticators: a signature made for git, for files or for mail can
/// never open a session, and an authenticator proves nothing elsewhere.
pub const NAMESPACE: &str = "authenticator@usher";

/// Longest SSHSIG blob in bytes. An Ed25519 one has 189, ECDSA P-384 about 400.
pub const MAX_SIGNATURE_SIZE: usize = 4096;

const SSHSIG_MAGIC: &[u8] = b"SSHSIG";
const SSHSIG_VERSION: u32 = 1;
const SSHSIG_HASH: &[u8] = b"sha512";

/// Why a statement could not be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The private key is still under its passphrase.
    #[error("the private key is protected by a passphrase")]
    Encrypted,
    /// Keys of this kind are not accepted by verifiers of this version.
    #[error("keys of the kind {0} are not supported: use an Ed25519 or ECDSA key")]
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
        if !is_supported(&algorithm) {
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

    /// Checks the signature over the statement bytes and gives the key that made it.
    ///
    /// This says only that the holder of *that* key signed *these* bytes for this purpose. The
    /// caller looks the key up among the user's keys ([`Refusal::UnknownKey`]) and checks the
    /// statement.
    ///
    /// # Errors
    /// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::UnknownVersion`],
    /// [`Refusal::Malformed`] when it is no canonical SSHSIG blob; [`Refusal::UnsupportedKey`]
    /// for other keys than Ed25519, ECDSA P-256 and P-384, for weak Ed25519 keys, and for another
    /// hash than SHA-512; [`Refusal::BadSignature`] when it is for another namespace or does not
    /// verify.
    pub fn verify_signature(&self) -> Result<PublicKey, Refusal> {
        if self.statement.len() > MAX_STATEMENT_SIZE {
            return Err(Refusal::Oversized);
        }
        let envelope = Envelope::decode(&self.signature)?;
        if envelope.namespace != NAMESPACE.as_bytes() {
            return Err(Refusal::BadSignature);
        }
        if envelope.hash != SSHSIG_HASH {
            return Err(Refusal::UnsupportedKey);
        }
        let algorithm = key_algorithm(envelope.public_key)?;
        if !is_supported(&algorithm) {
            return Err(Refusal::UnsupportedKey);
        }
        let signature = decode_sshsig(&self.signature)?;
        if signature.public_key().algorithm() != algorithm || signature.algorithm() != algorithm {
            return Err(Refusal::Malformed);
        }
        refuse_weak_key(signature.public_key())?;
        let key = PublicKey::from(signature.public_key().clone());
        key.verify(NAMESPACE, &self.statement, &signature)
            .map_err(|_| Refusal::BadSignature)?;
        Ok(key)
    }

    /// The signature in the armoured form that `ssh-keygen -Y verify -s` reads.
    ///
    /// # Errors
    /// [`DecodeError`] when the signature is not a canonical SSHSIG blob.
    pub fn signature_pem(&self) -> Result<String, DecodeError> {
        Envelope::decode(&self.signature)?;
        decode_sshsig(&self.signature)?
            .to_pem(LineEnding::LF)
            .map_err(|_| MALFORMED_SIGNATURE)
    }
}

const MALFORMED_SIGNATURE: DecodeError = DecodeError::Malformed { field: "signature" };

/// The outer fields of an SSHSIG blob. Read first, with bounds, so that the general decoder
/// behind it only sees blobs whose outer lengths are consistent.
struct Envelope<'a> {
    public_key: &'a [u8],
    namespace: &'a [u8],
    hash: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn decode(blob: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(blob, MAX_SIGNATURE_SIZE)?;
        if reader.take(SSHSIG_MAGIC.len())? != SSHSIG_MAGIC {
            return Err(MALFORMED_SIGNATURE);
        }
        if reader.u32()? != SSHSIG_VERSION {
            return Err(DecodeError::UnknownVersion);
        }
        let public_key = reader.string(MAX_SIGNATURE_SIZE)?;
        let namespace = reader.string(MAX_SIGNATURE_SIZE)?;
        // SSHSIG reserves this field for later; here it would be a second spelling.
        if !reader.string(MAX_SIGNATURE_SIZE)?.is_empty() {
            return Err(MALFORMED_SIGNATURE);
        }
        let hash = reader.string(MAX_SIGNATURE_SIZE)?;
        reader.string(MAX_SIGNATURE_SIZE)?;
        reader.finish()?;
        Ok(Self {
            public_key,
            namespace,
            hash,
        })
    }
}

/// The whole blob, refused unless encoding it again gives the same bytes.
fn decode_sshsig(blob: &[u8]) -> Result<SshSig, DecodeError> {
    let signature = SshSig::decode(&mut &*blob).map_err(|_| MALFORMED_SIGNATURE)?;
    let mut again = Vec::with_capacity(blob.len());
    signature
        .encode(&mut again)
        .map_err(|_| MALFORMED_SIGNATURE)?;
    if again != blob {
        return Err(MALFORMED_SIGNATURE);
    }
    Ok(signature)
}

/// The algorithm a public key blob begins with; anything unknown is unsupported rather than
/// malformed, so that a user with a newer kind of key is told what to do.
fn key_algorithm(public_key: &[u8]) -> Result<Algorithm, Refusal> {
    let name = Reader::new(public_key).string(MAX_SIGNATURE_SIZE)?;
    let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
    name.parse().map_err(|_| Refusal::UnsupportedKey)
}

pub(crate) fn is_supported(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Ed25519
            | Algorithm::Ecdsa {
                curve: EcdsaCurve::NistP256 | EcdsaCurve::NistP384
            }
    )
}

/// Refuses Ed25519 keys of small order: under such a key one signature fits many statements, and
/// anybody can make it (RFC 8032 section 8.7 leaves the check to the application). The log would
/// prove nothing.
pub(crate) fn refuse_weak_key(key: &KeyData) -> Result<(), Refusal> {
    if let KeyData::Ed25519(key) = key {
        let key = ed25519_dalek::VerifyingKey::try_from(key).map_err(|_| Refusal::BadSignature)?;
        if key.is_weak() {
            return Err(Refusal::UnsupportedKey);
        }
    }
    Ok(())
}
