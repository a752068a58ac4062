//! TLS 1.3 between hosts with raw public keys (RFC 7250): a host *is* its Ed25519 key, as in
//! OpenSSH's known_hosts; no certificate authority, no names to check, no resumption.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use usher_proto::host_key::HostPublicKey;

/// Application protocol (RFC 7301); its number is the version of the control channel.
pub const ALPN: &[u8] = b"usher/1";

/// Decides whether a client host's key is known. Called inside the handshake, so an unknown host gets
/// no further than its key.
pub trait KnownHosts: Send + Sync + std::fmt::Debug {
    /// Whether the policy has a host with this key.
    fn knows(&self, key: &HostPublicKey) -> bool;
}

/// The settings of the server side.
///
/// # Errors
/// When the cryptographic provider lacks TLS 1.3.
pub fn server_config(
    public_key: &HostPublicKey,
    signing_key: Arc<dyn SigningKey>,
    known_hosts: Arc<dyn KnownHosts>,
) -> Result<ServerConfig, Error> {
    let provider = provider();
    let verifier = ClientKeyVerifier {
        known_hosts,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified(
            public_key,
            signing_key,
        ))));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The settings of the client side for one server, of which it accepts exactly one key.
///
/// # Errors
/// When the cryptographic provider lacks TLS 1.3.
pub fn client_config(
    public_key: &HostPublicKey,
    signing_key: Arc<dyn SigningKey>,
    server: &HostPublicKey,
) -> Result<ClientConfig, Error> {
    let provider = provider();
    let verifier = ServerKeyVerifier {
        server: *server,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified(
            public_key,
            signing_key,
        ))));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// The key of the host at the other end of a finished handshake.
#[must_use]
pub fn peer_key(certificates: Option<&[CertificateDer<'_>]>) -> Option<HostPublicKey> {
    let [key] = certificates? else { return None };
    HostPublicKey::from_spki_der(key.as_ref()).ok()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certified(public_key: &HostPublicKey, signing_key: Arc<dyn SigningKey>) -> Arc<CertifiedKey> {
    let der = CertificateDer::from(public_key.to_spki_der().to_vec());
    Arc::new(CertifiedKey::new(vec![der], signing_key))
}

fn verify(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
}

const REFUSED: Error = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

#[derive(Debug)]
struct ClientKeyVerifier {
    known_hosts: Arc<dyn KnownHosts>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match HostPublicKey::from_spki_der(key.as_ref()) {
            Ok(key) if others.is_empty() && self.known_hosts.knows(&key) => {
                Ok(ClientCertVerified::assertion())
            }
            _ => Err(REFUSED),
        }
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
        verify(message, key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct ServerKeyVerifier {
    server: HostPublicKey,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerKeyVerifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match HostPublicKey::from_spki_der(key.as_ref()) {
            Ok(key) if others.is_empty() && key == self.server => {
                Ok(ServerCertVerified::assertion())
            }
            _ => Err(REFUSED),
        }
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
        verify(message, key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
