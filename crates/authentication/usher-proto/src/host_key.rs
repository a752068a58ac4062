//! Host keys: Ed25519, in OpenSSH form for administrators and as SubjectPublicKeyInfo for TLS.

use sha2::{Digest, Sha256};
use ssh_key::public::{Ed25519PublicKey, KeyData};
use ssh_key::{HashAlg, PublicKey};
use std::fmt;
use std::str::FromStr;
use usher_base::codec::{Reader, plain_bytes};
use usher_base::serde_text::serde_as_text;
use usher_base::{DecodeError, HostName};

/// Bytes of an Ed25519 public key (RFC 8032).
pub const HOST_KEY_SIZE: usize = 32;

/// Bytes of an Ed25519 SubjectPublicKeyInfo (RFC 8410 section 4).
pub const HOST_KEY_SPKI_SIZE: usize = 44;

/// Limit of a host's keys: its key, and the one that takes its place or that it has replaced.
pub const MAX_HOST_KEYS: usize = 2;

/// The bytes before the key in every Ed25519 SubjectPublicKeyInfo: SEQUENCE of 42 bytes, SEQUENCE of
/// 5, OBJECT IDENTIFIER 1.3.101.112, BIT STRING of 33 without unused bits. DER has only one spelling,
/// so comparing these bytes is a complete parser.
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A fault of a text that is no host key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostKeyError {
    /// The text is not a public key line in OpenSSH form.
    #[error("this is not an OpenSSH public key line (\"ssh-ed25519 AAAA...\")")]
    NotOpenSsh(#[source] ssh_key::Error),
    /// The key is not Ed25519.
    #[error("host keys are Ed25519, this key is {0}")]
    NotEd25519(ssh_key::Algorithm),
}

plain_bytes! {
    /// A host's Ed25519 public key (RFC 8032 section 5.1.5): identifies the host to TLS (RFC 7250) and
    /// inside the authenticator.
    ///
    /// Public, so comparison may take variable time. Holds any 32 bytes; bytes that are no point of
    /// the curve verify no signature.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct HostPublicKey([u8; HOST_KEY_SIZE]);
}

impl HostPublicKey {
    /// Reads a line of the form of `ssh_host_ed25519_key.pub`; a comment is dropped.
    ///
    /// # Errors
    /// [`HostKeyError`] when the text is no such line or the key is not Ed25519.
    pub fn from_openssh(text: &str) -> Result<Self, HostKeyError> {
        let key = crate::key::parse_line(text).map_err(HostKeyError::NotOpenSsh)?;
        match key.key_data() {
            KeyData::Ed25519(key) => Ok(Self(key.0)),
            other => Err(HostKeyError::NotEd25519(other.algorithm())),
        }
    }

    /// The key as `ssh-ed25519 AAAA...`, without comment and without newline.
    #[must_use]
    pub fn to_openssh(self) -> String {
        self.public_key()
            .to_openssh()
            .expect("an Ed25519 key of 32 bytes always has a text form")
    }

    /// The fingerprint that `ssh-keygen -l` prints: `SHA256:` and unpadded Base64.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.public_key().fingerprint(HashAlg::Sha256).to_string()
    }

    /// The DER SubjectPublicKeyInfo (RFC 8410), which is the whole certificate of RFC 7250.
    #[must_use]
    pub fn to_spki_der(self) -> [u8; HOST_KEY_SPKI_SIZE] {
        let mut der = [0; HOST_KEY_SPKI_SIZE];
        let (prefix, key) = der.split_at_mut(SPKI_PREFIX.len());
        prefix.copy_from_slice(&SPKI_PREFIX);
        key.copy_from_slice(&self.0);
        der
    }

    /// Reads a DER SubjectPublicKeyInfo as [`Self::to_spki_der`] writes it.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] or [`DecodeError::TrailingBytes`] by length,
    /// [`DecodeError::Malformed`] when it is not Ed25519.
    pub fn from_spki_der(der: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(der);
        if reader.array()? != SPKI_PREFIX {
            return Err(DecodeError::Malformed {
                field: "subject public key info",
            });
        }
        let key = reader.array()?;
        reader.finish()?;
        Ok(Self(key))
    }

    /// The number by which a server's kernel knows the host of this name, whose identity this is. Hosts
    /// choose their keys, so the hash must resist second preimages.
    #[must_use]
    pub fn number(&self, name: &HostName) -> u64 {
        let digest = Sha256::new()
            .chain_update(self.0)
            .chain_update(name.as_str())
            .finalize();
        let mut number = [0; 8];
        number.copy_from_slice(&digest[..8]);
        u64::from_be_bytes(number)
    }

    /// An identity that is neither this one nor a key, for the host that takes this one's name.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"usher host identity");
        hash.update(self.0);
        Self(hash.finalize().into())
    }

    fn public_key(self) -> PublicKey {
        PublicKey::from(KeyData::Ed25519(Ed25519PublicKey(self.0)))
    }
}

impl fmt::Display for HostPublicKey {
    /// The OpenSSH form.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.to_openssh())
    }
}

impl fmt::Debug for HostPublicKey {
    /// The fingerprint, which is what people compare.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HostPublicKey({})", self.fingerprint())
    }
}

impl FromStr for HostPublicKey {
    type Err = HostKeyError;

    fn from_str(text: &str) -> Result<Self, HostKeyError> {
        Self::from_openssh(text)
    }
}

serde_as_text!(HostPublicKey);

#[cfg(test)]
mod tests {
    use super::*;

    // The key of RFC 8410 section 10.1, there in PEM.
    const RFC_8410_KEY: [u8; 32] = [
        0x19, 0xbf, 0x44, 0x09, 0x69, 0x84, 0xcd, 0xfe, 0x85, 0x41, 0xba, 0xc1, 0x67, 0xdc, 0x3b,
        0x96, 0xc8, 0x50, 0x86, 0xaa, 0x30, 0xb6, 0xb6, 0xcb, 0x0c, 0x5c, 0x38, 0xad, 0x70, 0x31,
        0x66, 0xe1,
    ];

    #[test]
    fn the_key_of_rfc_8410_has_the_der_of_rfc_8410() {
        let der = HostPublicKey::from_bytes(RFC_8410_KEY).to_spki_der();
        assert_eq!(
            der[..12],
            [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0]
        );
        assert_eq!(der[12..], RFC_8410_KEY);
        assert_eq!(
            HostPublicKey::from_spki_der(&der).unwrap().as_bytes(),
            &RFC_8410_KEY
        );
    }

    #[test]
    fn other_der_is_refused() {
        let der = HostPublicKey::from_bytes(RFC_8410_KEY).to_spki_der();
        assert_eq!(
            HostPublicKey::from_spki_der(&der[..43]),
            Err(DecodeError::Truncated)
        );
        assert_eq!(
            HostPublicKey::from_spki_der(&der[..5]),
            Err(DecodeError::Truncated)
        );
        let mut longer = der.to_vec();
        longer.push(0);
        assert_eq!(
            HostPublicKey::from_spki_der(&longer),
            Err(DecodeError::TrailingBytes)
        );
        // 1.3.101.110 is X25519: a key of the same size for another use.
        let mut other = der;
        other[8] = 0x6e;
        assert_eq!(
            HostPublicKey::from_spki_der(&other),
            Err(DecodeError::Malformed {
                field: "subject public key info"
            })
        );
    }

    #[test]
    fn a_number_is_one_hosts_with_one_key() {
        let key = HostPublicKey::from_bytes(RFC_8410_KEY);
        let [laptop, tablet] = ["laptop", "tablet"].map(|name| name.parse().unwrap());
        let number = key.number(&laptop);
        assert_eq!(key.number(&laptop), number);
        assert_ne!(key.number(&tablet), number);
        assert_ne!(HostPublicKey::from_bytes([1; _]).number(&laptop), number);
    }

    #[test]
    fn openssh_text_goes_there_and_back() {
        let key = HostPublicKey::from_bytes(RFC_8410_KEY);
        let text = key.to_openssh();
        assert!(
            text.starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"),
            "{text}"
        );
        assert_eq!(
            HostPublicKey::from_openssh(&format!("{text} root@mailhost\n")),
            Ok(key)
        );
        assert!(key.fingerprint().starts_with("SHA256:"));
    }

    #[test]
    fn other_text_is_refused() {
        assert!(matches!(
            HostPublicKey::from_openssh("not a key"),
            Err(HostKeyError::NotOpenSsh(_))
        ));
        let ecdsa = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBHwf2HMM5TRXvo2SQJjsNkiDD5KqiiNjrGVv3UUh+mMT5RHxiRtOnlqvjhQtBq0VpmpCV/PwUdhOig4vkbqAcEc=";
        assert!(matches!(
            HostPublicKey::from_openssh(ecdsa),
            Err(HostKeyError::NotEd25519(_))
        ));
    }
}
