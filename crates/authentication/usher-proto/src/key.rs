//! Users' keys: their kinds and their fingerprints.

use ssh_key::{Algorithm, EcdsaCurve, PublicKey};

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
