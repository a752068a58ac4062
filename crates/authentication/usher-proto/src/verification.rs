//! Verifies signatures. ed25519-dalek verifies Ed25519 itself, the kind of nearly all users: ssh-key
//! uses an older version, which takes twice as long on processors with AVX-512
//! (`docs/adr/0032-ed25519-by-avx-512.md`). aws-lc verifies RSA and ECDSA P-521, ssh-key the other kinds.

use aws_lc_rs::signature::{
    ECDSA_P521_SHA512_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use ed25519_dalek::Verifier as _;
use signature::Verifier as _;
use ssh_encoding::{Decode, Reader as _};
use ssh_key::public::{EcdsaPublicKey, Ed25519PublicKey, KeyData, RsaPublicKey};
use ssh_key::{Algorithm, HashAlg, Mpint, Signature};

use crate::Refusal;
use crate::key::{require_suitable, rsa_numbers};
use usher_base::codec::Reader;

/// Bytes of each of the two numbers of an ECDSA P-521 signature.
const P521_SIZE: usize = 66;
/// The algorithm of RSA signatures with SHA-1 (RFC 4253), which is also the kind of all RSA keys.
const SSH_RSA: &[u8] = b"ssh-rsa";

/// Checks that the key made this signature over these bytes.
///
/// # Errors
/// As [`require_suitable`]; [`Refusal::UnsupportedKey`] for a weak key, [`Refusal::BadSignature`].
pub(crate) fn verify(key: &KeyData, signed: &[u8], signature: &Signature) -> Result<(), Refusal> {
    if !is_by_kind(&signature.algorithm(), &key.algorithm()) {
        return Err(Refusal::BadSignature);
    }
    require_suitable(key)?;
    match key {
        KeyData::Ed25519(key) => {
            let key = strong_key(key)?;
            let signature = ed25519_dalek::Signature::from_slice(signature.as_bytes())
                .map_err(|_| Refusal::BadSignature)?;
            key.verify(signed, &signature)
                .map_err(|_| Refusal::BadSignature)
        }
        KeyData::Rsa(numbers) => verify_rsa(numbers, signed, signature),
        KeyData::Ecdsa(EcdsaPublicKey::NistP521(point)) => {
            verify_p521(point.as_bytes(), signed, signature)
        }
        _ => {
            refuse_weak_key(key)?;
            key.verify(signed, signature)
                .map_err(|_| Refusal::BadSignature)
        }
    }
}

/// Whether keys of this kind make signatures of this algorithm. RSA keys must sign with SHA-2.
pub(crate) fn is_by_kind(signature: &Algorithm, key: &Algorithm) -> bool {
    match key {
        Algorithm::Rsa { hash: None } => matches!(signature, Algorithm::Rsa { hash: Some(_) }),
        _ => signature == key,
    }
}

/// Refuses a signature in its wire form (RFC 4253 section 6.6) whose algorithm uses SHA-1.
///
/// # Errors
/// [`Refusal::Sha1Signature`].
pub(crate) fn refuse_sha1(signature: &[u8]) -> Result<(), Refusal> {
    match Reader::new(signature).string(SSH_RSA.len()) {
        Ok(algorithm) if algorithm == SSH_RSA => Err(Refusal::Sha1Signature),
        _ => Ok(()),
    }
}

/// RSASSA-PKCS1-v1_5 (RFC 8332). aws-lc demands a signature as long as the modulus.
fn verify_rsa(key: &RsaPublicKey, signed: &[u8], signature: &Signature) -> Result<(), Refusal> {
    let parameters = match signature.algorithm() {
        Algorithm::Rsa {
            hash: Some(HashAlg::Sha256),
        } => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rsa {
            hash: Some(HashAlg::Sha512),
        } => &RSA_PKCS1_2048_8192_SHA512,
        _ => return Err(Refusal::BadSignature),
    };
    let (n, e) = rsa_numbers(key);
    RsaPublicKeyComponents { n, e }
        .verify(parameters, signed, signature.as_bytes())
        .map_err(|_| Refusal::BadSignature)
}

/// ECDSA P-521 with SHA-512 (RFC 5656), whose signature is two numbers of varying length.
fn verify_p521(point: &[u8], signed: &[u8], signature: &Signature) -> Result<(), Refusal> {
    let mut numbers = [0; 2 * P521_SIZE];
    let mut reader = signature.as_bytes();
    for place in numbers.chunks_exact_mut(P521_SIZE) {
        let number = Mpint::decode(&mut reader).map_err(|_| Refusal::BadSignature)?;
        let bytes = number.as_positive_bytes().ok_or(Refusal::BadSignature)?;
        let at = P521_SIZE.checked_sub(bytes.len());
        place[at.ok_or(Refusal::BadSignature)?..].copy_from_slice(bytes);
    }
    if !reader.is_finished() {
        return Err(Refusal::BadSignature);
    }
    UnparsedPublicKey::new(&ECDSA_P521_SHA512_FIXED, point)
        .verify(signed, &numbers)
        .map_err(|_| Refusal::BadSignature)
}

/// Refuses Ed25519 keys of small order. Under such a key one signature fits many statements, and
/// anyone can make it, so the log would prove nothing (RFC 8032 section 8.7 leaves this check to the
/// application).
///
/// # Errors
/// [`Refusal::UnsupportedKey`]; [`Refusal::BadSignature`] for bytes that are not a key.
pub(crate) fn refuse_weak_key(key: &KeyData) -> Result<(), Refusal> {
    match key {
        KeyData::Ed25519(key) => strong_key(key).map(drop),
        KeyData::SkEd25519(key) => strong_key(key.public_key()).map(drop),
        _ => Ok(()),
    }
}

fn strong_key(key: &Ed25519PublicKey) -> Result<ed25519_dalek::VerifyingKey, Refusal> {
    let key = ed25519_dalek::VerifyingKey::from_bytes(&key.0).map_err(|_| Refusal::BadSignature)?;
    if key.is_weak() {
        return Err(Refusal::UnsupportedKey);
    }
    Ok(key)
}
