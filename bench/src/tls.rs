//! What Usher's first connection is compared with: TLS 1.3 by the library, the provider and the kind
//! of key of Usher's own control channel (Ed25519 raw public keys on both sides, RFC 7250). Each
//! side takes one key of the other, nothing is resumed, and the private keys are in the process.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use usher_proto::HostPublicKey;
use usher_proto::ssh_key::PrivateKey;

/// RFC 8410: what stands before the 32 bytes of an Ed25519 seed in PKCS #8.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A private key, and its public half as TLS sends it.
#[derive(Debug)]
pub struct Identity(Arc<CertifiedKey>);

impl Identity {
    /// Reads an unencrypted Ed25519 key in OpenSSH's format.
    ///
    /// # Errors
    /// When the file cannot be read or is no such key.
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
        let public = HostPublicKey::from_bytes(pair.public.0).to_spki_der();
        Ok(Self(Arc::new(CertifiedKey::new(
            vec![CertificateDer::from(public.to_vec())],
            private,
        ))))
    }
}

/// A server that takes one client's key.
///
/// # Errors
/// When the provider lacks TLS 1.3.
pub fn server_config(own: &Identity, client: HostPublicKey) -> Result<ServerConfig, Error> {
    let peer = Arc::new(Peer::new(client));
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&peer.provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(peer)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
            Arc::clone(&own.0),
        )));
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// A client that takes one server's key.
///
/// # Errors
/// As [`server_config`].
pub fn client_config(own: &Identity, server: HostPublicKey) -> Result<ClientConfig, Error> {
    let peer = Arc::new(Peer::new(server));
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&peer.provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(peer)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            Arc::clone(&own.0),
        )));
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// The one key that the other side may have.
#[derive(Debug)]
struct Peer {
    key: HostPublicKey,
    provider: Arc<CryptoProvider>,
}

const REFUSED: Error = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

impl Peer {
    fn new(key: HostPublicKey) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Self { key, provider }
    }

    fn check(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        match HostPublicKey::from_spki_der(key.as_ref()) {
            Ok(key) if key == self.key => Ok(()),
            _ => Err(REFUSED),
        }
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }
}

impl ServerCertVerifier for Peer {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Peer {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustls::{ClientConnection, ServerConnection};
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

    /// Shakes hands in memory and says whether something got through.
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
        let stranger = HostPublicKey::from_bytes([3; 32]);
        assert_eq!(shake(server, client), Ok(true));
        assert_eq!(shake(stranger, client), Err(REFUSED));
        assert_eq!(shake(server, stranger), Err(REFUSED));
    }
}
