//! The client side of the control channel.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use usher_base::ConnectionTuple;
use usher_proto::{
    Announcement, Authenticator, ClientBody, ClientFrame, FrameBuffer, Refusal, ServerFrame,
    SessionId, SessionRequest, TokenKey, TokenSlot, Verdict,
};

use super::{Identity, dial};
use crate::host::Host;

/// Application protocol of the control channel.
pub const ALPN: &[u8] = b"usher/1";

/// The client side of a control channel.
#[derive(Debug)]
pub struct Channel {
    stream: StreamOwned<ClientConnection, TcpStream>,
    frames: FrameBuffer,
    next_request: u64,
}

impl Channel {
    /// Shakes hands over `stream`. Only the first answer shows whether the server accepts the key: in
    /// TLS 1.3 the client finishes before the server has checked it.
    ///
    /// # Errors
    /// When the server ends the handshake.
    pub fn open(stream: TcpStream, identity: &Identity, protocol: &[u8]) -> io::Result<Self> {
        let certified = identity.certified().map_err(io::Error::other)?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(
            certified,
        ))));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        let server = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let connection =
            ClientConnection::new(Arc::new(config), server).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self {
            stream,
            frames: FrameBuffer::new(),
            next_request: 1,
        })
    }

    /// Connects to the control port of `server` and makes a channel as `identity`, which has answered
    /// a ping.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub fn connect(from: &Host, server: &Host, identity: &Identity) -> io::Result<Self> {
        let stream = dial(from, (server.ipv4(), 3440).into())?;
        let mut channel = Self::open(stream, identity, ALPN)?;
        channel.ping()?;
        Ok(channel)
    }

    /// Sends any bytes.
    ///
    /// # Errors
    /// When the channel has closed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The next frame; none if the server has closed the channel.
    ///
    /// # Errors
    /// When nothing comes, or something other than a frame.
    pub fn receive(&mut self) -> io::Result<Option<ServerFrame>> {
        loop {
            if let Some(payload) = self.frames.next().map_err(io::Error::other)? {
                return ServerFrame::decode(&payload)
                    .map(Some)
                    .map_err(io::Error::other);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(length) => self.frames.push(&bytes[..length]),
                // Closed without a close_notify, or with a RST because of unread bytes.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks the server for an answer.
    ///
    /// # Errors
    /// When it does not.
    pub fn ping(&mut self) -> io::Result<()> {
        let request = self.request();
        let body = ClientBody::Ping;
        self.send(&ClientFrame { request, body }.encode())?;
        loop {
            match self.receive()? {
                Some(ServerFrame::Pong { request: answered }) if answered == request => {
                    return Ok(());
                }
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// Sends a request, and returns the verdict.
    ///
    /// # Errors
    /// When the channel closes before.
    pub fn ask(&mut self, body: ClientBody) -> io::Result<Result<(), Refusal>> {
        Ok(self.verdict(body)?.map(drop))
    }

    /// Sends a request about a session, and returns the verdict.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn ask_about(
        &mut self,
        session: SessionId,
        asked: SessionRequest,
    ) -> io::Result<Result<(), Refusal>> {
        self.ask(ClientBody::Session(session, asked))
    }

    /// Requests tokens.
    ///
    /// # Errors
    /// As [`Channel::ask`], and when the verdict is no slot.
    pub fn tokens(
        &mut self,
        session: SessionId,
        key: TokenKey,
    ) -> io::Result<Result<TokenSlot, Refusal>> {
        let asked = SessionRequest::Tokens(key);
        let verdict = self.verdict(ClientBody::Session(session, asked))?;
        let slot = verdict.map(|slot| slot.ok_or_else(|| io::Error::other("granted no slot")));
        match slot {
            Ok(slot) => slot.map(Ok),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    fn verdict(&mut self, body: ClientBody) -> io::Result<Verdict> {
        let request = self.request();
        self.send(&ClientFrame { request, body }.encode())?;
        loop {
            match self.receive()? {
                Some(ServerFrame::Answer {
                    request: answered,
                    verdict,
                }) if answered == request => return Ok(verdict),
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// Opens a session.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn open_session(
        &mut self,
        authenticator: &Authenticator,
        first: Announcement,
    ) -> io::Result<Result<(), Refusal>> {
        self.ask(ClientBody::Open {
            authenticator: authenticator.clone(),
            first: Some(first),
        })
    }

    /// Announces a connection.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn announce(
        &mut self,
        session: SessionId,
        announcement: Announcement,
    ) -> io::Result<Result<(), Refusal>> {
        self.ask_about(session, SessionRequest::Announce(announcement))
    }

    /// Withdraws an announcement.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn withdraw(
        &mut self,
        session: SessionId,
        connection: ConnectionTuple,
    ) -> io::Result<Result<(), Refusal>> {
        self.ask_about(session, SessionRequest::Withdraw(connection))
    }

    /// Ends a session.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn close(&mut self, session: SessionId) -> io::Result<Result<(), Refusal>> {
        self.ask_about(session, SessionRequest::Close)
    }

    fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }
}

/// Trusts any server, because the tests are about the server.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
