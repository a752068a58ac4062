//! Revoked keys, in either form of OpenSSH's `RevokedKeys`: a key revocation list of `ssh-keygen -k`
//! (PROTOCOL.krl), or one public key a line.
//!
//! A list that is not understood completely is an error, because the rest would not be revoked.

use std::collections::HashSet;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use ssh_encoding::base64::{Base64, Encoding};
use ssh_key::PublicKey;

use crate::certificate::Certified;
use usher_base::DecodeError;
use usher_base::codec::{Codec, Reader, Text};

/// Longest list in bytes.
pub const MAX_REVOKED_KEYS: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"SSHKRL\n\0";
const FORMAT_VERSION: u32 = 1;

const CERTIFICATES: u8 = 1;
const EXPLICIT_KEY: u8 = 2;
const FINGERPRINT_SHA1: u8 = 3;
const SIGNATURE: u8 = 4;
const FINGERPRINT_SHA256: u8 = 5;
const EXTENSION: u8 = 255;

const SERIAL_LIST: u8 = 0x20;
const SERIAL_RANGE: u8 = 0x21;
const SERIAL_BITMAP: u8 = 0x22;
const KEY_ID: u8 = 0x23;
const CERTIFICATE_EXTENSION: u8 = 0x39;

/// A fault of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevokedKeysError {
    /// The list is empty, perhaps because writing it failed.
    #[error("the list is empty; remove it when no key is revoked")]
    Empty,
    /// The list begins like a key revocation list and then breaks its format.
    #[error("the key revocation list is damaged ({0}); make it anew with ssh-keygen -k")]
    Damaged(#[from] DecodeError),
    /// The list is signed, or has an extension that must be understood.
    #[error(
        "the key revocation list has a part that this version does not understand ({0}); make it \
         without that part"
    )]
    NotUnderstood(&'static str),
    /// A line is not a public key.
    #[error(
        "line {0}: neither a public key, as ssh-keygen writes it to the .pub file, nor a comment; \
         certificates are revoked by a key revocation list (ssh-keygen -k)"
    )]
    Line(usize),
}

/// The revoked keys and certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevokedKeys {
    sha256: HashSet<[u8; 32]>,
    sha1: HashSet<[u8; 20]>,
    certificates: Vec<RevokedCertificates>,
}

/// Revoked certificates of one authority, or of any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RevokedCertificates {
    /// SHA-256 of the authority's key; none if the list is for all authorities.
    authority: Option<[u8; 32]>,
    /// First and last of each range.
    serials: Vec<(u64, u64)>,
    bitmaps: Vec<Bitmap>,
    /// SHA-256 of each.
    key_ids: HashSet<[u8; 32]>,
}

/// Serial numbers from `first` on, one for each bit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bitmap {
    first: u64,
    /// The lowest bit of the last byte stands for the first number.
    bytes: Vec<u8>,
}

impl Bitmap {
    fn has(&self, serial: u64) -> bool {
        let bit = serial.checked_sub(self.first);
        let Some(bit) = bit.and_then(|bit| usize::try_from(bit).ok()) else {
            return false;
        };
        let byte = self.bytes.iter().rev().nth(bit / 8);
        byte.is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
    }

    /// The number of serial numbers that the bitmap covers.
    fn len(&self) -> u64 {
        let unused = self.bytes.first().map_or(0, |byte| byte.leading_zeros());
        self.bytes.len() as u64 * 8 - u64::from(unused)
    }
}

impl RevokedKeys {
    /// Reads a list. Its first bytes show its form.
    ///
    /// # Errors
    /// [`RevokedKeysError`], for the whole list.
    pub fn parse(bytes: &[u8]) -> Result<Self, RevokedKeysError> {
        if bytes.is_empty() {
            return Err(RevokedKeysError::Empty);
        }
        if bytes.len() > MAX_REVOKED_KEYS {
            return Err(DecodeError::Oversized.into());
        }
        if bytes.starts_with(MAGIC) {
            Self::parse_krl(bytes)
        } else {
            Self::parse_lines(bytes)
        }
    }

    /// Whether this key is revoked.
    #[must_use]
    pub fn has_key(&self, key: &PublicKey) -> bool {
        if self.sha256.is_empty() && self.sha1.is_empty() {
            return false;
        }
        // A key without a wire form cannot be compared, so it counts as revoked.
        key.to_bytes().map_or(true, |blob| self.has_blob(&blob))
    }

    /// Whether the certified key, which has this fingerprint (SHA-256), is revoked, whoever certified it.
    #[must_use]
    pub fn has_certified_key(&self, key: &[u8; 32], certified: &Certified) -> bool {
        self.has_fingerprint(key, &certified.key_sha1)
    }

    /// Whether this certificate is revoked: by serial number, by key id, or with its authority's key.
    /// As in sshd, the serial number 0 matches nothing.
    #[must_use]
    pub fn has_certificate(&self, certified: &Certified) -> bool {
        if self.has_fingerprint(&certified.authority, &certified.authority_sha1) {
            return true;
        }
        let serial = certified.serial;
        self.certificates
            .iter()
            .filter(|revoked| revoked.authority.is_none_or(|of| of == certified.authority))
            .any(|revoked| {
                let listed = |&(first, last): &(u64, u64)| (first..=last).contains(&serial);
                revoked.key_ids.contains(&certified.key_id)
                    || serial != 0
                        && (revoked.serials.iter().any(listed)
                            || revoked.bitmaps.iter().any(|bitmap| bitmap.has(serial)))
            })
    }

    fn has_fingerprint(&self, sha256: &[u8; 32], sha1: &[u8; 20]) -> bool {
        self.sha256.contains(sha256) || self.sha1.contains(sha1)
    }

    fn has_blob(&self, blob: &[u8]) -> bool {
        self.sha256
            .contains::<[u8; 32]>(&Sha256::digest(blob).into())
            || !self.sha1.is_empty() && self.sha1.contains::<[u8; 20]>(&Sha1::digest(blob).into())
    }

    fn parse_lines(bytes: &[u8]) -> Result<Self, RevokedKeysError> {
        let mut revoked = Self::default();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let wrong = RevokedKeysError::Line(index + 1);
            let line = std::str::from_utf8(line).map_err(|_| wrong)?.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let blob = key_of_line(line).ok_or(wrong)?;
            revoked.sha256.insert(Sha256::digest(blob).into());
        }
        Ok(revoked)
    }

    fn parse_krl(bytes: &[u8]) -> Result<Self, RevokedKeysError> {
        let mut revoked = Self::default();
        let mut reader = Reader::new(bytes);
        reader.take(MAGIC.len())?;
        if reader.u32()? != FORMAT_VERSION {
            return Err(DecodeError::UnknownVersion.into());
        }
        // The number of the list, its time, flags; a reserved string, a comment.
        reader.take(3 * size_of::<u64>())?;
        reader.string(MAX_REVOKED_KEYS)?;
        reader.string(MAX_REVOKED_KEYS)?;
        while !reader.is_empty() {
            let kind = reader.u8()?;
            let mut section = Reader::new(reader.string(MAX_REVOKED_KEYS)?);
            match kind {
                CERTIFICATES => revoked.certificates.push(certificates(section)?),
                EXPLICIT_KEY => {
                    while !section.is_empty() {
                        let blob = section.string(MAX_REVOKED_KEYS)?;
                        revoked.sha256.insert(Sha256::digest(blob).into());
                    }
                }
                FINGERPRINT_SHA1 => {
                    while !section.is_empty() {
                        revoked.sha1.insert(Text::read(&mut section, "SHA-1")?);
                    }
                }
                FINGERPRINT_SHA256 => {
                    while !section.is_empty() {
                        revoked.sha256.insert(Text::read(&mut section, "SHA-256")?);
                    }
                }
                SIGNATURE => return Err(RevokedKeysError::NotUnderstood("a signature")),
                EXTENSION => pass_over(section)?,
                _ => return Err(DecodeError::UnknownType.into()),
            }
        }
        Ok(revoked)
    }
}

fn certificates(mut section: Reader<'_>) -> Result<RevokedCertificates, RevokedKeysError> {
    let mut revoked = RevokedCertificates::default();
    let authority = section.string(MAX_REVOKED_KEYS)?;
    revoked.authority = (!authority.is_empty()).then(|| Sha256::digest(authority).into());
    section.string(MAX_REVOKED_KEYS)?;
    while !section.is_empty() {
        let kind = section.u8()?;
        let mut part = Reader::new(section.string(MAX_REVOKED_KEYS)?);
        match kind {
            SERIAL_LIST => {
                while !part.is_empty() {
                    let serial = part.u64()?;
                    revoked.serials.push((serial, serial));
                }
            }
            SERIAL_RANGE => {
                let (first, last) = (part.u64()?, part.u64()?);
                part.finish()?;
                if first > last {
                    return Err(malformed("range").into());
                }
                revoked.serials.push((first, last));
            }
            SERIAL_BITMAP => {
                revoked.bitmaps.push(bitmap(&mut part)?);
                part.finish()?;
            }
            KEY_ID => {
                while !part.is_empty() {
                    let id = part.string(MAX_REVOKED_KEYS)?;
                    revoked.key_ids.insert(Sha256::digest(id).into());
                }
            }
            CERTIFICATE_EXTENSION => pass_over(part)?,
            _ => return Err(DecodeError::UnknownType.into()),
        }
    }
    Ok(revoked)
}

fn bitmap(part: &mut Reader<'_>) -> Result<Bitmap, DecodeError> {
    let first = part.u64()?;
    // An mpint (RFC 4251 section 5) that is not negative.
    let bytes = match part.string(MAX_REVOKED_KEYS)? {
        [0, rest @ ..] if rest.first().is_some_and(|byte| byte & 0x80 != 0) => rest,
        [byte, ..] if *byte == 0 || byte & 0x80 != 0 => return Err(malformed("bitmap")),
        bytes => bytes,
    };
    let bitmap = Bitmap {
        first,
        bytes: bytes.to_vec(),
    };
    if first.checked_add(bitmap.len().saturating_sub(1)).is_none() {
        return Err(malformed("bitmap"));
    }
    Ok(bitmap)
}

/// Ignores an extension, unless it is critical.
fn pass_over(mut extension: Reader<'_>) -> Result<(), RevokedKeysError> {
    extension.string(MAX_REVOKED_KEYS)?;
    let critical = extension.u8()?;
    extension.string(MAX_REVOKED_KEYS)?;
    extension.finish()?;
    if critical != 0 {
        return Err(RevokedKeysError::NotUnderstood("a critical extension"));
    }
    Ok(())
}

fn malformed(field: &'static str) -> DecodeError {
    DecodeError::Malformed { field }
}

/// The wire form of the key in a line; the key may be of any kind, supported or not.
fn key_of_line(line: &str) -> Option<Vec<u8>> {
    let mut words = line.split_ascii_whitespace();
    let (kind, base64) = (words.next()?, words.next()?);
    let blob = Base64::decode_vec(base64).ok()?;
    let named = Reader::new(&blob).string(MAX_REVOKED_KEYS).ok()?;
    let plain = named == kind.as_bytes() && !kind.contains("-cert-v0");
    plain.then_some(blob)
}
