//! The comparison for Usher's first connection: TLS 1.3 with the library, the provider, the kind of
//! key and the settings of Usher's own control channel (Ed25519 raw public keys on both sides,
//! RFC 7250). Each side accepts one key of the other, sessions are not resumed, and the private keys
//! are in the process.

#[allow(dead_code, reason = "the daemons' part")]
#[path = "../../crates/usherd/src/tls.rs"]
mod control_channel;

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use rustls::{ClientConfig, Error, ServerConfig};
use usher_proto::HostPublicKey;
use usher_proto::ssh_key::PrivateKey;

/// RFC 8410: the bytes before the 32 bytes of an Ed25519 seed in PKCS #8.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A private key and its public half.
#[derive(Debug)]
pub struct Identity {
    public: HostPublicKey,
    private: Arc<dyn SigningKey>,
}

impl Identity {
    /// Reads an unencrypted Ed25519 key in OpenSSH's format.
    ///
    /// # Errors
    /// When the file is unreadable or holds no such key.
    pub fn load(path: &Path) -> io::Result<Self> {
        let key = PrivateKey::from_openssh(std::fs::read(path)?).map_err(io::Error::other)?;
        let pair = key
            .key_data()
            .ed25519()
            .ok_or_else(|| io::Error::other("not an Ed25519 key"))?;
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(pair.private.as_ref());
        let private =
            rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))
                .map_err(io::Error::other)?;
        Ok(Self {
            public: HostPublicKey::from_bytes(pair.public.0),
            private,
        })
    }
}

/// A server that accepts one client's key.
///
/// # Errors
/// When the provider lacks TLS 1.3.
pub fn server_config(own: &Identity, client: HostPublicKey) -> Result<ServerConfig, Error> {
    control_channel::server_config(
        &own.public,
        Arc::clone(&own.private),
        Arc::new(move |key| *key == client),
    )
}

/// A client that accepts one server's key.
///
/// # Errors
/// As [`server_config`].
pub fn client_config(own: &Identity, server: HostPublicKey) -> Result<ClientConfig, Error> {
    control_channel::client_config(&own.public, Arc::clone(&own.private), &[server])
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustls::pki_types::ServerName;
    use rustls::{CertificateError, ClientConnection, ServerConnection};
    use usher_proto::ssh_key::private::Ed25519Keypair;

    use super::*;

    /// An identity of this seed, and its public half.
    fn identity(seed: u8) -> (Identity, HostPublicKey) {
        let pair = Ed25519Keypair::from_seed(&[seed; 32]);
        let public = HostPublicKey::from_bytes(pair.public.0);
        let path = std::env::temp_dir().join(format!("bench-tls-{}-{seed}", std::process::id()));
        let text = PrivateKey::from(pair)
            .to_openssh(usher_proto::ssh_key::LineEnding::LF)
            .unwrap();
        std::fs::write(&path, text.as_bytes()).unwrap();
        let identity = Identity::load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (identity, public)
    }

    /// Shakes hands in memory and returns whether data got through.
    fn shake(client_takes: HostPublicKey, server_takes: HostPublicKey) -> Result<bool, Error> {
        let ((ours, _), (theirs, _)) = (identity(1), identity(2));
        let name = ServerName::try_from("server").unwrap();
        let config = client_config(&ours, client_takes)?;
        let mut client = ClientConnection::new(Arc::new(config), name)?;
        let mut server = ServerConnection::new(Arc::new(server_config(&theirs, server_takes)?))?;
        client.writer().write_all(b"x").unwrap();
        let mut bytes = Vec::new();
        for _ in 0..4 {
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets()?;
            bytes.clear();
        }
        let mut heard = [0];
        Ok(server
            .reader()
            .read(&mut heard)
            .is_ok_and(|length| length == 1))
    }

    #[test]
    fn each_side_takes_the_others_key_and_no_other() {
        let ((_, client), (_, server)) = (identity(1), identity(2));
        let refused = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        let stranger = HostPublicKey::from_bytes([3; 32]);
        assert_eq!(shake(server, client), Ok(true));
        assert_eq!(shake(stranger, client), Err(refused.clone()));
        assert_eq!(shake(server, stranger), Err(refused));
    }
}
