//! TLS 1.3 between hosts with raw public keys (RFC 7250): a host *is* its Ed25519 key, as in
//! OpenSSH's known_hosts; no certificate authority, no names to check, no resumption.

use std::io;
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
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    Error, ServerConfig, SignatureScheme,
};
use usher_proto::host_key::HostPublicKey;

/// Application protocol (RFC 7301); its number is the version of the control channel.
pub const ALPN: &[u8] = b"usher/1";

/// Whether a host has a known key. Called inside the handshake, so an unknown host gets no further than
/// its key.
pub type IsKnown = dyn Fn(&HostPublicKey) -> bool + Send + Sync;

/// The settings of the server side.
pub fn server_config(
    public_key: &HostPublicKey,
    signing_key: Arc<dyn SigningKey>,
    is_known: Arc<IsKnown>,
) -> Result<ServerConfig, Error> {
    let provider = provider();
    let verifier = KeyVerifier {
        is_known,
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

/// The settings of the client side for one server, which must have one of these keys.
pub fn client_config(
    public_key: &HostPublicKey,
    signing_key: Arc<dyn SigningKey>,
    server: &[HostPublicKey],
) -> Result<ClientConfig, Error> {
    let (provider, server) = (provider(), server.to_vec());
    let verifier = KeyVerifier {
        is_known: Arc::new(move |key| server.contains(key)),
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

/// Explains a failed handshake to people. Most fail because a policy lacks a key.
#[must_use]
pub fn explained(error: &io::Error) -> String {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            "its key is not the `key` of a `host` block of that host in the policy here".into()
        }
        Some(Error::AlertReceived(AlertDescription::AccessDenied)) => {
            "it refuses this host's key, which is not the `key` of a `host` block of this host in the \
             policy there"
                .into()
        }
        _ => error.to_string(),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certified(public_key: &HostPublicKey, signing_key: Arc<dyn SigningKey>) -> Arc<CertifiedKey> {
    let der = CertificateDer::from(public_key.to_spki_der().to_vec());
    Arc::new(CertifiedKey::new(vec![der], signing_key))
}

/// Accepts known keys of other hosts, in both directions.
struct KeyVerifier {
    is_known: Arc<IsKnown>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl std::fmt::Debug for KeyVerifier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("KeyVerifier")
            .finish_non_exhaustive()
    }
}

impl KeyVerifier {
    fn check(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        match HostPublicKey::from_spki_der(key.as_ref()) {
            Ok(key) if others.is_empty() && (self.is_known)(&key) => Ok(()),
            _ => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

/// The methods that rustls's two traits have in common.
macro_rules! signatures_by_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _key: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("Usher does not use TLS 1.2".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key, others)
            .map(|()| ClientCertVerified::assertion())
    }

    signatures_by_raw_keys!();
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key, others)
            .map(|()| ServerCertVerified::assertion())
    }

    signatures_by_raw_keys!();
}
