//! SSHSIG, the format of OpenSSH file signatures (PROTOCOL.sshsig), which `ssh-keygen -Y sign` makes
//! and `ssh-keygen -Y verify` checks. This module decides which of them are valid here, and which key
//! made them.

use ssh_encoding::pem::PemLabel;
use ssh_encoding::{Decode, Encode, EncodePem, Writer};
use ssh_key::public::{Ed25519PublicKey, KeyData};
use ssh_key::{Algorithm, HashAlg, LineEnding, PublicKey, Signature, SshSig};

use crate::Refusal;
use crate::certificate::{Certificate, is_certificate};
use crate::key::{is_security_key, is_supported};
use crate::verification::{self, is_by_kind, refuse_sha1};
use usher_base::DecodeError;
use usher_base::codec::{Reader, put_string};

/// Longest SSHSIG blob in bytes. An Ed25519 one has 189, an ECDSA P-384 one about 400. One by an RSA key of
/// 4,096 bits has 1,122, and 3,659 with the longest certificate.
pub const MAX_SIGNATURE_SIZE: usize = 4096;

const MAGIC: &[u8] = b"SSHSIG";
const VERSION: u32 = 1;
const HASH: &[u8] = b"sha512";
const ED25519: &[u8] = b"ssh-ed25519";

/// Bytes after the value in a security key's signature: flags, and a counter of 4 bytes.
const SECURITY_KEY_TRAILER: usize = 5;
/// The flag for a touch of the security key (user presence, CTAP2 section 6.1).
const USER_PRESENT: u8 = 1;

/// The bytes that are signed for a message and a purpose.
///
/// # Errors
/// No known input causes one.
pub(crate) fn signed_data(namespace: &str, message: &[u8]) -> Result<Vec<u8>, ssh_key::Error> {
    SshSig::signed_data(namespace, HashAlg::Sha512, message)
}

/// The blob of a key or certificate in its wire form, and its signature over [`signed_data`] in the
/// form of RFC 4253 section 6.6.
pub(crate) fn blob(public_key: &[u8], namespace: &str, signature: &[u8]) -> Vec<u8> {
    let envelope = Envelope {
        public_key,
        namespace: namespace.as_bytes(),
        hash: HASH,
        signature,
    };
    envelope.with_key(public_key)
}

/// As [`blob`], for an Ed25519 key.
pub(crate) fn ed25519_blob(
    public_key: &[u8; 32],
    namespace: &str,
    signature: &[u8; 64],
) -> Vec<u8> {
    let typed = |bytes: &[u8]| {
        let mut out = Vec::with_capacity(4 + ED25519.len() + 4 + bytes.len());
        put_string(&mut out, ED25519);
        put_string(&mut out, bytes);
        out
    };
    blob(&typed(public_key), namespace, &typed(signature))
}

/// The blob with a certificate in the place of its key.
///
/// # Errors
/// [`DecodeError`] when the bytes are not a blob.
pub(crate) fn with_certificate(
    blob: &[u8],
    certificate: &Certificate,
) -> Result<Vec<u8>, DecodeError> {
    Ok(Envelope::decode(blob)?.with_key(certificate.as_bytes()))
}

/// Checks a blob over a message for a purpose, and returns the key that made it, with the certificate
/// that took its place if there is one.
///
/// # Errors
/// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::UnknownVersion`],
/// [`Refusal::Malformed`] if it is not a canonical SSHSIG blob; [`Refusal::UnsupportedKey`] for kinds
/// of keys that [`is_supported`] excludes, weak Ed25519 keys, and hashes other than SHA-512;
/// [`Refusal::UnsuitableRsaKey`], [`Refusal::Sha1Signature`];
/// [`Refusal::BadSignature`] if it is for another namespace or does not verify;
/// [`Refusal::UserNotPresent`] if a security key signed without a touch.
pub(crate) fn verify(namespace: &str, message: &[u8], blob: &[u8]) -> Result<Signed, Refusal> {
    let envelope = Envelope::decode_for(namespace, blob)?;
    let made = envelope.decode_made(blob)?;
    let signed = signed_data(namespace, message).map_err(|_| Refusal::BadSignature)?;
    verification::verify(&made.key, &signed, &made.signature)?;
    refuse_absent_user(&made.signature)?;
    if let Some(certificate) = &made.certificate {
        certificate.verify()?;
    }
    Ok(Signed {
        key: PublicKey::from(made.key),
        certificate: made.certificate,
        public_key: envelope.public_key.to_vec(),
    })
}

/// A blob in the armoured form that `ssh-keygen -Y verify -s` reads.
///
/// # Errors
/// [`Refusal`] when it is not a canonical SSHSIG blob for this purpose.
pub(crate) fn armoured(namespace: &str, blob: &[u8]) -> Result<String, Refusal> {
    Envelope::decode_for(namespace, blob)?.decode_made(blob)?;
    Armoured(blob)
        .encode_pem_string(LineEnding::LF)
        .map_err(|_| MALFORMED.into())
}

/// The signer of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The key.
    pub key: PublicKey,
    /// The key's certificate, whose signature is valid.
    pub certificate: Option<Certificate>,
    /// The certificate or key inside the signature, in its wire form.
    pub public_key: Vec<u8>,
}

/// The bytes of a blob as they came. `SshSig` of ssh-key 0.6.7 would write them differently from OpenSSH: the
/// flags and the counter of a security key's ECDSA signature inside the string before them.
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

const MALFORMED: DecodeError = DecodeError::Malformed { field: "signature" };

/// The contents of a blob.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    key: KeyData,
    signature: Signature,
    certificate: Option<Certificate>,
}

/// The outer fields of an SSHSIG blob. They are read first, with bounds, so that the general decoder
/// gets only blobs whose outer lengths are consistent.
struct Envelope<'a> {
    public_key: &'a [u8],
    namespace: &'a [u8],
    hash: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn decode(blob: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(blob, MAX_SIGNATURE_SIZE)?;
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(MALFORMED);
        }
        if reader.u32()? != VERSION {
            return Err(DecodeError::UnknownVersion);
        }
        let public_key = reader.string(MAX_SIGNATURE_SIZE)?;
        let namespace = reader.string(MAX_SIGNATURE_SIZE)?;
        // SSHSIG reserves this field. A value would be a second spelling.
        if !reader.string(MAX_SIGNATURE_SIZE)?.is_empty() {
            return Err(MALFORMED);
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

    /// As [`Self::decode`], only for this purpose and for the supported hash.
    fn decode_for(namespace: &str, blob: &'a [u8]) -> Result<Self, Refusal> {
        let envelope = Self::decode(blob)?;
        if envelope.namespace != namespace.as_bytes() {
            return Err(Refusal::BadSignature);
        }
        if envelope.hash != HASH {
            return Err(Refusal::UnsupportedKey);
        }
        Ok(envelope)
    }

    /// The blob with another key in it.
    fn with_key(&self, public_key: &[u8]) -> Vec<u8> {
        let mut blob = Vec::with_capacity(1024);
        blob.extend_from_slice(MAGIC);
        blob.extend_from_slice(&VERSION.to_be_bytes());
        put_string(&mut blob, public_key);
        put_string(&mut blob, self.namespace);
        put_string(&mut blob, b"");
        put_string(&mut blob, self.hash);
        put_string(&mut blob, self.signature);
        blob
    }

    /// The signer and the certificate in the blob. The general decoder never gets the certificate: it
    /// gets the same blob with the plain key.
    fn decode_made(&self, blob: &[u8]) -> Result<Made, Refusal> {
        if is_certificate(self.public_key) {
            let certificate = Certificate::decode(self.public_key)?;
            let key = certificate.key.to_bytes();
            let key = key.map_err(|_| Refusal::UnsupportedKey)?;
            let plain = self.with_key(&key);
            let made = Envelope::decode(&plain)?.decode_plain(&plain)?;
            return Ok(Made {
                certificate: Some(certificate),
                ..made
            });
        }
        self.decode_plain(blob)
    }

    /// As [`Self::decode_made`], for a blob without a certificate.
    fn decode_plain(&self, blob: &[u8]) -> Result<Made, Refusal> {
        if let Some(made) = self.decode_ed25519() {
            return Ok(made);
        }
        let algorithm = key_algorithm(self.public_key)?;
        if !is_supported(&algorithm) {
            return Err(Refusal::UnsupportedKey);
        }
        refuse_sha1(self.signature)?;
        let decoded = self.decode_sshsig(blob)?;
        let key = decoded.public_key();
        if key.algorithm() != algorithm || !is_by_kind(&decoded.algorithm(), &algorithm) {
            return Err(Refusal::Malformed);
        }
        Ok(Made {
            key: key.clone(),
            signature: decoded.signature().clone(),
            certificate: None,
        })
    }

    /// Key and signature of the kind that nearly all users have, whose bytes have one spelling. None
    /// for anything else: the general decoder decides.
    fn decode_ed25519(&self) -> Option<Made> {
        let key = <[u8; 32]>::try_from(ed25519_part(self.public_key)?).ok()?;
        let signature = ed25519_part(self.signature)?;
        Some(Made {
            key: KeyData::Ed25519(Ed25519PublicKey(key)),
            signature: Signature::new(Algorithm::Ed25519, signature).ok()?,
            certificate: None,
        })
    }

    /// The whole blob, refused unless its key and its signature encode to the same bytes again.
    fn decode_sshsig(&self, blob: &[u8]) -> Result<SshSig, DecodeError> {
        let decoded = SshSig::decode(&mut &*blob).map_err(|_| MALFORMED)?;
        let mut public_key = Vec::with_capacity(self.public_key.len());
        decoded
            .public_key()
            .encode(&mut public_key)
            .map_err(|_| MALFORMED)?;
        if public_key != self.public_key || encode_signature(decoded.signature()) != self.signature
        {
            return Err(MALFORMED);
        }
        Ok(decoded)
    }
}

/// The bytes after the kind in an Ed25519 key or signature.
fn ed25519_part(bytes: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(bytes);
    if reader.string(ED25519.len()).ok()? != ED25519 {
        return None;
    }
    let part = reader.string(MAX_SIGNATURE_SIZE).ok()?;
    reader.finish().ok()?;
    Some(part)
}

/// RFC 4253 section 6.6; for a security key with its trailer, PROTOCOL.u2f.
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

/// Refuses a security key's signature without a touch, which malware on the user's host could have
/// requested unnoticed.
fn refuse_absent_user(signature: &Signature) -> Result<(), Refusal> {
    let (_, trailer) = split_trailer(signature);
    match trailer.first() {
        Some(flags) if flags & USER_PRESENT == 0 => Err(Refusal::UserNotPresent),
        _ => Ok(()),
    }
}

/// The algorithm at the beginning of a public key blob. An unknown one is unsupported rather than
/// malformed, so that users with a newer kind of key learn what to do.
fn key_algorithm(public_key: &[u8]) -> Result<Algorithm, Refusal> {
    let name = Reader::new(public_key).string(MAX_SIGNATURE_SIZE)?;
    let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
    name.parse().map_err(|_| Refusal::UnsupportedKey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssh_key::private::Ed25519Keypair;

    /// The general decoder's result, without the short path.
    fn general(blob: &[u8]) -> Option<Made> {
        let envelope = Envelope::decode(blob).ok()?;
        let decoded = envelope.decode_sshsig(blob).ok()?;
        let algorithm = key_algorithm(envelope.public_key).ok()?;
        let key = decoded.public_key().clone();
        (is_supported(&algorithm)
            && key.algorithm() == algorithm
            && is_by_kind(&decoded.algorithm(), &algorithm))
        .then(|| Made {
            key,
            signature: decoded.signature().clone(),
            certificate: None,
        })
    }

    #[test]
    fn the_short_path_of_ed25519_agrees_with_the_general_decoder() {
        let key = ssh_key::PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let signature = key.sign("purpose", HashAlg::Sha512, b"message").unwrap();
        let mut blob = Vec::new();
        signature.encode(&mut blob).unwrap();
        assert!(general(&blob).is_some());
        verify("purpose", b"message", &blob).unwrap();
        for place in 0..blob.len() {
            for change in [1, 2, 4, 0x80] {
                let mut other = blob.clone();
                other[place] ^= change;
                // Purpose and hash are checked before.
                let envelope = Envelope::decode_for("purpose", &other).ok();
                if let Some(envelope) = envelope {
                    let short = envelope.decode_plain(&other).ok();
                    assert_eq!(short, general(&other), "{place} {change}");
                }
                assert!(verify("purpose", b"message", &other).is_err(), "{place}");
            }
        }
        let public = key.public_key().key_data().ed25519().unwrap().0;
        let value = signature.signature().as_bytes().try_into().unwrap();
        assert_eq!(ed25519_blob(&public, "purpose", value), blob);
    }
}
