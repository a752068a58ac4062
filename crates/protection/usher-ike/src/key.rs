//! The IKE keys of this host, as charon gets them.

use std::fmt::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use p256::elliptic_curve::sec1::ToEncodedPoint;
use sha1::{Digest, Sha1};
use ssh_key::PrivateKey;
use ssh_key::private::KeypairData;
use usher_protection::{IkeAlgorithm, IkePublicKey};
use zeroize::Zeroizing;

/// The bytes in hexadecimal.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes before the seed in every Ed25519 private key of PKCS #8 (RFC 8410 section 7).
const ED25519_PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Bytes of a private key of P-256 in PKCS #8.
const P256_PKCS8_SIZE: usize = 138;

/// The bytes before the secret number in every PKCS #8 of P-256 that has both keys (RFC 5958, RFC 5915): SEQUENCE
/// of 135 bytes, version 0, SEQUENCE of 19 with id-ecPublicKey and secp256r1, OCTET STRING of 109, SEQUENCE of
/// 107, version 1, OCTET STRING of 32. DER has only one spelling, so comparing these bytes is a complete parser.
const P256_PKCS8: [u8; 36] = [
    0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02,
    0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x6d, 0x30, 0x6b, 0x02,
    0x01, 0x01, 0x04, 0x20,
];

/// The bytes between the secret number and the point: \[1\] of 68 bytes, BIT STRING of 66 without unused bits.
const P256_PKCS8_POINT: [u8; 5] = [0xa1, 0x44, 0x03, 0x42, 0x00];

/// There is no usable IKE key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the IKE key {path} ({source}): `{}` makes it", .algorithm.command())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The algorithm that it should have.
        algorithm: IkeAlgorithm,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is no key, of another kind, or encrypted.
    #[error(
        "{path} is not an unencrypted {algorithm} key in {}: put the right one back, or move it away \
         and run `{}`, which makes another",
        form(*.algorithm),
        .algorithm.command()
    )]
    OtherKey {
        /// The file.
        path: PathBuf,
        /// The algorithm that it should have.
        algorithm: IkeAlgorithm,
    },
    /// Others can read or replace it.
    #[error(
        "{0} is not root's alone, so its key may be known to others: make another one and state it, or \
         `chown root` and `chmod 600` it if none has read it"
    )]
    Exposed(PathBuf),
}

/// The form of a key's file.
fn form(algorithm: IkeAlgorithm) -> &'static str {
    match algorithm {
        IkeAlgorithm::Ed25519 => "OpenSSH's format",
        IkeAlgorithm::EcdsaP256 => "the format PKCS #8 (PEM, \"BEGIN PRIVATE KEY\")",
    }
}

/// A private IKE key of this host. It signs IKE exchanges and nothing else: charon gets it.
pub struct IkeKey {
    /// The seed (Ed25519), or the secret number (ECDSA).
    secret: Zeroizing<[u8; 32]>,
    public: IkePublicKey,
}

/// The name that charon gives the private key: SHA-1 of the public one, in hexadecimal. It is only a name: nothing
/// rests on its strength.
pub(crate) fn fingerprint(key: &IkePublicKey) -> String {
    hexadecimal(&Sha1::digest(key.to_bytes()))
}

/// Returns whether charon's name of a private key has the form of a [fingerprint].
pub(crate) fn is_fingerprint(id: &str) -> bool {
    const DIGITS: usize = 40;
    id.len() == DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit())
}

impl IkeKey {
    /// An Ed25519 key from its seed (RFC 8032 section 5.1.5).
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let pair = ssh_key::private::Ed25519Keypair::from_seed(&seed);
        Self {
            public: IkePublicKey::ed25519(pair.public.0),
            secret: Zeroizing::new(seed),
        }
    }

    /// An ECDSA P-256 key from its secret number, which is not 0 and below the order of the curve.
    #[must_use]
    pub fn from_secret_number(number: [u8; 32]) -> Option<Self> {
        let secret = Zeroizing::new(number);
        let key = p256::SecretKey::from_slice(secret.as_slice()).ok()?;
        let point = key.public_key().to_encoded_point(false);
        let public = IkePublicKey::ecdsa_p256(point.as_bytes())?;
        Some(Self { secret, public })
    }

    /// Reads the file that `usher init` has made, or for ECDSA the administrator.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path, algorithm: IkeAlgorithm) -> Result<Self, KeyError> {
        let unreadable = |source| KeyError::Unreadable {
            path: path.into(),
            algorithm,
            source,
        };
        let text = Zeroizing::new(std::fs::read(path).map_err(unreadable)?);
        let key = match algorithm {
            IkeAlgorithm::Ed25519 => Self::from_openssh(&text),
            IkeAlgorithm::EcdsaP256 => {
                // `usher init` makes the Ed25519 key, with the right owner and mode.
                let file = std::fs::metadata(path).map_err(unreadable)?;
                if file.uid() != 0 || file.mode() & 0o077 != 0 {
                    return Err(KeyError::Exposed(path.into()));
                }
                Self::from_pkcs8(&text)
            }
        };
        key.ok_or_else(|| KeyError::OtherKey {
            path: path.into(),
            algorithm,
        })
    }

    /// An Ed25519 key in OpenSSH's format.
    fn from_openssh(text: &[u8]) -> Option<Self> {
        let key = PrivateKey::from_openssh(text).ok()?;
        match key.key_data() {
            KeypairData::Ed25519(pair) => Some(Self::from_seed(pair.private.to_bytes())),
            _ => None,
        }
    }

    /// An ECDSA P-256 key in PEM. Not in OpenSSH's format, in which ssh-key 0.6.7 cannot read one of 256 keys:
    /// those whose secret number begins with a zero.
    fn from_pkcs8(text: &[u8]) -> Option<Self> {
        let mut buffer = Zeroizing::new([0; P256_PKCS8_SIZE]);
        let (label, der) = pem_rfc7468::decode(text, buffer.as_mut_slice()).ok()?;
        let number = der.strip_prefix(&P256_PKCS8)?.first_chunk()?;
        let key = Self::from_secret_number(*number)?;
        let is_whole = label == "PRIVATE KEY" && *key.to_pkcs8() == der;
        is_whole.then_some(key)
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> IkePublicKey {
        self.public
    }

    /// The key in PKCS #8, in DER.
    #[must_use]
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        let secret = self.secret.as_slice();
        Zeroizing::new(match self.public.algorithm() {
            IkeAlgorithm::Ed25519 => [&ED25519_PKCS8, secret].concat(),
            IkeAlgorithm::EcdsaP256 => {
                let point = self.public.to_bytes();
                [&P256_PKCS8, secret, &P256_PKCS8_POINT, &point].concat()
            }
        })
    }
}

impl fmt::Debug for IkeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "IkeKey({})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// The outcome of reading what this command of ssh-keygen(1) makes.
    fn read_made(arguments: &[&str]) -> (tempfile::TempDir, Result<IkeKey, KeyError>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ecdsa_key");
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-f"])
            .arg(&path)
            .args(arguments)
            .status();
        assert!(made.expect("ssh-keygen").success());
        let key = IkeKey::read(&path, IkeAlgorithm::EcdsaP256);
        (folder, key)
    }

    const RIGHT: [&str; 6] = ["-t", "ecdsa", "-b", "256", "-m", "PKCS8"];

    #[test]
    fn the_documented_command_makes_an_ecdsa_key() {
        let (folder, key) = read_made(&RIGHT);
        let key = key.expect("a key");
        let line = std::fs::read_to_string(folder.path().join("ecdsa_key.pub"));
        assert_eq!(line.expect("a line").parse(), Ok(key.public()));
        let other = KeyError::OtherKey {
            path: "/etc/usher/ike/ecdsa_key".into(),
            algorithm: IkeAlgorithm::EcdsaP256,
        };
        let command = format!("`ssh-keygen {} ", RIGHT.join(" "));
        assert!(other.to_string().contains(&command), "{other}");
    }

    #[test]
    fn other_keys_are_refused_with_that_command() {
        for wrong in [
            &["-t", "ecdsa", "-b", "256"][..],
            &["-t", "ecdsa", "-b", "384", "-m", "PKCS8"],
            &["-t", "ecdsa", "-b", "256", "-m", "PEM"],
            &["-t", "rsa", "-m", "PKCS8"],
            &["-t", "ed25519"],
        ] {
            let (_folder, key) = read_made(wrong);
            let refused = key.expect_err("another key").to_string();
            for words in [
                "ecdsa_key is not an unencrypted ECDSA P-256 key",
                "ssh-keygen",
            ] {
                assert!(refused.contains(words), "{wrong:?}: {refused}");
            }
        }
    }

    #[test]
    fn an_ecdsa_key_that_others_can_read_is_refused() {
        let (folder, key) = read_made(&RIGHT);
        assert!(key.is_ok());
        let path = folder.path().join("ecdsa_key");
        for (mode, is_refused) in [(0o640, true), (0o604, true), (0o400, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
            let read = IkeKey::read(&path, IkeAlgorithm::EcdsaP256);
            assert_eq!(
                matches!(read, Err(KeyError::Exposed(_))),
                is_refused,
                "{mode:o}"
            );
        }
        std::os::unix::fs::chown(&path, Some(1), None).expect("an owner");
        let read = IkeKey::read(&path, IkeAlgorithm::EcdsaP256);
        assert!(matches!(read, Err(KeyError::Exposed(_))), "{read:?}");
    }

    /// OpenSSH's format leaves the zeros out.
    #[test]
    fn a_secret_number_may_begin_with_zeros() {
        let mut number = [0; 32];
        number[31] = 5;
        let key = IkeKey::from_secret_number(number).expect("a key");
        let read = IkeKey::from_pkcs8(pem(&key.to_pkcs8()).as_bytes());
        assert_eq!(read.map(|read| read.public()), Some(key.public()));
    }

    #[test]
    fn a_file_whose_public_key_is_another_is_refused() {
        let [one, two] = [1, 2].map(|number| {
            let key = IkeKey::from_secret_number([number; 32]).expect("a key");
            key.to_pkcs8()
        });
        let mixed = [&one[..P256_PKCS8_SIZE - 65], &two[P256_PKCS8_SIZE - 65..]].concat();
        assert!(IkeKey::from_pkcs8(pem(&one).as_bytes()).is_some());
        assert!(IkeKey::from_pkcs8(pem(&mixed).as_bytes()).is_none());
        assert!(IkeKey::from_secret_number([0; 32]).is_none());
        assert!(IkeKey::from_secret_number([0xff; 32]).is_none());
    }

    fn pem(der: &[u8]) -> String {
        let mut buffer = [0; 512];
        let text =
            pem_rfc7468::encode("PRIVATE KEY", pem_rfc7468::LineEnding::LF, der, &mut buffer);
        text.expect("room").to_owned()
    }
}
