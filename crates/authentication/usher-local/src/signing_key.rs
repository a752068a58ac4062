//! The users' signing keys: the files below [`crate::paths::PRIVATE_KEYS_DIRECTORY`].

use base64ct::{Base64, Encoding};
use usher_base::codec::Reader;
use usher_proto::certificate::{Excess, TYPE_SUFFIX, excess};
use usher_proto::key::{self, UnsuitableKey, is_security_key, require_suitable, signs_from_a_file};
use usher_proto::ssh_key::{Algorithm, Error, PrivateKey, PublicKey};
use usher_proto::{Certificate, Refusal};
use zeroize::Zeroizing;

/// A key with which a user signs.
#[derive(Debug)]
pub enum SigningKey {
    /// A private key in the signer's store.
    Private(Box<PrivateKey>),
    /// The public half of a key in the user's ssh-agent.
    Agent(PublicKey),
}

/// A signing key with its certificate.
#[derive(Debug)]
pub struct Credential {
    /// The key.
    pub key: SigningKey,
    /// Its certificate, which is sent with each signature; none for a listed key.
    pub certificate: Option<Box<Certificate>>,
}

/// A fault of a file without a signing key.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// The text does not parse as a key.
    #[error("the file is neither a private key in OpenSSH's format nor a public key line ({0})")]
    NotAKey(Error),
    /// The key has a passphrase, and the signer cannot ask for it.
    #[error("the private key has a passphrase")]
    Encrypted,
    /// The key is not in the file.
    #[error("the file only refers to a security key, which only an agent can use")]
    SecurityKey,
    /// The line after the key is no certificate.
    #[error("not a certificate that verifiers accept: {0}")]
    Certificate(Refusal),
    /// The text is a plain public key, perhaps the one that the certificate is for.
    #[error("a plain key, not a certificate")]
    PlainKey,
    /// The text is no certificate.
    #[error("not a certificate in OpenSSH's format")]
    NoCertificate,
    /// The certificate, or its list of principals, is too long.
    #[error(transparent)]
    Excess(Excess),
    /// The certificate belongs to another key.
    #[error("the certificate is for another key")]
    OtherKey,
    /// Verifiers would refuse this key.
    #[error(transparent)]
    Unsuitable(#[from] UnsuitableKey),
    /// A private key of a kind that [`signs_from_a_file`] excludes.
    #[error(
        "the signer does not use private {0} keys from a file; leave the key in an ssh-agent \
         (ssh-add, `usher agent`) and give its .pub file with --agent-key"
    )]
    AgentOnly(Algorithm),
}

impl Credential {
    /// Reads a file of the folder: a key, and after it the line of a certificate, if there is one.
    ///
    /// # Errors
    /// [`SigningKeyError`].
    pub fn parse(text: &str) -> Result<Self, SigningKeyError> {
        let (key, certificate) = split(text);
        let key = SigningKey::parse(key)?;
        let certificate = certificate
            .map(|line| certificate_of(&key, line))
            .transpose()?;
        Ok(Self { key, certificate })
    }
}

/// Splits a file into the text of a key and the line of its certificate.
#[must_use]
pub fn split(text: &str) -> (&str, Option<&str>) {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let kind = line.split_ascii_whitespace().next().unwrap_or_default();
        if kind.ends_with(TYPE_SUFFIX) {
            return (&text[..at], Some(&text[at..]));
        }
        at += line.len();
    }
    (text, None)
}

/// Reads the line of a certificate for this key.
///
/// # Errors
/// [`SigningKeyError::Certificate`], [`SigningKeyError::PlainKey`], [`SigningKeyError::NoCertificate`],
/// [`SigningKeyError::Excess`], [`SigningKeyError::OtherKey`].
pub fn certificate_of(key: &SigningKey, line: &str) -> Result<Box<Certificate>, SigningKeyError> {
    let certificate = Certificate::parse(line).map_err(|refusal| match excess(line) {
        Some(excess) if refusal == Refusal::Oversized => SigningKeyError::Excess(excess),
        _ if refusal == Refusal::Malformed && key::parse_line(line).is_ok() => {
            SigningKeyError::PlainKey
        }
        _ if refusal == Refusal::Malformed => SigningKeyError::NoCertificate,
        _ => SigningKeyError::Certificate(refusal),
    })?;
    certificate.verify().map_err(SigningKeyError::Certificate)?;
    let key = match key {
        SigningKey::Private(key) => key.public_key(),
        SigningKey::Agent(key) => key,
    };
    if key.key_data() != certificate.key.key_data() {
        return Err(SigningKeyError::OtherKey);
    }
    Ok(Box::new(certificate))
}

impl SigningKey {
    /// Reads a private key in OpenSSH's format, or the line of a public key.
    ///
    /// # Errors
    /// [`SigningKeyError`].
    pub fn parse(text: &str) -> Result<Self, SigningKeyError> {
        if !text.starts_with("-----BEGIN") {
            let key = key::parse_line(text).map_err(SigningKeyError::NotAKey)?;
            require_suitable(key.key_data())?;
            return Ok(Self::Agent(key));
        }
        // This check comes first, because ssh-key 0.6.7 cannot read a quarter of the P-521 keys.
        match algorithm_of(text) {
            Some(algorithm) if is_security_key(&algorithm) => {
                return Err(SigningKeyError::SecurityKey);
            }
            Some(algorithm) if key::is_supported(&algorithm) && !signs_from_a_file(&algorithm) => {
                return Err(SigningKeyError::AgentOnly(algorithm));
            }
            _ => {}
        }
        let key = PrivateKey::from_openssh(text).map_err(SigningKeyError::NotAKey)?;
        if !signs_from_a_file(&key.algorithm()) {
            return Err(UnsuitableKey::Kind(key.algorithm()).into());
        }
        if key.is_encrypted() {
            return Err(SigningKeyError::Encrypted);
        }
        Ok(Self::Private(Box::new(key)))
    }
}

/// The kind of the private key in a file of ssh-keygen (OpenSSH, PROTOCOL.key; for RSA also the older format).
/// The kind is not encrypted.
fn algorithm_of(text: &str) -> Option<Algorithm> {
    const MAGIC: &[u8] = b"openssh-key-v1\0";
    if text.starts_with("-----BEGIN RSA PRIVATE KEY-----") {
        return Some(Algorithm::Rsa { hash: None });
    }
    let lines = text.lines().skip(1);
    let body: String = lines.take_while(|line| !line.starts_with('-')).collect();
    let body = Zeroizing::new(body);
    let bytes = Zeroizing::new(Base64::decode_vec(&body).ok()?);
    let mut reader = Reader::new(&bytes);
    if reader.take(MAGIC.len()).ok()? != MAGIC {
        return None;
    }
    // The cipher, the key derivation, and its options.
    for _ in 0..3 {
        reader.string(bytes.len()).ok()?;
    }
    reader.u32().ok()?;
    let public_key = reader.string(bytes.len()).ok()?;
    let kind = Reader::new(public_key).string(public_key.len()).ok()?;
    std::str::from_utf8(kind).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";

    #[test]
    fn a_line_after_the_key_is_its_certificate_or_is_refused() {
        let file = |line: &str| Credential::parse(&format!("{PUBLIC} alice@laptop\n{line}"));
        assert!(file("").unwrap().certificate.is_none());
        for wrong in [
            "ssh-ed25519-cert-v01@openssh.com",
            "ssh-ed25519-cert-v01@openssh.com AAAA",
            "ssh-ed25519-cert-v01@openssh.com AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3v",
        ] {
            let refused = file(wrong);
            assert!(
                matches!(
                    refused,
                    Err(SigningKeyError::Certificate(_) | SigningKeyError::NoCertificate)
                ),
                "{wrong}"
            );
        }
        let (key, certificate) = split("key\n\nx-cert-v01@openssh.com AAAA\n");
        assert_eq!(key, "key\n\n");
        assert_eq!(certificate, Some("x-cert-v01@openssh.com AAAA\n"));
    }

    #[test]
    fn private_and_public_keys_are_told_apart() {
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
