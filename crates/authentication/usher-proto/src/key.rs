//! Users' keys: their kinds and their fingerprints.

use ssh_key::public::{KeyData, RsaPublicKey};
use ssh_key::{Algorithm, EcdsaCurve, PublicKey};

use crate::Refusal;

/// Bytes of a key's fingerprint: SHA-256 of its OpenSSH wire form, which `ssh-keygen -l` prints.
pub const KEY_FINGERPRINT_SIZE: usize = 32;

/// Reads the line of a public key: its type, the key and a comment, with any number of spaces and tabs
/// between them, as sshd(8) does.
///
/// # Errors
/// When it is no public key, for instance because options stand before it.
pub fn parse_line(line: &str) -> Result<PublicKey, ssh_key::Error> {
    PublicKey::from_openssh(&usher_base::with_single_blanks(line))
}

/// Least size of an RSA key's modulus, in bits: fewer are within reach of an attacker (NIST SP 800-131A).
pub const MIN_RSA_BITS: usize = 2048;

/// Limit of an RSA key's modulus, in bits. Every format has room for a key of this size, its certificate by
/// another such key, and a signature.
pub const MAX_RSA_BITS: usize = 4096;

/// Limit of an RSA key's exponent, in bits. Verification takes as many steps.
const MAX_RSA_EXPONENT_BITS: usize = 32;

/// The first byte of an uncompressed point (SEC 1 section 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// The fault of a key that neither a user nor an authority may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsuitableKey {
    /// Its algorithm.
    #[error(
        "Usher does not take {0} keys; use an Ed25519, ECDSA or RSA key, or an Ed25519 or ECDSA key \
         on a security key"
    )]
    Kind(Algorithm),
    /// The size of an RSA key's modulus.
    #[error(
        "this RSA key has {0} bits, and Usher takes {MIN_RSA_BITS} to {MAX_RSA_BITS}; make another \
         key (ssh-keygen -t ed25519, or -t rsa -b 3072)"
    )]
    RsaBits(usize),
    /// The exponent of an RSA key.
    #[error(
        "this RSA key's exponent is even, 1 or of more than {MAX_RSA_EXPONENT_BITS} bits; make \
         another key (ssh-keygen -t ed25519, or -t rsa)"
    )]
    RsaExponent,
    /// The spelling of an ECDSA key.
    #[error(
        "this ECDSA key's point is compressed, and OpenSSH writes it uncompressed; print the key \
         again (ssh-keygen -y)"
    )]
    CompressedPoint,
}

impl From<UnsuitableKey> for Refusal {
    fn from(fault: UnsuitableKey) -> Self {
        match fault {
            UnsuitableKey::Kind(_) | UnsuitableKey::CompressedPoint => Self::UnsupportedKey,
            UnsuitableKey::RsaBits(_) | UnsuitableKey::RsaExponent => Self::UnsuitableRsaKey,
        }
    }
}

/// Whether the key of a user or authority may be of this kind: Ed25519, ECDSA P-256, P-384 and P-521, RSA,
/// and for users Ed25519 and ECDSA P-256 on a security key. [`require_suitable`] says more.
#[must_use]
pub fn is_supported(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } | Algorithm::Rsa { hash: None }
    ) || is_security_key(algorithm)
}

/// Requires a key of a supported kind, and of RSA keys 2,048 to 4,096 bits and an exponent that is odd, not
/// 1 and at most 32 bits long. Under an RSA key with the exponent 1 anyone makes signatures. The point of an
/// ECDSA key must be uncompressed (RFC 5656 section 3.1 permits both forms): else a key would have two
/// fingerprints, and a list of revoked keys one of them.
///
/// # Errors
/// [`UnsuitableKey`].
pub fn require_suitable(key: &KeyData) -> Result<(), UnsuitableKey> {
    let algorithm = key.algorithm();
    if !is_supported(&algorithm) {
        return Err(UnsuitableKey::Kind(algorithm));
    }
    let point = match key {
        KeyData::Rsa(key) => return require_suitable_rsa(key),
        KeyData::Ecdsa(key) => key.as_sec1_bytes(),
        KeyData::SkEcdsaSha2NistP256(key) => key.ec_point().as_bytes(),
        _ => return Ok(()),
    };
    if point.first() != Some(&UNCOMPRESSED) {
        return Err(UnsuitableKey::CompressedPoint);
    }
    Ok(())
}

fn require_suitable_rsa(key: &RsaPublicKey) -> Result<(), UnsuitableKey> {
    let (modulus, exponent) = rsa_numbers(key);
    let size = bits(modulus);
    if !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&size) {
        return Err(UnsuitableKey::RsaBits(size));
    }
    let is_odd = exponent.last().is_some_and(|last| last & 1 == 1);
    if !is_odd || exponent == [1] || bits(exponent) > MAX_RSA_EXPONENT_BITS {
        return Err(UnsuitableKey::RsaExponent);
    }
    Ok(())
}

/// Whether the signer itself may sign with private keys of this kind. RSA and P-521 keys sign by an agent:
/// the crates for RSA have a published timing weakness (RUSTSEC-2023-0071), and ssh-key 0.6.7 does not read a
/// quarter of P-521 keys: `findings/ssh-key-leaves-out-some-keys.sh`.
#[must_use]
pub fn signs_from_a_file(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Ed25519
            | Algorithm::Ecdsa {
                curve: EcdsaCurve::NistP256 | EcdsaCurve::NistP384
            }
    )
}

/// Modulus and exponent, most significant byte first, without leading zeros. A negative number is empty.
pub(crate) fn rsa_numbers(key: &RsaPublicKey) -> (&[u8], &[u8]) {
    (
        key.n.as_positive_bytes().unwrap_or_default(),
        key.e.as_positive_bytes().unwrap_or_default(),
    )
}

/// The bits of a number without leading zero bytes.
fn bits(number: &[u8]) -> usize {
    let unused = number.first().map_or(0, |byte| byte.leading_zeros());
    number.len() * 8 - unused as usize
}

/// Whether keys of this kind are on a security key. A file then contains only a reference.
#[must_use]
pub fn is_security_key(algorithm: &Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_between_the_parts_of_a_line_do_not_count() {
        const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";
        let plain = parse_line(&format!("ssh-ed25519 {KEY} alice on her laptop")).unwrap();
        assert_eq!(plain.comment(), "alice on her laptop");
        for blanks in ["  ", "\t", " \t ", "\t\t"] {
            let line = format!("{blanks}ssh-ed25519{blanks}{KEY}{blanks}alice on her laptop\r\n");
            assert_eq!(parse_line(&line).as_ref(), Ok(&plain), "{line:?}");
        }
        let bare = parse_line(&format!("ssh-ed25519\t{KEY}")).unwrap();
        assert_eq!((bare.key_data(), bare.comment()), (plain.key_data(), ""));
        for none in [
            "",
            " ",
            "ssh-ed25519",
            "ssh-ed25519  ",
            &format!("restrict ssh-ed25519 {KEY}"),
        ] {
            assert!(parse_line(none).is_err(), "{none:?}");
        }
    }
}
