//! The public IKE keys of hosts: Ed25519, or ECDSA P-256 for peers whose IKE daemon has no Ed25519. In OpenSSH's
//! form for administrators, as SubjectPublicKeyInfo for IKE daemons.

use std::fmt;
use std::str::FromStr;

use ssh_key::public::{EcdsaPublicKey, Ed25519PublicKey, KeyData};
use ssh_key::{Algorithm, EcdsaCurve, HashAlg, PublicKey};
use usher_base::serde_text::serde_as_text;
use usher_language::words;

words! {
    /// The algorithms of IKE keys, in the order in which two hosts that have several choose one.
    pub enum IkeAlgorithm {
        /// RFC 8420.
        Ed25519 = "Ed25519",
        /// With SHA-256 (RFC 4754; by RFC 7427 where the peer has it).
        EcdsaP256 = "ECDSA P-256",
    }
}

impl IkeAlgorithm {
    /// The command that makes a key of this algorithm on a host, and writes its public line beside it.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Ed25519 => "usher init",
            Self::EcdsaP256 => {
                "ssh-keygen -t ecdsa -b 256 -m PKCS8 -N \"\" -f /etc/usher/ike/ecdsa_key"
            }
        }
    }
}

/// A line is no public IKE key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IkeKeyError {
    /// It is no public key line, or its key is none of its algorithm.
    #[error(
        "this is not a public key line of OpenSSH (\"ssh-ed25519 AAAA...\" or \"ecdsa-sha2-nistp256 AAAA...\")"
    )]
    NotAKey,
    /// The key has another algorithm or curve.
    #[error("IKE keys are Ed25519 or ECDSA P-256, and this one is {0}")]
    OtherAlgorithm(Algorithm),
}

/// Bytes of a point of P-256: both coordinates.
const POINT_SIZE: usize = 64;

/// The first byte of a point that is written by both coordinates (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// The bytes before the key in every Ed25519 SubjectPublicKeyInfo (RFC 8410 section 4).
const ED25519_SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The bytes before the point in every SubjectPublicKeyInfo of P-256 (RFC 5480 section 2): SEQUENCE of 89 bytes,
/// SEQUENCE of 19 with id-ecPublicKey and secp256r1, BIT STRING of 66 without unused bits.
const P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The public key by which the IKE daemon of a host authenticates itself. Public, so comparison may take variable
/// time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IkePublicKey(Key);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Ed25519([u8; 32]),
    /// A point of the curve, without the byte [`UNCOMPRESSED`].
    EcdsaP256([u8; POINT_SIZE]),
}

impl IkePublicKey {
    /// An Ed25519 key (RFC 8032 section 5.1.5). Bytes that are no point of the curve verify no signature.
    #[must_use]
    pub const fn ed25519(bytes: [u8; 32]) -> Self {
        Self(Key::Ed25519(bytes))
    }

    /// An ECDSA key: a point of P-256, both coordinates (SEC 1, section 2.3.3). None: the bytes are no point
    /// of the curve, or are written in another form.
    #[must_use]
    pub fn ecdsa_p256(point: &[u8]) -> Option<Self> {
        let (first, coordinates) = point.split_first()?;
        let coordinates = coordinates.try_into().ok()?;
        let is_one = *first == UNCOMPRESSED && p256::PublicKey::from_sec1_bytes(point).is_ok();
        is_one.then_some(Self(Key::EcdsaP256(coordinates)))
    }

    /// The key's algorithm.
    #[must_use]
    pub fn algorithm(&self) -> IkeAlgorithm {
        match self.0 {
            Key::Ed25519(_) => IkeAlgorithm::Ed25519,
            Key::EcdsaP256(_) => IkeAlgorithm::EcdsaP256,
        }
    }

    /// The content of the BIT STRING of the key's SubjectPublicKeyInfo: the key alone.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        match self.0 {
            Key::Ed25519(key) => key.to_vec(),
            Key::EcdsaP256(point) => [[UNCOMPRESSED].as_slice(), &point].concat(),
        }
    }

    /// The key's SubjectPublicKeyInfo, in DER.
    #[must_use]
    pub fn to_spki(self) -> Vec<u8> {
        let prefix = match self.0 {
            Key::Ed25519(_) => ED25519_SPKI.as_slice(),
            Key::EcdsaP256(_) => &P256_SPKI,
        };
        [prefix, &self.to_bytes()].concat()
    }

    /// The first four bytes that differ between keys of its algorithm, for names that need not be unique.
    #[must_use]
    pub fn beginning(&self) -> [u8; 4] {
        let (Key::Ed25519([a, b, c, d, ..]) | Key::EcdsaP256([a, b, c, d, ..])) = self.0;
        [a, b, c, d]
    }

    /// The fingerprint that `ssh-keygen -l` prints: `SHA256:` and unpadded Base64.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.public_key().fingerprint(HashAlg::Sha256).to_string()
    }

    fn public_key(self) -> PublicKey {
        let data = match self.0 {
            Key::Ed25519(key) => KeyData::Ed25519(Ed25519PublicKey(key)),
            Key::EcdsaP256(_) => {
                let point = EcdsaPublicKey::from_sec1_bytes(&self.to_bytes());
                KeyData::Ecdsa(point.expect("both coordinates are a point"))
            }
        };
        PublicKey::new(data, "")
    }
}

/// The algorithm by which a host with these keys of its own and one with those others authenticate each other.
/// None: they have none in common. Both hosts choose the same if they know the same keys.
#[must_use]
pub fn common_algorithm(own: &[IkePublicKey], others: &[IkePublicKey]) -> Option<IkeAlgorithm> {
    let have = |keys: &[IkePublicKey], algorithm| {
        let mut keys = keys.iter();
        keys.any(|key| key.algorithm() == algorithm)
    };
    let mut all = IkeAlgorithm::ALL.iter().copied();
    all.find(|algorithm| have(own, *algorithm) && have(others, *algorithm))
}

impl FromStr for IkePublicKey {
    type Err = IkeKeyError;

    /// Reads a public key line of OpenSSH; a comment is dropped.
    fn from_str(line: &str) -> Result<Self, IkeKeyError> {
        let key = PublicKey::from_openssh(&usher_base::with_single_blanks(line))
            .map_err(|_| IkeKeyError::NotAKey)?;
        match key.key_data() {
            KeyData::Ed25519(key) => Ok(Self::ed25519(key.0)),
            KeyData::Ecdsa(key) if key.curve() == EcdsaCurve::NistP256 => {
                Self::ecdsa_p256(key.as_sec1_bytes()).ok_or(IkeKeyError::NotAKey)
            }
            other => Err(IkeKeyError::OtherAlgorithm(other.algorithm())),
        }
    }
}

impl fmt::Display for IkePublicKey {
    /// OpenSSH's form, without comment and without newline.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.public_key().to_openssh();
        let line = line.map_err(|_| fmt::Error)?;
        formatter.pad(line.trim_end())
    }
}

impl fmt::Debug for IkePublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

serde_as_text!(IkePublicKey);

#[cfg(test)]
mod tests {
    use super::*;

    const P256: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBHwf2HMM5TRXvo2SQJjsNkiDD5KqiiNjrGVv3UUh+mMT5RHxiRtOnlqvjhQtBq0VpmpCV/PwUdhOig4vkbqAcEc=";

    #[test]
    fn blanks_between_the_parts_of_a_line_do_not_count() {
        let keys = [IkePublicKey::ed25519([7; 32]), P256.parse().expect("a key")];
        for plain in keys {
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

    #[test]
    fn only_points_of_the_curve_are_ecdsa_keys() {
        let key: IkePublicKey = P256.parse().expect("a key");
        assert_eq!(key.algorithm(), IkeAlgorithm::EcdsaP256);
        assert_eq!(key.to_string(), P256);
        let point = key.to_bytes();
        assert_eq!(IkePublicKey::ecdsa_p256(&point), Some(key));
        let mut other = point.clone();
        other[40] ^= 1;
        assert_eq!(IkePublicKey::ecdsa_p256(&other), None, "beside the curve");
        let compressed = [&[2 + (point[64] & 1)], &point[1..33]].concat();
        assert!(p256::PublicKey::from_sec1_bytes(&compressed).is_ok());
        assert_eq!(IkePublicKey::ecdsa_p256(&compressed), None);
        for short in [&[][..], &[0], &point[..64]] {
            assert_eq!(IkePublicKey::ecdsa_p256(short), None, "{short:?}");
        }
        let beside = P256.replace("3UUh", "3UUi");
        assert_eq!(beside.parse::<IkePublicKey>(), Err(IkeKeyError::NotAKey));
    }

    #[test]
    fn keys_of_other_curves_and_algorithms_are_named() {
        let p384 = "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBMpb7PB/jOdR6dPzZsbVbCi09mCox1mUlAomIkDkL1HZQ6+FesLtnmYYOj2FrQ3rcqJ5BbFkObyvHF81pVeJwT8fo0Espuy9mC+bOQc/LXTKax1Z0dCTXfV+4jX5qQvv1Q==";
        let refused = p384.parse::<IkePublicKey>();
        match refused {
            Err(IkeKeyError::OtherAlgorithm(other)) => {
                assert_eq!(other.as_str(), "ecdsa-sha2-nistp384");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn hosts_choose_the_first_algorithm_that_both_have() {
        let ed25519 = IkePublicKey::ed25519([7; 32]);
        let ecdsa: IkePublicKey = P256.parse().expect("a key");
        let both = [ecdsa, ed25519];
        for (own, others, expected) in [
            (&[ed25519][..], &both[..], Some(IkeAlgorithm::Ed25519)),
            (&both, &both, Some(IkeAlgorithm::Ed25519)),
            (&both, &[ecdsa], Some(IkeAlgorithm::EcdsaP256)),
            (&[ed25519], &[ecdsa], None),
            (&both, &[], None),
        ] {
            assert_eq!(common_algorithm(own, others), expected);
            assert_eq!(common_algorithm(others, own), expected);
        }
    }
}
