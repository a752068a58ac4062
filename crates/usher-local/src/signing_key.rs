//! With what a user signs: what is kept below [`crate::paths::PRIVATE_KEYS_DIRECTORY`].

use usher_proto::authenticator::{is_security_key, is_supported};
use usher_proto::ssh_key::{Algorithm, Error, PrivateKey, PublicKey};

/// With what a user signs.
#[derive(Debug)]
pub enum SigningKey {
    /// A private key, which the signer keeps.
    Private(Box<PrivateKey>),
    /// A key that the user's ssh-agent has: its public half.
    Agent(PublicKey),
}

/// Why a file holds nothing to sign with.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// It does not parse.
    #[error("neither a private key in OpenSSH's format nor a public key line ({0})")]
    NotAKey(Error),
    /// A passphrase is needed, and nobody could be asked for it.
    #[error("a private key with a passphrase")]
    Encrypted,
    /// The key is not in the file.
    #[error("a reference to a security key, which only an agent can use")]
    SecurityKey,
    /// Verifiers would refuse it.
    #[error("{0} keys are not taken")]
    Algorithm(Algorithm),
}

impl SigningKey {
    /// Reads what a file of the folder has.
    ///
    /// # Errors
    /// [`SigningKeyError`].
    pub fn parse(text: &str) -> Result<Self, SigningKeyError> {
        let (key, algorithm) = if text.starts_with("-----BEGIN") {
            let key = PrivateKey::from_openssh(text).map_err(SigningKeyError::NotAKey)?;
            if key.is_encrypted() {
                return Err(SigningKeyError::Encrypted);
            }
            let algorithm = key.algorithm();
            if is_security_key(&algorithm) {
                return Err(SigningKeyError::SecurityKey);
            }
            (Self::Private(Box::new(key)), algorithm)
        } else {
            let key = PublicKey::from_openssh(text.trim()).map_err(SigningKeyError::NotAKey)?;
            let algorithm = key.algorithm();
            (Self::Agent(key), algorithm)
        };
        if is_supported(&algorithm) {
            Ok(key)
        } else {
            Err(SigningKeyError::Algorithm(algorithm))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";

    #[test]
    fn a_private_key_is_told_from_a_public_one_and_what_is_neither_is_refused() {
        let key = PrivateKey::from(usher_proto::ssh_key::private::Ed25519Keypair::from_seed(
            &[7; 32],
        ));
        let text = key
            .to_openssh(usher_proto::ssh_key::LineEnding::LF)
            .unwrap();
        assert!(matches!(
            SigningKey::parse(&text),
            Ok(SigningKey::Private(_))
        ));
        let line = format!("{PUBLIC} alice@laptop\n");
        assert!(matches!(SigningKey::parse(&line), Ok(SigningKey::Agent(_))));
        for none in ["", "ssh-ed25519", &text[..text.len() / 2], &PUBLIC[..40]] {
            assert!(matches!(
                SigningKey::parse(none),
                Err(SigningKeyError::NotAKey(_))
            ));
        }
    }
}
