//! Verifies signatures. ed25519-dalek verifies Ed25519 itself, the kind of nearly all users: ssh-key
//! uses an older version, which takes twice as long on processors with AVX-512
//! (`docs/adr/0032-ed25519-by-avx-512.md`). ssh-key verifies the other kinds.

use ed25519_dalek::Verifier as _;
use signature::Verifier as _;
use ssh_key::Signature;
use ssh_key::public::{Ed25519PublicKey, KeyData};

use crate::Refusal;

/// Checks that the key made this signature over these bytes.
///
/// # Errors
/// [`Refusal::UnsupportedKey`] for a weak key, [`Refusal::BadSignature`].
pub(crate) fn verify(key: &KeyData, signed: &[u8], signature: &Signature) -> Result<(), Refusal> {
    if signature.algorithm() != key.algorithm() {
        return Err(Refusal::BadSignature);
    }
    let KeyData::Ed25519(key) = key else {
        refuse_weak_key(key)?;
        return key
            .verify(signed, signature)
            .map_err(|_| Refusal::BadSignature);
    };
    let key = strong_key(key)?;
    let signature = ed25519_dalek::Signature::from_slice(signature.as_bytes())
        .map_err(|_| Refusal::BadSignature)?;
    key.verify(signed, &signature)
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
