//! Users' keys: their kinds and their fingerprints.

use ssh_key::{Algorithm, EcdsaCurve};

/// Bytes of a key's fingerprint: SHA-256 of its OpenSSH wire form, which `ssh-keygen -l` prints.
pub const KEY_FINGERPRINT_SIZE: usize = 32;

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

/// Whether keys of this kind are on a security key. A file then contains only a reference.
#[must_use]
pub fn is_security_key(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256
    )
}
