//! One control channel: a TLS 1.3 connection to one host, which carries all users. It is made for the
//! first waiting frame, and kept while the host answers.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use usher_base::HostName;
use usher_daemon::events;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_proto::frame::{ClientBody, ClientFrame, FrameBuffer};
use usher_proto::host_key::HostPublicKey;
use usher_proto::relay::RelayReply;

use crate::host_key::HostKeyHandle;
use crate::tls;

/// The time that one address may take to connect, and again to shake hands.
const CONNECT: Duration = Duration::from_secs(3);
/// The time after which the next address is tried as well: the "Connection Attempt Delay" of RFC 8305.
const TURN: Duration = Duration::from_millis(250);
/// A channel on which the host's kernel has not acknowledged something for this time has broken: the host has
/// gone, or has moved to another of its addresses.
pub const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
/// A silent channel is pinged after this time.
const PING: Duration = Duration::from_secs(20);
/// A channel that stays silent for this time after a ping is closed.
const SILENCE: Duration = Duration::from_secs(40);

/// An encoded client frame.
pub struct Outgoing {
    /// When the frame came from the signer.
    pub since: Instant,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// The destination of a channel. The keys decide; the addresses are only tried in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The accepted keys: two while the host replaces its key.
    pub keys: Vec<HostPublicKey>,
    /// Addresses and ports of the host's verifier.
    pub addresses: Vec<SocketAddr>,
}

/// A channel to one host.
pub struct Channel {
    /// The host's name, for the signer and for messages.
    pub host: HostName,
    /// Its destination.
    pub destination: Destination,
    /// Set to the key that the host has proven to hold.
    pub key: Arc<OnceLock<HostPublicKey>>,
    /// This host's key.
    pub public_key: HostPublicKey,
    /// The signing handle of this host's key.
    pub handle: HostKeyHandle,
    /// The destination of answers.
    pub signer: Arc<AsyncPacketSocket>,
}

impl Channel {
    /// Carries frames until the channel breaks, then reports that to the signer. The signer's next frame
    /// opens a new channel.
    pub async fn run(self, mut frames: mpsc::Receiver<Outgoing>) {
        let outcome = match self.connect().await {
            Ok((address, key, stream)) => {
                tracing::info!(name: events::CHANNEL_OPEN, host = %self.host, %address, "control channel open");
                let _first = self.key.set(key);
                self.report_open(address, key).await;
                self.carry(stream, &mut frames).await
            }
            Err(error) => Err(error),
        };
        frames.close();
        if let Err(error) = outcome {
            let error = tls::explained(&error);
            tracing::warn!(name: events::CHANNEL_LOST, host = %self.host, %error, "control channel lost");
            super::report_lost(&self.signer, &self.host).await;
        }
    }

    /// Connects to the first address that answers. The next address is tried when the one before has failed
    /// or has been silent for [`TURN`]; slower attempts continue meanwhile. Only one TLS handshake runs at a
    /// time: a verifier keeps a host's newest channel, and forgets what the others have announced.
    async fn connect(&self) -> io::Result<(SocketAddr, HostPublicKey, TlsStream<TcpStream>)> {
        let handle = Arc::new(self.handle.clone());
        let config = tls::client_config(&self.public_key, handle, &self.destination.keys)
            .map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address is known");
        let mut addresses = self.destination.addresses.iter();
        let mut attempts = JoinSet::new();
        loop {
            if let Some(address) = addresses.next() {
                attempts.spawn(reach(*address));
            }
            let ended = tokio::select! {
                ended = attempts.join_next() => ended,
                () = tokio::time::sleep(TURN), if addresses.len() > 0 => continue,
            };
            let (address, reached) = match ended {
                Some(Ok(reached)) => reached,
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Err(last),
            };
            let error = match reached {
                Ok(stream) => match shake_hands(address, stream, &connector).await {
                    Ok((key, stream)) => return Ok((address, key, stream)),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let explained = tls::explained(&error);
            tracing::warn!(host = %self.host, %address, error = %explained, "cannot reach the verifier");
            last = error;
        }
    }

    /// Tells the signer which address answers, and which key the host has proven. If sending fails, the
    /// signer has gone.
    async fn report_open(&self, address: SocketAddr, key: HostPublicKey) {
        let channel = self.host.clone();
        let reply = RelayReply::ChannelOpen {
            channel,
            address,
            key,
        };
        if let Err(error) = self.signer.send(&reply.encode()).await {
            tracing::warn!(%error, "cannot tell the signer of an open channel");
        }
    }

    /// Carries frames and answers over a connection, but no frame that has waited longer than
    /// [`WAITS`](super::WAITS).
    pub(super) async fn carry(
        &self,
        stream: impl AsyncRead + AsyncWrite,
        frames: &mut mpsc::Receiver<Outgoing>,
    ) -> io::Result<()> {
        let (mut read, mut write) = tokio::io::split(stream);
        let mut buffer = FrameBuffer::new();
        let mut chunk = vec![0; 16 * 1024];
        let mut last_heard = Instant::now();
        let (request, body) = (0, ClientBody::Ping);
        let alive = ClientFrame { request, body }.encode();
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        loop {
            tokio::select! {
                frame = frames.recv() => {
                    if frame.is_none() {
                        return write.shutdown().await;
                    }
                    let (mut next, mut late) = (frame, 0);
                    // Frames that already wait go out together.
                    while let Some(Outgoing { since, frame }) = next {
                        if since.elapsed() > super::WAITS {
                            late += 1;
                        } else {
                            write.write_all(&frame).await?;
                        }
                        next = frames.try_recv().ok();
                    }
                    write.flush().await?;
                    if late > 0 {
                        tracing::info!(host = %self.host, late, "frames waited too long and are not sent");
                    }
                }
                length = read.read(&mut chunk) => {
                    let length = length?;
                    if length == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    last_heard = Instant::now();
                    buffer.push(&chunk[..length]);
                    while let Some(payload) = buffer.next().map_err(io::Error::other)? {
                        let reply =
                            RelayReply::Frame { channel: self.host.clone(), frame: payload };
                        self.signer.send(&reply.encode()).await?;
                    }
                }
                _ = ping.tick() => {
                    if last_heard.elapsed() > SILENCE {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    write.write_all(&alive).await?;
                    write.flush().await?;
                }
            }
        }
    }
}

/// Connects to one address.
async fn reach(address: SocketAddr) -> (SocketAddr, io::Result<TcpStream>) {
    let connected = timeout(CONNECT, TcpStream::connect(address)).await;
    (
        address,
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
    )
}

async fn shake_hands(
    address: SocketAddr,
    stream: TcpStream,
    connector: &TlsConnector,
) -> io::Result<(HostPublicKey, TlsStream<TcpStream>)> {
    stream.set_nodelay(true)?;
    let limit = u32::try_from(UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&stream, limit)?;
    let name = ServerName::IpAddress(address.ip().into());
    let shaken = timeout(CONNECT, connector.connect(name, stream)).await;
    let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let key = tls::peer_key(shaken.get_ref().1.peer_certificates());
    let key = key.ok_or_else(|| io::Error::other("it has proven no key"))?;
    Ok((key, shaken))
}
