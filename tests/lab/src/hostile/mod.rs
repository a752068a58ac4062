//! A hostile client host: it speaks the control channel's TLS with a key of the test's choice and
//! sends bytes of the test's choice, from inside a host's network. It can also send everything
//! correctly, so that each refusal has its permitted twin with the same client.

mod asked;
mod channel;
mod port;

use std::fs::File;
use std::io::{self, Read};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use usher_proto::HostPublicKey;
use usher_proto::ssh_key::PrivateKey;
use usher_proto::ssh_key::private::Ed25519Keypair;

pub use asked::{Asked, id_of, sign_bytes};
pub use channel::{ALPN, Channel};
pub use port::{Port, dial, in_network, read_line};

use crate::error::{Attempt, LabError};
use crate::host::Host;

/// RFC 8410: the bytes before the 32 bytes of an Ed25519 seed in PKCS #8.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A host key in the hands of the test.
#[derive(Debug, Clone)]
pub struct Identity(Ed25519Keypair);

impl Identity {
    /// The key of a host after `usher init`.
    ///
    /// # Errors
    /// When it is unreadable.
    pub fn of(host: &Host) -> Result<Self, LabError> {
        let key = private_key(host, "/etc/usher/host_key")?;
        let pair = key.key_data().ed25519().cloned();
        pair.map(Self)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .attempt(|| "a host key that is not Ed25519".into())
    }

    /// A new key that no host knows.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Ed25519Keypair::from_seed(&random()))
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> HostPublicKey {
        HostPublicKey::from_bytes(self.0.public.0)
    }

    fn certified(&self) -> Result<CertifiedKey, rustls::Error> {
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(self.0.private.as_ref());
        let key = PrivatePkcs8KeyDer::from(pkcs8);
        let key = rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&key)?;
        let der = CertificateDer::from(self.public().to_spki_der().to_vec());
        Ok(CertifiedKey::new(vec![der], key))
    }
}

/// A new user's key that no host knows.
#[must_use]
pub fn fresh_user_key() -> PrivateKey {
    let pair = Ed25519Keypair::from_seed(&random());
    PrivateKey::from(pair)
}

/// Reads a private key as root.
///
/// # Errors
/// When it is missing or not a private key.
pub fn private_key(host: &Host, path: &str) -> Result<PrivateKey, LabError> {
    PrivateKey::from_openssh(host.read(path)?)
        .map_err(io::Error::other)
        .attempt(|| format!("host {}: {path}", host.name()))
}

/// Random bytes from the system.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut fill = || File::open("/dev/urandom")?.read_exact(&mut bytes);
    fill().map_or([0; N], |()| bytes)
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
