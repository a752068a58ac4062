//! A client host that does what an honest one never would: it speaks the control channel's TLS
//! with a key of the test's choice and sends bytes of the test's choice, from inside a host's
//! network. Everything it sends can also be right, so that each refusal has its permitted twin
//! with the same client.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use usher_proto::ssh_key::private::Ed25519Keypair;
use usher_proto::ssh_key::{HashAlg, PrivateKey};
use usher_proto::{
    Announcement, Authenticator, Chain, ClientFrame, ConnectionTuple, FrameBuffer, HostPublicKey,
    NAMESPACE, Refusal, ServerFrame, SessionId, Statement, TokenKey, TokenSlot, session_id,
};

use crate::error::{Attempt, LabError};
use crate::host::Host;
use crate::waiting::PATIENCE;

/// Application protocol of the control channel.
pub const ALPN: &[u8] = b"usher/1";
/// RFC 8410: what stands before the 32 bytes of an Ed25519 seed in PKCS #8.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A host key in the hands of the test.
#[derive(Debug, Clone)]
pub struct Identity(Ed25519Keypair);

impl Identity {
    /// The key of a host on which `usher init` has run.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(host: &Host) -> Result<Self, LabError> {
        let key = private_key(host, "/etc/usher/host_key")?;
        let pair = key.key_data().ed25519().cloned();
        pair.map(Self)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .attempt(|| "a host key that is not Ed25519".into())
    }

    /// A key nobody has seen.
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
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8));
        let key = rustls::crypto::aws_lc_rs::sign::any_eddsa_type(match &key {
            PrivateKeyDer::Pkcs8(key) => key,
            _ => return Err(rustls::Error::General("not PKCS #8".into())),
        })?;
        let der = CertificateDer::from(self.public().to_spki_der().to_vec());
        Ok(CertifiedKey::new(vec![der], key))
    }
}

/// A user's key that no host has seen.
#[must_use]
pub fn fresh_user_key() -> PrivateKey {
    let pair = Ed25519Keypair::from_seed(&random());
    PrivateKey::from(pair)
}

/// Reads a private key as root.
///
/// # Errors
/// When it is missing or no private key.
pub fn private_key(host: &Host, path: &str) -> Result<PrivateKey, LabError> {
    PrivateKey::from_openssh(host.read(path)?)
        .map_err(io::Error::other)
        .attempt(|| format!("host {}: {path}", host.name()))
}

/// Fresh bytes of the system's.
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

/// Does something on a thread that is in the host's network, where sockets it makes stay.
///
/// # Errors
/// What `act` says; when the network cannot be entered.
pub fn in_network<T: Send>(
    host: &Host,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let network = File::open(format!("/proc/{}/ns/net", host.anchor()))?;
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            act()
        });
        acting
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the acting thread panicked")))
    })
}

/// Connects from a host, from any address and port of it.
///
/// # Errors
/// As connect(2): `ConnectionRefused` for a RST.
pub fn dial(from: &Host, server: SocketAddr) -> io::Result<TcpStream> {
    in_network(from, || {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    })
}

/// A TCP socket that has its address and port and is not connected yet.
#[derive(Debug)]
pub struct Port {
    socket: OwnedFd,
    /// Its address and port.
    pub address: SocketAddr,
}

impl Port {
    /// A port of the kernel's choice at an address of the host.
    ///
    /// # Errors
    /// As socket(2) and bind(2).
    pub fn any(host: &Host, address: impl Into<IpAddr>) -> io::Result<Self> {
        Self::at(host, SocketAddr::new(address.into(), 0))
    }

    /// This port.
    ///
    /// # Errors
    /// As socket(2) and bind(2): `AddrInUse` while somebody has it.
    pub fn at(host: &Host, address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        in_network(host, || {
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            // Also bounds connect(2), see socket(7).
            set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            rustix::net::bind(&socket, &address)?;
            let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            Ok(Self { socket, address })
        })
    }

    /// Connects from it.
    ///
    /// # Errors
    /// As connect(2): `ConnectionRefused` for a RST.
    pub fn connect(self, server: SocketAddr) -> io::Result<TcpStream> {
        rustix::net::connect(&self.socket, &server)?;
        Ok(self.socket.into())
    }
}

/// A line, as a server greets.
///
/// # Errors
/// When the peer sends none.
pub fn read_line(stream: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// The client end of a control channel.
#[derive(Debug)]
pub struct Channel {
    stream: StreamOwned<ClientConnection, TcpStream>,
    frames: FrameBuffer,
    next_request: u64,
}

impl Channel {
    /// Shakes hands over `stream`. Whether the server accepts the key shows only at the first
    /// answer: in TLS 1.3 the client is done before the server has looked.
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

    /// Connects to the control port of `server` and makes a channel as `identity`; it has answered
    /// a ping.
    ///
    /// # Errors
    /// When the server does not take it.
    pub fn connect(from: &Host, server: &Host, identity: &Identity) -> io::Result<Self> {
        let stream = dial(from, (server.ipv4(), 3440).into())?;
        let mut channel = Self::open(stream, identity, ALPN)?;
        channel.ping()?;
        Ok(channel)
    }

    /// Sends bytes, whatever they are.
    ///
    /// # Errors
    /// When the channel has closed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The next frame; nothing when the server has closed the channel.
    ///
    /// # Errors
    /// When nothing comes, or what is no frame.
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
                // Closed without a close_notify, or with a RST as unread bytes were there.
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

    /// Whether the server answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn ping(&mut self) -> io::Result<()> {
        let request = self.request();
        self.send(&ClientFrame::Ping { request }.encode())?;
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

    /// Asks, and gives the verdict.
    ///
    /// # Errors
    /// When the channel closes before, or the answer is another.
    pub fn ask(
        &mut self,
        frame: impl FnOnce(u64) -> ClientFrame,
    ) -> io::Result<Result<(), Refusal>> {
        match self.answer(frame)? {
            ServerFrame::Reply { verdict, .. } => Ok(verdict),
            other => Err(io::Error::other(format!("{other:?} is no verdict"))),
        }
    }

    /// Asks for tokens.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn tokens(
        &mut self,
        session: SessionId,
        key: TokenKey,
    ) -> io::Result<Result<TokenSlot, Refusal>> {
        let answer = self.answer(|request| ClientFrame::Tokens {
            request,
            session,
            key,
        })?;
        match answer {
            ServerFrame::Slot { slot, .. } => Ok(Ok(slot)),
            ServerFrame::Reply {
                verdict: Err(refusal),
                ..
            } => Ok(Err(refusal)),
            other => Err(io::Error::other(format!("{other:?} is no slot"))),
        }
    }

    fn answer(&mut self, frame: impl FnOnce(u64) -> ClientFrame) -> io::Result<ServerFrame> {
        let request = self.request();
        self.send(&frame(request).encode())?;
        loop {
            match self.receive()? {
                Some(
                    answer @ (ServerFrame::Reply {
                        request: answered, ..
                    }
                    | ServerFrame::Slot {
                        request: answered, ..
                    }),
                ) if answered == request => return Ok(answer),
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
        self.ask(|request| ClientFrame::Open {
            request,
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
        self.ask(|request| ClientFrame::Announce {
            request,
            session,
            announcement,
        })
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
        self.ask(|request| ClientFrame::Withdraw {
            request,
            session,
            connection,
        })
    }

    /// Ends a session.
    ///
    /// # Errors
    /// As [`Channel::ask`].
    pub fn close(&mut self, session: SessionId) -> io::Result<Result<(), Refusal>> {
        self.ask(|request| ClientFrame::Close { request, session })
    }

    fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }
}

/// The session that is asked for: a statement to bend, and the chain that belongs to it.
#[derive(Debug)]
pub struct Asked {
    /// What the user signs.
    pub statement: Statement,
    /// Gives the elements.
    pub chain: Chain,
}

impl Asked {
    /// A statement with nothing wrong: of `user`, from the host of this key, to a service of
    /// `server` at `port`, for an hour.
    ///
    /// # Errors
    /// When a name is no name, or the server has no key.
    pub fn right(
        user: &str,
        service: &str,
        client: HostPublicKey,
        server: &Host,
        port: u16,
        chain_length: u32,
    ) -> Result<Self, LabError> {
        let name = |error: usher_proto::NameError| LabError::System {
            what: "a name".into(),
            error: io::Error::other(error),
        };
        let chain = Chain::generate(chain_length, random(), random());
        let now = now();
        let statement = Statement {
            user: user.parse().map_err(name)?,
            service: service.parse().map_err(name)?,
            client_host_key: client,
            server_host_key: Identity::of(server)?.public(),
            server: (server.ipv4(), port).into(),
            issued: now,
            expires: now + 3600,
            nonce: random(),
            chain_anchor: chain.anchor(),
            token_anchor: [0; 11],
            chain_length: chain.length(),
            chain_salt: chain.salt(),
        };
        Ok(Self { statement, chain })
    }

    /// Signs it.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn sign(&self, key: &PrivateKey) -> Result<Authenticator, LabError> {
        sign_bytes(self.statement.encode(), key, NAMESPACE)
    }
}

/// Signs bytes that need not be a statement, in a namespace that need not be Usher's.
///
/// # Errors
/// When the key cannot sign.
pub fn sign_bytes(
    statement: Vec<u8>,
    key: &PrivateKey,
    namespace: &str,
) -> Result<Authenticator, LabError> {
    use ssh_encoding::Encode;
    let sign = || -> Result<Vec<u8>, usher_proto::ssh_key::Error> {
        let mut blob = Vec::new();
        key.sign(namespace, HashAlg::Sha512, &statement)?
            .encode(&mut blob)?;
        Ok(blob)
    };
    let signature = sign()
        .map_err(io::Error::other)
        .attempt(|| "cannot sign".into())?;
    Ok(Authenticator {
        statement,
        signature,
    })
}

/// The id of the session an authenticator opens.
#[must_use]
pub fn id_of(authenticator: &Authenticator) -> SessionId {
    session_id(&authenticator.statement)
}

/// Believes any server: it is the server that is tested.
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
