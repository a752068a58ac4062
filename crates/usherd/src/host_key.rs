//! The host's private key and its handle.
//!
//! The process that talks to the network does TLS but must not hold the key. The keeper (server side) and the
//! signer (client side) hold it; the verifier and the courier ask them over a local socket to sign a
//! handshake. The holders sign only the message of a TLS 1.3 CertificateVerify of the right side (RFC 8446,
//! section 4.4.3), so the handle has no other use.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use parking_lot::Mutex;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use usher_daemon::packet::PacketSocket;
use usher_daemon::packet_async::{AsyncPacketSocket, PacketListener};
use usher_proto::handshake::{HandshakeSide, check_handshake_message};
use usher_proto::host_key::HostPublicKey;

use crate::start::{HOST_KEY, StartError, private_key};

/// Longest message a handshake signs: 64 spaces, the context string, a zero, a SHA-384 hash.
const MAX_MESSAGE: usize = 160;
/// Length of an Ed25519 signature.
const SIGNATURE: usize = 64;
/// The time that a handshake waits for its signature.
const PATIENCE: Duration = Duration::from_secs(2);

/// The private key.
pub struct HostKey(Ed25519KeyPair);

impl HostKey {
    /// Reads an unencrypted Ed25519 key in OpenSSH's format.
    ///
    /// # Errors
    /// The fault of the file, and how to make a correct one.
    pub fn load(path: &Path) -> Result<Self, StartError> {
        let problem = |reason: &dyn Display| StartError::key(path, HOST_KEY, reason);
        let key = private_key(path, HOST_KEY)?;
        let pair = key
            .key_data()
            .ed25519()
            .ok_or_else(|| problem(&format!("a {} key, or an encrypted one", key.algorithm())))?;
        let pair =
            Ed25519KeyPair::from_seed_and_public_key(pair.private.as_ref(), pair.public.as_ref())
                .map_err(|error| problem(&error))?;
        Ok(Self(pair))
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> HostPublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        HostPublicKey::from_bytes(bytes)
    }

    /// Serves the handle on `listener`, only to the process of user `permitted`.
    pub async fn serve(
        self: Arc<Self>,
        listener: OwnedFd,
        permitted: u32,
        side: HandshakeSide,
    ) -> io::Result<()> {
        let listener = PacketListener::new(listener)?;
        loop {
            let connection = listener
                .accept_of(permitted, "user of the host key")
                .await?;
            let key = Arc::clone(&self);
            tokio::spawn(async move {
                if let Err(error) = key.answer(&connection, side).await {
                    tracing::warn!(%error, "cannot answer a process that uses the host key");
                }
            });
        }
    }

    async fn answer(&self, connection: &AsyncPacketSocket, side: HandshakeSide) -> io::Result<()> {
        loop {
            let packet = connection.receive(MAX_MESSAGE).await?;
            if packet.bytes.is_empty() {
                return Ok(());
            }
            if let Err(error) = check_handshake_message(side, &packet.bytes) {
                tracing::warn!(%error, "refused to sign what is no TLS handshake");
                return Ok(());
            }
            connection.send(self.0.sign(&packet.bytes).as_ref()).await?;
        }
    }
}

/// The handle: signs by asking the process that holds the key.
#[derive(Debug, Clone)]
pub struct HostKeyHandle {
    path: &'static str,
    connection: Arc<Mutex<Option<PacketSocket>>>,
}

impl HostKeyHandle {
    /// A handle that asks the key's holder at `path`. It connects at first use, and again after the holder
    /// has restarted.
    #[must_use]
    pub fn new(path: &'static str) -> Self {
        Self {
            path,
            connection: Arc::default(),
        }
    }

    fn ask_signature(&self, message: &[u8]) -> io::Result<Vec<u8>> {
        let mut connection = self.connection.lock();
        if let Some(present) = connection.as_ref()
            && let Ok(signature) = ask(present, message)
        {
            return Ok(signature);
        }
        *connection = None;
        let fresh = PacketSocket::connect(Path::new(self.path))?;
        rustix::net::sockopt::set_socket_timeout(
            &fresh,
            rustix::net::sockopt::Timeout::Recv,
            Some(PATIENCE),
        )?;
        let signature = ask(&fresh, message)?;
        *connection = Some(fresh);
        Ok(signature)
    }
}

fn ask(connection: &PacketSocket, message: &[u8]) -> io::Result<Vec<u8>> {
    connection.send(message, &[])?;
    let answer = connection.receive(SIGNATURE)?;
    if answer.bytes.len() != SIGNATURE {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer.bytes)
}

impl SigningKey for HostKeyHandle {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signs = offered.contains(&SignatureScheme::ED25519);
        signs.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for HostKeyHandle {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.ask_signature(message).map_err(|error| {
            tracing::error!(path = self.path, %error, "cannot sign a TLS handshake");
            Error::General("the holder of the host key did not sign".into())
        })
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}
