//! OpenSSH certificates of users (PROTOCOL.certkeys): a key, and what an authority says of it.
//!
//! The decoder of `ssh-key` is not used: it allocates what a length says before looking whether it
//! is there, and takes no certificate without an end.

use signature::Verifier;
use ssh_encoding::Decode;
use ssh_key::{PublicKey, Signature};

use crate::authenticator::{is_security_key, is_supported, refuse_weak_key};
use crate::codec::{Reader, put_string};
use crate::{DecodeError, Refusal};

/// Longest certificate in bytes. An Ed25519 one with two principals has about 450.
pub const MAX_CERTIFICATE_SIZE: usize = 3072;

/// Most principals of a certificate; OpenSSH has the same limit.
pub const MAX_PRINCIPALS: usize = 256;

const SUFFIX: &str = "-cert-v01@openssh.com";
const TYPE_USER: u32 = 1;

/// A certificate. Nothing is promised about what it says until [`Certificate::verify`] succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The key that it is about.
    pub key: PublicKey,
    /// The authority's number for it; 0: none.
    pub serial: u64,
    /// The authority's name for it.
    pub key_id: String,
    /// Names that its holder may go by.
    pub principals: Vec<String>,
    /// From when on it is valid, in seconds since 1970.
    pub valid_after: u64,
    /// From when on it is valid no more, in seconds since 1970.
    pub valid_before: u64,
    /// What must be understood: names and values.
    pub critical_options: Vec<(String, Vec<u8>)>,
    /// The key of who has signed it.
    pub authority: PublicKey,
    is_for_users: bool,
    signed: Vec<u8>,
    signature: Signature,
}

/// Whether a public key in its wire form is one with a certificate, by its first words.
#[must_use]
pub fn is_certificate(blob: &[u8]) -> bool {
    let name = Reader::new(blob).string(MAX_CERTIFICATE_SIZE);
    name.is_ok_and(|name| name.ends_with(SUFFIX.as_bytes()))
}

impl Certificate {
    /// Reads the wire form, which is also that inside the Base64 of a `-cert.pub` file.
    ///
    /// # Errors
    /// [`Refusal::Oversized`], [`Refusal::Truncated`], [`Refusal::Malformed`];
    /// [`Refusal::UnsupportedKey`] when the key or the authority's is neither Ed25519 nor ECDSA
    /// P-256 or P-384, or is a weak Ed25519 key.
    pub fn decode(blob: &[u8]) -> Result<Self, Refusal> {
        let mut reader = Reader::bounded(blob, MAX_CERTIFICATE_SIZE)?;
        let name = std::str::from_utf8(reader.string(MAX_CERTIFICATE_SIZE)?)
            .map_err(|_| Refusal::Malformed)?;
        let kind = name.strip_suffix(SUFFIX).ok_or(Refusal::Malformed)?;
        // Random, so that nobody can choose what is signed.
        reader.string(MAX_CERTIFICATE_SIZE)?;
        let fields = match kind {
            "ssh-ed25519" => 1,
            "ecdsa-sha2-nistp256" | "ecdsa-sha2-nistp384" => 2,
            _ => return Err(Refusal::UnsupportedKey),
        };
        let mut key = Vec::new();
        put_string(&mut key, kind.as_bytes());
        for _ in 0..fields {
            put_string(&mut key, reader.string(MAX_CERTIFICATE_SIZE)?);
        }
        let key = public_key(&key)?;
        let serial = reader.u64()?;
        let is_for_users = reader.u32()? == TYPE_USER;
        let key_id = text(&mut reader)?;
        let mut names = Reader::new(reader.string(MAX_CERTIFICATE_SIZE)?);
        let mut principals = Vec::new();
        while !names.is_empty() {
            if principals.len() == MAX_PRINCIPALS {
                return Err(Refusal::Oversized);
            }
            principals.push(text(&mut names)?);
        }
        let (valid_after, valid_before) = (reader.u64()?, reader.u64()?);
        let critical_options = options(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        options(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        // Reserved: whatever it is, it is signed.
        reader.string(MAX_CERTIFICATE_SIZE)?;
        let authority = public_key(reader.string(MAX_CERTIFICATE_SIZE)?)?;
        let signed = blob[..blob.len() - reader.remaining()].to_vec();
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
            signed,
            signature,
        })
    }

    /// Checks that the authority in it has signed it, for a user. Whether that authority is
    /// trusted, for whom and until when, and whether it is revoked, is for the caller to say.
    ///
    /// # Errors
    /// [`Refusal::BadSignature`].
    pub fn verify(&self) -> Result<(), Refusal> {
        let algorithm = self.authority.algorithm();
        if !self.is_for_users || self.signature.algorithm() != algorithm {
            return Err(Refusal::BadSignature);
        }
        self.authority
            .key_data()
            .verify(&self.signed, &self.signature)
            .map_err(|_| Refusal::BadSignature)
    }
}

/// A public key in its wire form, of a kind that is supported and with one spelling.
fn public_key(blob: &[u8]) -> Result<PublicKey, Refusal> {
    let mut reader = Reader::new(blob);
    let name = reader.string(MAX_CERTIFICATE_SIZE)?;
    let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
    let algorithm = name.parse().map_err(|_| Refusal::UnsupportedKey)?;
    if !is_supported(&algorithm) || is_security_key(&algorithm) {
        return Err(Refusal::UnsupportedKey);
    }
    let key = PublicKey::from_bytes(blob).map_err(|_| Refusal::Malformed)?;
    if key.to_bytes().map_err(|_| Refusal::Malformed)? != blob {
        return Err(Refusal::Malformed);
    }
    refuse_weak_key(key.key_data())?;
    Ok(key)
}

/// A signature in its wire form (RFC 4253 section 6.6), with one spelling.
pub(crate) fn read_signature(blob: &[u8]) -> Result<Signature, Refusal> {
    let mut reader = Reader::new(blob);
    reader.string(MAX_CERTIFICATE_SIZE)?;
    reader.string(MAX_CERTIFICATE_SIZE)?;
    reader.finish()?;
    let signature = Signature::decode(&mut &*blob).map_err(|_| Refusal::Malformed)?;
    let again = Vec::try_from(signature.clone()).map_err(|_| Refusal::Malformed)?;
    if again != blob {
        return Err(Refusal::Malformed);
    }
    Ok(signature)
}

fn text(reader: &mut Reader<'_>) -> Result<String, Refusal> {
    let bytes = reader.string(MAX_CERTIFICATE_SIZE)?;
    let text = std::str::from_utf8(bytes).map_err(|_| Refusal::Malformed)?;
    Ok(text.to_owned())
}

/// Options: each once, in the order of their names.
fn options(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
    let mut reader = Reader::new(bytes);
    let mut options: Vec<(String, Vec<u8>)> = Vec::new();
    while !reader.is_empty() {
        let name = text(&mut reader)?;
        let value = reader.string(MAX_CERTIFICATE_SIZE)?.to_vec();
        if options.last().is_some_and(|(former, _)| *former >= name) {
            return Err(DecodeError::Malformed { field: "options" }.into());
        }
        options.push((name, value));
    }
    Ok(options)
}
