//! One control channel: a TLS 1.3 connection to one host, which carries all users. It is made for the
//! first waiting frame, and kept while the host answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use usher_base::HostName;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_proto::frame::{ClientBody, ClientFrame, FrameBuffer};
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::relay::RelayReply;

use crate::host_key::HostKeyHandle;
use crate::tls;

/// The time that one address may take to connect and shake hands.
const CONNECT: Duration = Duration::from_secs(3);
/// A silent channel is pinged after this time.
const PING: Duration = Duration::from_secs(20);
/// A channel that stays silent for this time after a ping is closed.
const SILENCE: Duration = Duration::from_secs(40);

/// An encoded client frame.
pub type Outgoing = Vec<u8>;

/// The destination of a channel. The key decides; the addresses are only tried in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The only accepted key.
    pub key: HostPublicKey,
    /// Addresses and ports of its verifier.
    pub addresses: Vec<SocketAddr>,
}

/// A channel to one host.
pub struct Channel {
    /// The host's name, for the signer and for messages.
    pub host: HostName,
    /// Its destination.
    pub destination: Destination,
    /// This host's key.
    pub public_key: HostPublicKey,
    /// The signing handle of this host's key.
    pub handle: HostKeyHandle,
    /// The destination of answers.
    pub signer: Arc<AsyncPacketSocket>,
}

impl Channel {
    /// Carries frames until the channel breaks or the courier drops it. When it breaks, this notifies the
    /// signer, whose next frame opens a new channel.
    pub async fn run(self, mut frames: mpsc::Receiver<Outgoing>) {
        let outcome = match self.connect().await {
            Ok(stream) => {
                tracing::info!(host = %self.host, "control channel open");
                self.carry(stream, &mut frames).await
            }
            Err(error) => Err(error),
        };
        frames.close();
        if let Err(error) = outcome {
            let error = tls::explained(&error);
            tracing::warn!(host = %self.host, %error, "control channel lost");
            super::report_lost(&self.signer, &self.host, Refusal::VerifierUnavailable).await;
        }
    }

    async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let handle = Arc::new(self.handle.clone());
        let config = tls::client_config(&self.public_key, handle, &self.destination.key)
            .map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config));
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address is known");
        for address in &self.destination.addresses {
            let attempt = async {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                connector
                    .connect(ServerName::IpAddress(address.ip().into()), stream)
                    .await
            };
            match timeout(CONNECT, attempt).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
            let error = tls::explained(&last);
            tracing::warn!(host = %self.host, %address, %error, "cannot reach the verifier");
        }
        Err(last)
    }

    async fn carry(
        &self,
        stream: TlsStream<TcpStream>,
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
                    let Some(frame) = frame else { return write.shutdown().await };
                    write.write_all(&frame).await?;
                    // Frames that already wait go out together.
                    while let Ok(frame) = frames.try_recv() {
                        write.write_all(&frame).await?;
                    }
                    write.flush().await?;
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
