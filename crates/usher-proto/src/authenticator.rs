//! The authenticator: a statement and the user's SSHSIG signature over it.
//!
//! SSHSIG (OpenSSH, PROTOCOL.sshsig) so that `ssh-keygen -Y verify` checks the log, and so that
//! keys on a security key (FIDO, OpenSSH's PROTOCOL.u2f) or in an ssh-agent can sign.

use crate::certificate::{Certificate, is_certificate};
use crate::codec::{Reader, put_string};
use crate::statement::MAX_STATEMENT_SIZE;
use crate::verification::verify;
use crate::{DecodeError, Refusal, Statement};
use ssh_encoding::pem::PemLabel;
use ssh_encoding::{Decode, Encode, EncodePem, Writer};
use ssh_key::{
    Algorithm, EcdsaCurve, HashAlg, LineEnding, PrivateKey, PublicKey, Signature, SshSig,
};

/// The SSHSIG namespace of authenticators: a signature made for git, for files or for mail can
/// never open a session, and an authenticator proves nothing elsewhere.
pub const NAMESPACE: &str = "authenticator@usher";

/// Longest SSHSIG blob in bytes. An Ed25519 one has 189, ECDSA P-384 about 400.
pub const MAX_SIGNATURE_SIZE: usize = 4096;

const SSHSIG_MAGIC: &[u8] = b"SSHSIG";
const SSHSIG_VERSION: u32 = 1;
const SSHSIG_HASH: &[u8] = b"sha512";

/// What follows the value in a security key's signature: a byte of flags, a counter of 4 bytes.
const SECURITY_KEY_TRAILER: usize = 5;
/// The flag that says that somebody touched the security key (user presence, CTAP2 section 6.1).
const USER_PRESENT: u8 = 1;

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
        let envelope = Envelope {
            public_key: &public_key,
            namespace: NAMESPACE.as_bytes(),
            hash: SSHSIG_HASH,
            signature,
        };
        let authenticator = Self {
            statement,
            signature: envelope.with_key(&public_key),
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
        let former = Envelope::decode(&self.signature)?;
        let certified = Self {
            signature: former.with_key(certificate.as_bytes()),
            statement: self.statement.clone(),
        };
        certified.verify_signature()?;
        Ok(certified)
    }

    /// What is signed of a statement (PROTOCOL.sshsig): what an agent is given.
    ///
    /// # Errors
    /// [`SignError::Signature`], for no input that is known.
    pub fn signed_data(statement: &[u8]) -> Result<Vec<u8>, SignError> {
        SshSig::signed_data(NAMESPACE, HashAlg::Sha512, statement).map_err(SignError::Signature)
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
    /// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::UnknownVersion`],
    /// [`Refusal::Malformed`] when it is no canonical SSHSIG blob; [`Refusal::UnsupportedKey`]
    /// for other keys than those of [`is_supported`], for weak Ed25519 keys, and for another hash
    /// than SHA-512; [`Refusal::BadSignature`] when it is for another namespace or does not verify;
    /// [`Refusal::UserNotPresent`] when a security key has signed without a touch.
    pub fn verify_signature(&self) -> Result<Signed, Refusal> {
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
        let (signature, certificate) = envelope.decode_signed(&self.signature)?;
        let algorithm = signature.public_key().algorithm();
        if signature.algorithm() != algorithm {
            return Err(Refusal::Malformed);
        }
        let signed = Self::signed_data(&self.statement).map_err(|_| Refusal::BadSignature)?;
        verify(signature.public_key(), &signed, signature.signature())?;
        refuse_absent_user(signature.signature())?;
        if let Some(certificate) = &certificate {
            certificate.verify()?;
        }
        Ok(Signed {
            key: PublicKey::from(signature.public_key().clone()),
            certificate,
        })
    }

    /// The signature in the armoured form that `ssh-keygen -Y verify -s` reads.
    ///
    /// # Errors
    /// [`Refusal`] when the signature is not a canonical SSHSIG blob.
    pub fn signature_pem(&self) -> Result<String, Refusal> {
        Envelope::decode(&self.signature)?.decode_signed(&self.signature)?;
        Armoured(&self.signature)
            .encode_pem_string(LineEnding::LF)
            .map_err(|_| MALFORMED_SIGNATURE.into())
    }
}

/// Who has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The key.
    pub key: PublicKey,
    /// What an authority says of it; its signature is good.
    pub certificate: Option<Certificate>,
}

impl Signed {
    /// What stands in the signature for the key, in its wire form: the certificate, or the key.
    ///
    /// # Errors
    /// [`Refusal::UnsupportedKey`], for no key that was decoded.
    pub fn public_key(&self) -> Result<Vec<u8>, Refusal> {
        match &self.certificate {
            Some(certificate) => Ok(certificate.as_bytes().to_vec()),
            None => self.key.to_bytes().map_err(|_| Refusal::UnsupportedKey),
        }
    }
}

/// The bytes of a blob as they came: `SshSig` of ssh-key 0.6.7 writes ECDSA signatures of security
/// keys otherwise than OpenSSH, with flags and counter inside the string before them.
struct Armoured<'a>(&'a [u8]);

impl PemLabel for Armoured<'_> {
    const PEM_LABEL: &'static str = "SSH SIGNATURE";
}

impl Encode for Armoured<'_> {
    fn encoded_len(&self) -> ssh_encoding::Result<usize> {
        Ok(self.0.len())
    }

    fn encode(&self, writer: &mut impl Writer) -> ssh_encoding::Result<()> {
        writer.write(self.0)
    }
}

const MALFORMED_SIGNATURE: DecodeError = DecodeError::Malformed { field: "signature" };

/// The outer fields of an SSHSIG blob. Read first, with bounds, so that the general decoder
/// behind it only sees blobs whose outer lengths are consistent.
struct Envelope<'a> {
    public_key: &'a [u8],
    namespace: &'a [u8],
    hash: &'a [u8],
    signature: &'a [u8],
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
        let signature = reader.string(MAX_SIGNATURE_SIZE)?;
        reader.finish()?;
        Ok(Self {
            public_key,
            namespace,
            hash,
            signature,
        })
    }

    /// The blob with another key in it.
    fn with_key(&self, public_key: &[u8]) -> Vec<u8> {
        let mut blob = Vec::with_capacity(1024);
        blob.extend_from_slice(SSHSIG_MAGIC);
        blob.extend_from_slice(&SSHSIG_VERSION.to_be_bytes());
        put_string(&mut blob, public_key);
        put_string(&mut blob, self.namespace);
        put_string(&mut blob, b"");
        put_string(&mut blob, self.hash);
        put_string(&mut blob, self.signature);
        blob
    }

    /// The whole blob, and the certificate in it, which is never given to the general decoder: that
    /// one sees the blob as it would be without.
    fn decode_signed(&self, blob: &[u8]) -> Result<(SshSig, Option<Certificate>), Refusal> {
        if is_certificate(self.public_key) {
            let certificate = Certificate::decode(self.public_key)?;
            let key = certificate.key.to_bytes();
            let key = key.map_err(|_| Refusal::UnsupportedKey)?;
            let plain = self.with_key(&key);
            let signature = Envelope::decode(&plain)?.decode_sshsig(&plain)?;
            return Ok((signature, Some(certificate)));
        }
        let algorithm = key_algorithm(self.public_key)?;
        if !is_supported(&algorithm) {
            return Err(Refusal::UnsupportedKey);
        }
        let signature = self.decode_sshsig(blob)?;
        if signature.public_key().algorithm() != algorithm {
            return Err(Refusal::Malformed);
        }
        Ok((signature, None))
    }

    /// The whole blob, refused unless encoding its key and its signature again gives the same
    /// bytes.
    fn decode_sshsig(&self, blob: &[u8]) -> Result<SshSig, DecodeError> {
        let decoded = SshSig::decode(&mut &*blob).map_err(|_| MALFORMED_SIGNATURE)?;
        let mut public_key = Vec::with_capacity(self.public_key.len());
        decoded
            .public_key()
            .encode(&mut public_key)
            .map_err(|_| MALFORMED_SIGNATURE)?;
        if public_key != self.public_key || encode_signature(decoded.signature()) != self.signature
        {
            return Err(MALFORMED_SIGNATURE);
        }
        Ok(decoded)
    }
}

/// RFC 4253 section 6.6; of a security key with its trailer, PROTOCOL.u2f.
fn encode_signature(signature: &Signature) -> Vec<u8> {
    let (value, trailer) = split_trailer(signature);
    let mut out = Vec::with_capacity(signature.as_bytes().len() + 64);
    put_string(&mut out, signature.algorithm().as_str().as_bytes());
    put_string(&mut out, value);
    out.extend_from_slice(trailer);
    out
}

/// The signature's value, and the flags and the counter that follow it on a security key.
fn split_trailer(signature: &Signature) -> (&[u8], &[u8]) {
    let bytes = signature.as_bytes();
    let trailer = if is_security_key(&signature.algorithm()) {
        SECURITY_KEY_TRAILER
    } else {
        0
    };
    bytes.split_at(bytes.len().saturating_sub(trailer))
}

/// Refuses what a security key has signed without a touch: malware on the user's host could have
/// asked for it unnoticed.
fn refuse_absent_user(signature: &Signature) -> Result<(), Refusal> {
    let (_, trailer) = split_trailer(signature);
    match trailer.first() {
        Some(flags) if flags & USER_PRESENT == 0 => Err(Refusal::UserNotPresent),
        _ => Ok(()),
    }
}

/// The algorithm a public key blob begins with; anything unknown is unsupported rather than
/// malformed, so that a user with a newer kind of key is told what to do.
fn key_algorithm(public_key: &[u8]) -> Result<Algorithm, Refusal> {
    let name = Reader::new(public_key).string(MAX_SIGNATURE_SIZE)?;
    let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
    name.parse().map_err(|_| Refusal::UnsupportedKey)
}

/// Whether a user's key may be of this kind: Ed25519, ECDSA P-256 and P-384, and Ed25519 and ECDSA
/// P-256 on a security key.
#[must_use]
pub fn is_supported(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Ed25519
            | Algorithm::Ecdsa {
                curve: EcdsaCurve::NistP256 | EcdsaCurve::NistP384
            }
    ) || is_security_key(algorithm)
}

/// Whether keys of this kind are on a security key: a file has no more than a reference to it.
#[must_use]
pub fn is_security_key(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256
    )
}
