//! The IKE keys of hosts: Ed25519, in OpenSSH's form for administrators, as RFC 8410 has them for charon.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sha1::{Digest, Sha1};
use ssh_key::private::KeypairData;
use ssh_key::public::{Ed25519PublicKey, KeyData};
use ssh_key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// The bytes in hexadecimal.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes before the key in every Ed25519 SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The bytes before the seed in every Ed25519 private key of PKCS #8 (RFC 8410 section 7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// There is no usable IKE key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the IKE key {path} ({source}): `usher init` makes it")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no key, of another kind, or encrypted.
    #[error(
        "{0} is not an unencrypted Ed25519 key in OpenSSH's format: put the right one back, or move it away \
         and run `usher init`, which makes another"
    )]
    NotEd25519(PathBuf),
    /// A line is no public key.
    #[error("this is not an Ed25519 public key line (\"ssh-ed25519 AAAA...\")")]
    NotAPublicKey,
}

/// The public IKE key of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IkePublicKey([u8; 32]);

/// The private IKE key of this host. It signs IKE exchanges and nothing else: charon gets it.
pub struct IkeKey {
    seed: Zeroizing<[u8; 32]>,
    public: IkePublicKey,
}

impl IkePublicKey {
    /// A key from its 32 bytes (RFC 8032 section 5.1.5).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    pub(crate) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name that charon gives the private key: SHA-1 of the 32 bytes, in hexadecimal. It is only a
    /// name: nothing rests on its strength.
    pub(crate) fn fingerprint(self) -> String {
        hexadecimal(&Sha1::digest(self.0))
    }

    /// Its SubjectPublicKeyInfo, in DER.
    #[must_use]
    pub fn to_spki(self) -> Vec<u8> {
        [SPKI_PREFIX.as_slice(), &self.0].concat()
    }
}

/// Returns whether charon's name of a private key has the form of a [fingerprint](IkePublicKey::fingerprint).
pub(crate) fn is_fingerprint(id: &str) -> bool {
    const DIGITS: usize = 40;
    id.len() == DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit())
}

impl FromStr for IkePublicKey {
    type Err = KeyError;

    fn from_str(line: &str) -> Result<Self, KeyError> {
        let key = PublicKey::from_openssh(&usher_base::with_single_blanks(line))
            .map_err(|_| KeyError::NotAPublicKey)?;
        match key.key_data() {
            KeyData::Ed25519(key) => Ok(Self(key.0)),
            _ => Err(KeyError::NotAPublicKey),
        }
    }
}

impl fmt::Display for IkePublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = PublicKey::new(KeyData::Ed25519(Ed25519PublicKey(self.0)), "");
        let line = key.to_openssh().map_err(|_| fmt::Error)?;
        formatter.write_str(line.trim_end())
    }
}

impl fmt::Debug for IkePublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl IkeKey {
    /// A key from its seed (RFC 8032 section 5.1.5).
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let pair = ssh_key::private::Ed25519Keypair::from_seed(&seed);
        Self {
            public: IkePublicKey(pair.public.0),
            seed: Zeroizing::new(seed),
        }
    }

    /// Reads the file that `usher init` has made.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read(path).map_err(|source| KeyError::Unreadable {
            path: path.into(),
            source,
        })?;
        let text = Zeroizing::new(text);
        let other = || KeyError::NotEd25519(path.into());
        let key = PrivateKey::from_openssh(text.as_slice()).map_err(|_| other())?;
        match key.key_data() {
            KeypairData::Ed25519(pair) => Ok(Self::from_seed(pair.private.to_bytes())),
            _ => Err(other()),
        }
    }

    /// Its public side.
    #[must_use]
    pub fn public(&self) -> IkePublicKey {
        self.public
    }

    /// The key in PKCS #8, in DER.
    #[must_use]
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([PKCS8_PREFIX.as_slice(), self.seed.as_slice()].concat())
    }
}

impl fmt::Debug for IkeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "IkeKey({})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_between_the_parts_of_a_line_do_not_count() {
        let plain = IkeKey::from_seed([7; 32]).public();
        let line = plain.to_string();
        for blanks in [" ", "  ", "\t", " \t"] {
            let line = line.replace(' ', blanks) + blanks + "root@mailhost\n";
            assert_eq!(line.parse::<IkePublicKey>().ok(), Some(plain), "{line:?}");
        }
        for wrong in [
            line.replace(' ', ""),
            format!("restrict {line}"),
            "ssh-ed25519\t".into(),
        ] {
            assert!(wrong.parse::<IkePublicKey>().is_err(), "{wrong:?}");
        }
    }
}
