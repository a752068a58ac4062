//! OpenSSH certificates of users (PROTOCOL.certkeys): a key, and what an authority certifies about it.
//!
//! The decoder of `ssh-key` is unsuitable: it allocates by a length prefix before it compares it with
//! the input, and refuses certificates that never expire.

use std::fmt;
use std::str::FromStr;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use ssh_encoding::Decode;
use ssh_encoding::base64::{Base64, Encoding};
use ssh_key::{PublicKey, Signature};

use crate::Refusal;
use crate::key::{is_security_key, is_supported, require_suitable};
use crate::verification::{refuse_sha1, refuse_weak_key, verify};
use usher_base::DecodeError;
use usher_base::codec::{Codec, Reader, fields, put_string};

/// Longest certificate in bytes. An Ed25519 one with two principals has about 450, an RSA one whose key and
/// authority have 4,096 bits about 1,900.
pub const MAX_CERTIFICATE_SIZE: usize = 3072;

/// Limit of principals of a certificate; OpenSSH has the same limit.
pub const MAX_PRINCIPALS: usize = 256;

/// Longest list of principals in bytes, with commas between them; `usher_connection_info` has room for
/// no more.
pub const MAX_PRINCIPALS_SIZE: usize = 511;

/// Types of certificates, types of the keys in them, and the number of strings that hold the key.
const KINDS: [(&str, &str, usize); 7] = [
    ("ssh-ed25519-cert-v01@openssh.com", "ssh-ed25519", 1),
    (
        "ecdsa-sha2-nistp256-cert-v01@openssh.com",
        "ecdsa-sha2-nistp256",
        2,
    ),
    (
        "ecdsa-sha2-nistp384-cert-v01@openssh.com",
        "ecdsa-sha2-nistp384",
        2,
    ),
    (
        "ecdsa-sha2-nistp521-cert-v01@openssh.com",
        "ecdsa-sha2-nistp521",
        2,
    ),
    ("ssh-rsa-cert-v01@openssh.com", "ssh-rsa", 2),
    (
        "sk-ssh-ed25519-cert-v01@openssh.com",
        "sk-ssh-ed25519@openssh.com",
        2,
    ),
    (
        "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
        3,
    ),
];

/// The end of the names of all types of certificates.
pub const TYPE_SUFFIX: &str = "-cert-v01@openssh.com";
const TYPE_USER: u32 = 1;

/// The names that the holder of a certificate may go by, with commas between them: at most
/// [`MAX_PRINCIPALS_SIZE`] bytes. A name is not empty and has no comma or control character. There may
/// be no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Principals(String);

impl Principals {
    /// The principals with these names.
    ///
    /// # Errors
    /// [`DecodeError::Oversized`], [`DecodeError::Malformed`].
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, DecodeError> {
        let mut joined = String::new();
        for (number, name) in names.into_iter().enumerate() {
            if number >= MAX_PRINCIPALS {
                return Err(DecodeError::Oversized);
            }
            if name.is_empty() || name.contains(|letter: char| letter == ',' || letter.is_control())
            {
                return Err(DecodeError::Malformed { field: "principal" });
            }
            if number > 0 {
                joined.push(',');
            }
            joined.push_str(name);
            if joined.len() > MAX_PRINCIPALS_SIZE {
                return Err(DecodeError::Oversized);
            }
        }
        Ok(Self(joined))
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').filter(|name| !name.is_empty())
    }

    /// Whether this name is one of them.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// The names, commas between them.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Principals {
    type Err = DecodeError;

    fn from_str(text: &str) -> Result<Self, DecodeError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        Self::new(text.split(','))
    }
}

impl fmt::Display for Principals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The part of a certificate that is kept with the session it opened: enough to check again whether
/// the session is still permitted. Only the principals vary in length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Certified {
    /// SHA-256 of the authority's key.
    pub authority: [u8; 32],
    /// SHA-1 of the authority's key, which lists of revoked keys may use.
    pub authority_sha1: [u8; 20],
    /// SHA-1 of the certified key.
    pub key_sha1: [u8; 20],
    /// The authority's number for the certificate; 0 if it has none.
    pub serial: u64,
    /// SHA-256 of the authority's name for the certificate.
    pub key_id: [u8; 32],
    /// The first second in which the certificate is no longer valid, since 1970.
    pub valid_before: u64,
    /// The names that the certificate's holder may go by.
    pub principals: Principals,
}

impl Certified {
    /// The longest encoding in bytes.
    pub(crate) const MAX_SIZE: usize = 32 + 2 * 20 + 8 + 32 + 8 + 2 + MAX_PRINCIPALS_SIZE;
}

fields! {
    Certified {
        authority: [u8; 32],
        authority_sha1: [u8; 20],
        key_sha1: [u8; 20],
        serial: u64,
        key_id: [u8; 32],
        valid_before: u64,
        principals: Principals,
    }
}

/// A length of two bytes, and the names with commas between them.
impl Codec for Principals {
    fn put(value: &Self, out: &mut Vec<u8>) {
        let text = value.as_str();
        u16::put(&u16::try_from(text.len()).unwrap_or(u16::MAX), out);
        out.extend_from_slice(text.as_bytes());
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        let length = usize::from(reader.u16()?);
        if length > MAX_PRINCIPALS_SIZE {
            return Err(DecodeError::Oversized);
        }
        let text = std::str::from_utf8(reader.take(length)?);
        text.map_err(|_| DecodeError::Malformed { field: "principal" })?
            .parse()
    }
}

/// A certificate. Its contents are unchecked until [`Certificate::verify`] succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certified key.
    pub key: PublicKey,
    /// The authority's number for the certificate; 0 if it has none.
    pub serial: u64,
    /// The authority's name for the certificate.
    pub key_id: String,
    /// The names that the certificate's holder may go by.
    pub principals: Principals,
    /// The first second in which the certificate is valid, since 1970.
    pub valid_after: u64,
    /// The first second in which the certificate is no longer valid, since 1970.
    pub valid_before: u64,
    /// Options that a verifier must understand: names and values.
    pub critical_options: Vec<(String, Vec<u8>)>,
    /// The key that signed the certificate.
    pub authority: PublicKey,
    is_for_users: bool,
    bytes: Vec<u8>,
    /// Number of bytes that the authority has signed.
    signed: usize,
    signature: Signature,
}

/// The field of a certificate that exceeds its limit, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// The whole certificate.
    #[error("the certificate has {0} bytes, at most {MAX_CERTIFICATE_SIZE} are possible")]
    Certificate(usize),
    /// The number of principals.
    #[error(
        "the certificate has {0} principals, at most {MAX_PRINCIPALS} are possible: get one with \
         only those that policies name (ssh-keygen -n)"
    )]
    Principals(usize),
    /// The principals, commas between them.
    #[error(
        "the certificate's {count} principals have {bytes} bytes, commas included, and at most \
         {MAX_PRINCIPALS_SIZE} are possible: get one with only those that policies name \
         (ssh-keygen -n)"
    )]
    PrincipalsSize {
        /// The number of principals.
        count: usize,
        /// The bytes of all principals, commas included.
        bytes: usize,
    },
}

/// The field that exceeds its limit in a line of a `-cert.pub` file, if that is why [`Certificate::parse`]
/// refuses the line as [`Refusal::Oversized`].
#[must_use]
pub fn excess(line: &str) -> Option<Excess> {
    let blob = Base64::decode_vec(line.split_ascii_whitespace().nth(1)?).ok()?;
    let most = blob.len();
    let mut reader = Reader::new(&blob);
    let name = reader.string(most).ok()?;
    let (.., fields) = KINDS.iter().find(|(kind, ..)| kind.as_bytes() == name)?;
    // The nonce and the key; serial number and type; the authority's name for the certificate.
    for _ in 0..=*fields {
        reader.string(most).ok()?;
    }
    reader.u64().ok()?;
    reader.u32().ok()?;
    reader.string(most).ok()?;
    let mut principals = Reader::new(reader.string(most).ok()?);
    let (mut count, mut bytes) = (0, 0);
    while !principals.is_empty() {
        bytes += principals.string(most).ok()?.len() + usize::from(count > 0);
        count += 1;
    }
    if count > MAX_PRINCIPALS {
        return Some(Excess::Principals(count));
    }
    if bytes > MAX_PRINCIPALS_SIZE {
        return Some(Excess::PrincipalsSize { count, bytes });
    }
    (blob.len() > MAX_CERTIFICATE_SIZE).then_some(Excess::Certificate(blob.len()))
}

/// Whether a public key in its wire form is a certificate, by its type.
#[must_use]
pub fn is_certificate(blob: &[u8]) -> bool {
    let name = Reader::new(blob).string(MAX_CERTIFICATE_SIZE);
    name.is_ok_and(|name| name.ends_with(TYPE_SUFFIX.as_bytes()))
}

impl Certificate {
    /// Reads the wire form, which a `-cert.pub` file has in Base64.
    ///
    /// # Errors
    /// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::Malformed`];
    /// [`Refusal::UnsupportedKey`] if users may not have this kind of key, if the authority's key is
    /// on a security key, or if either is a weak Ed25519 key; [`Refusal::UnsuitableRsaKey`] for either;
    /// [`Refusal::Sha1Signature`].
    pub fn decode(blob: &[u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::bounded(blob, MAX_CERTIFICATE_SIZE)?;
        let name = reader.string(MAX_CERTIFICATE_SIZE)?;
        if !name.ends_with(TYPE_SUFFIX.as_bytes()) {
            return Err(Refusal::Malformed);
        }
        let &(_, kind, fields) = KINDS
            .iter()
            .find(|(certificate, ..)| certificate.as_bytes() == name)
            .ok_or(Refusal::UnsupportedKey)?;
        // A nonce, so that no one can choose the bytes that the authority signs.
        reader.string(MAX_CERTIFICATE_SIZE)?;
        let mut key = Vec::new();
        put_string(&mut key, kind.as_bytes());
        for _ in 0..fields {
            put_string(&mut key, reader.string(MAX_CERTIFICATE_SIZE)?);
        }
        let key = public_key(&key)?;
        let serial = reader.u64()?;
        let is_for_users = reader.u32()? == TYPE_USER;
        let key_id = read_text(&mut reader)?;
        let principals = principals(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        let (valid_after, valid_before) = (reader.u64()?, reader.u64()?);
        let critical_options = options(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        options(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        // Reserved. The signature covers it.
        reader.string(MAX_CERTIFICATE_SIZE)?;
        let authority = public_key(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        if is_security_key(&authority.algorithm()) {
            return Err(Refusal::UnsupportedKey);
        }
        let signed = blob.len() - reader.remaining();
        let signature = read_signature(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        reader.finish()?;
        Ok(Self {
            key,
            serial,
            key_id,
            principals,
            valid_after,
            valid_before,
            critical_options,
            authority,
            is_for_users,
            bytes: blob.to_vec(),
            signed,
            signature,
        })
    }

    /// Reads a `-cert.pub` file: one line.
    ///
    /// # Errors
    /// As [`Certificate::decode`]; [`Refusal::Malformed`] also for any other text.
    pub fn parse(line: &str) -> Result<Self, Refusal> {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(base64)) = (words.next(), words.next()) else {
            return Err(Refusal::Malformed);
        };
        let blob = Base64::decode_vec(base64).map_err(|_| Refusal::Malformed)?;
        let named = Reader::new(&blob).string(MAX_CERTIFICATE_SIZE)?;
        if named != name.as_bytes() || line.trim().contains('\n') {
            return Err(Refusal::Malformed);
        }
        Self::decode(&blob)
    }

    /// The wire form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The line of a `-cert.pub` file, without a comment.
    #[must_use]
    pub fn line(&self) -> String {
        let name = Reader::new(&self.bytes).string(MAX_CERTIFICATE_SIZE);
        let name = String::from_utf8_lossy(name.unwrap_or_default());
        format!("{name} {}", Base64::encode_string(&self.bytes))
    }

    /// Checks that the certificate's authority has signed it. The caller checks whether that authority is
    /// trusted, for which users and until when, and whether it is revoked.
    ///
    /// # Errors
    /// [`Refusal::BadSignature`].
    pub fn verify(&self) -> Result<(), Refusal> {
        verify(
            self.authority.key_data(),
            &self.bytes[..self.signed],
            &self.signature,
        )
    }

    /// Checks that it is a user's certificate and valid at `now`, in seconds since 1970. No critical
    /// option is supported.
    ///
    /// # Errors
    /// [`Refusal::NotAUserCertificate`], [`Refusal::CriticalOption`],
    /// [`Refusal::CertificateNotYetValid`], [`Refusal::ExpiredCertificate`].
    pub fn check(&self, now: u64) -> Result<(), Refusal> {
        if !self.is_for_users {
            return Err(Refusal::NotAUserCertificate);
        }
        if !self.critical_options.is_empty() {
            return Err(Refusal::CriticalOption);
        }
        if now < self.valid_after {
            return Err(Refusal::CertificateNotYetValid);
        }
        if now >= self.valid_before {
            return Err(Refusal::ExpiredCertificate);
        }
        Ok(())
    }

    /// The part that a session keeps.
    ///
    /// # Errors
    /// [`Refusal::UnsupportedKey`]; no decoded certificate causes it.
    pub fn certified(&self) -> Result<Certified, Refusal> {
        let blob = |key: &PublicKey| key.to_bytes().map_err(|_| Refusal::UnsupportedKey);
        let (key, authority) = (blob(&self.key)?, blob(&self.authority)?);
        Ok(Certified {
            authority: Sha256::digest(&authority).into(),
            authority_sha1: Sha1::digest(&authority).into(),
            key_sha1: Sha1::digest(&key).into(),
            serial: self.serial,
            key_id: Sha256::digest(self.key_id.as_bytes()).into(),
            valid_before: self.valid_before,
            principals: self.principals.clone(),
        })
    }
}

/// Reads a public key in its wire form, of a supported kind and in its one spelling.
fn public_key(blob: &[u8]) -> Result<PublicKey, Refusal> {
    let mut reader = Reader::new(blob);
    let name = reader.string(MAX_CERTIFICATE_SIZE)?;
    let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
    let algorithm = name.parse().map_err(|_| Refusal::UnsupportedKey)?;
    if !is_supported(&algorithm) {
        return Err(Refusal::UnsupportedKey);
    }
    let key = PublicKey::from_bytes(blob).map_err(|_| Refusal::Malformed)?;
    require_suitable(key.key_data())?;
    if key.to_bytes().map_err(|_| Refusal::Malformed)? != blob {
        return Err(Refusal::Malformed);
    }
    refuse_weak_key(key.key_data())?;
    Ok(key)
}

/// Reads a signature in its wire form (RFC 4253 section 6.6), in its one spelling.
pub(crate) fn read_signature(blob: &[u8]) -> Result<Signature, Refusal> {
    let mut reader = Reader::new(blob);
    reader.string(MAX_CERTIFICATE_SIZE)?;
    reader.string(MAX_CERTIFICATE_SIZE)?;
    reader.finish()?;
    refuse_sha1(blob)?;
    let signature = Signature::decode(&mut &*blob).map_err(|_| Refusal::Malformed)?;
    let again = Vec::try_from(signature.clone()).map_err(|_| Refusal::Malformed)?;
    if again != blob {
        return Err(Refusal::Malformed);
    }
    Ok(signature)
}

fn read_text(reader: &mut Reader<'_>) -> Result<String, Refusal> {
    let bytes = reader.string(MAX_CERTIFICATE_SIZE)?;
    let text = std::str::from_utf8(bytes).map_err(|_| Refusal::Malformed)?;
    Ok(text.to_owned())
}

fn principals(bytes: &[u8]) -> Result<Principals, Refusal> {
    let mut reader = Reader::new(bytes);
    let mut names = Vec::new();
    while !reader.is_empty() {
        if names.len() == MAX_PRINCIPALS {
            return Err(Refusal::Oversized);
        }
        names.push(read_text(&mut reader)?);
    }
    Ok(Principals::new(names.iter().map(String::as_str))?)
}

/// Reads options: each once, in the order of their names.
fn options(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
    let mut reader = Reader::new(bytes);
    let mut options: Vec<(String, Vec<u8>)> = Vec::new();
    while !reader.is_empty() {
        let name = read_text(&mut reader)?;
        let value = reader.string(MAX_CERTIFICATE_SIZE)?.to_vec();
        if options.last().is_some_and(|(former, _)| *former >= name) {
            return Err(DecodeError::Malformed { field: "options" }.into());
        }
        options.push((name, value));
    }
    Ok(options)
}
