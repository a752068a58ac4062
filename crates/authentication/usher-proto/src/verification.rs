//! Whether a key has signed something. Ed25519, the kind of nearly all users, is verified by
//! ed25519-dalek itself: ssh-key has an older one, which takes twice as long where the processor has
//! AVX-512 (`docs/adr/0032-ed25519-by-avx-512.md`). ssh-key verifies the other kinds.

use ed25519_dalek::Verifier as _;
use signature::Verifier as _;
use ssh_key::Signature;
use ssh_key::public::{Ed25519PublicKey, KeyData};

use crate::Refusal;

/// Whether `signature` is the key's, of its kind, over these bytes.
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

/// Refuses Ed25519 keys of small order: under such a key one signature fits many statements, and
/// anybody can make it (RFC 8032 section 8.7 leaves the check to the application). The log would
/// prove nothing.
///
/// # Errors
/// [`Refusal::UnsupportedKey`]; [`Refusal::BadSignature`] for what is no key at all.
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
