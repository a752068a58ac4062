//! The courier: the client side's only process that touches the network. It carries frames
//! between the signer, whose requests it trusts, and the verifiers of other hosts. It holds no key
//! and understands only the length of what it carries.
//!
//! Room: TCP connections to other hosts' verifiers, the signer's sockets. No file, no key.

mod channel;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use usher_base::HostName;
use usher_daemon::events;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_daemon::watchdog::watchdog;
use usher_local::paths;
use usher_local::roles;
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::relay::{MAX_CHANNELS, MAX_RELAY_PACKET, RelayReply, RelayRequest};

use crate::host_key::HostKeyHandle;
use crate::start::{self, Start, StartError};
use channel::{Channel, Destination, Outgoing, UNACKNOWLEDGED};

/// Limit of frames that wait for one channel. The signer never has more: at most 8,192 requests (1,024 for
/// one user) await an answer of one host, and each may be followed by one closing, whose answer is not
/// awaited. An announcing frame has 81 bytes, so a full queue takes about 2.5 MB. A frame that opens a
/// session may have 8 KiB, but only one is under way for a user and a service.
const QUEUE: usize = 16_384;
/// How long a frame may wait for its channel. Then it is dropped, because its caller will have given up
/// before the announcement is used.
const WAITS: Duration = Duration::from_secs(5);
/// A frame of the signer reaches its host within this time, or never does.
pub const DELIVERY: Duration = Duration::from_secs(WAITS.as_secs() + UNACKNOWLEDGED.as_secs());

/// Runs the courier until the process ends.
pub fn run() -> Result<(), StartError> {
    let start = Start::<roles::Courier>::begin()?;
    let public_key = start::public_host_key()?;
    let control = start.control()?;
    usher_system::privileges::raise_descriptor_limit()?;
    start.give_up_root()?;
    start.confine()?;
    start::runtime()?.block_on(async {
        tokio::spawn(control.serve(Arc::new(start)));
        start::ready("usher-courier");
        tracing::info!(name: events::DAEMON_READY, "courier ready");
        tokio::select! {
            () = carry(public_key) => Ok(()),
            () = watchdog() => Ok(()),
        }
    })
}

/// Connects to the signer, repeatedly, and carries its frames.
async fn carry(public_key: HostPublicKey) {
    let handle = HostKeyHandle::new(paths::SIGNER_HOST_KEY);
    loop {
        match AsyncPacketSocket::connect(Path::new(paths::SIGNER_RELAY)) {
            Ok(signer) => {
                tracing::info!(name: events::DAEMON_CONNECTED, "connected to the signer");
                let courier = Courier {
                    signer: Arc::new(signer),
                    public_key,
                    handle: handle.clone(),
                    channels: HashMap::new(),
                };
                courier.serve().await;
                tracing::warn!(name: events::DAEMON_GONE, "the signer has gone; waiting for it");
            }
            Err(error) => tracing::debug!(%error, "no signer yet"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Courier {
    signer: Arc<AsyncPacketSocket>,
    public_key: HostPublicKey,
    handle: HostKeyHandle,
    channels: HashMap<HostName, OpenChannel>,
}

/// A channel, and the queue of its frames. A channel that is replaced, or whose signer has gone, is dropped:
/// that ends the channel without a report to the signer, and without sending the waiting frames.
struct OpenChannel {
    destination: Destination,
    /// The key that the host has proven to hold, once it has.
    key: Arc<OnceLock<HostPublicKey>>,
    frames: mpsc::Sender<Outgoing>,
    task: AbortHandle,
}

impl OpenChannel {
    /// Whether this channel serves a destination: one with the same addresses, and with the key that the host
    /// has proven. Before the host has proven a key, all keys must be the same.
    fn leads_to(&self, destination: &Destination) -> bool {
        let is_key = match self.key.get() {
            Some(key) => destination.keys.contains(key),
            None => self.destination.keys == destination.keys,
        };
        is_key && self.destination.addresses == destination.addresses
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Courier {
    async fn serve(mut self) {
        loop {
            let request = match self.signer.receive(MAX_RELAY_PACKET).await {
                Ok(packet) if packet.bytes.is_empty() => return,
                Ok(packet) => RelayRequest::decode(&packet.bytes),
                Err(error) => {
                    tracing::warn!(%error, "cannot receive from the signer");
                    return;
                }
            };
            match request {
                Ok(RelayRequest::Forward {
                    channel,
                    server_host_keys,
                    control,
                    frame,
                }) => {
                    let destination = Destination {
                        keys: server_host_keys,
                        addresses: control,
                    };
                    if let Err(reason) = self.forward(&channel, destination, frame) {
                        tracing::warn!(name: events::CHANNEL_LOST, host = %channel, reason, "control channel lost");
                        report_lost(&self.signer, &channel).await;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot understand a request of the signer");
                    return;
                }
            }
        }
    }

    /// Has the host's channel carry a frame. If this fails, the host has no channel, and the reason is
    /// returned.
    fn forward(
        &mut self,
        host: &HostName,
        destination: Destination,
        frame: Vec<u8>,
    ) -> Result<(), &'static str> {
        let usable = self
            .channels
            .get(host)
            .is_some_and(|present| present.leads_to(&destination) && !present.frames.is_closed());
        if !usable {
            self.channels.remove(host);
            // Remove broken channels only at the limit: one may be about to report its end, and removal would
            // abort the report.
            if self.channels.len() >= MAX_CHANNELS {
                self.channels
                    .retain(|_, present| !present.frames.is_closed());
            }
            if self.channels.len() >= MAX_CHANNELS {
                return Err("too many channels are open");
            }
            self.open(host, destination);
        }
        let since = Instant::now();
        let frame = Outgoing { since, frame };
        if let Err(error) = self.channels[host].frames.try_send(frame) {
            // The signer can be told only that a channel is lost, which means that each of its frames may
            // have been sent. So the channel must end.
            self.channels.remove(host);
            return Err(match error {
                TrySendError::Full(_) => "too many frames wait for it",
                TrySendError::Closed(_) => "it has just broken",
            });
        }
        Ok(())
    }

    fn open(&mut self, host: &HostName, destination: Destination) {
        let (sender, frames) = mpsc::channel(QUEUE);
        let key = Arc::default();
        let channel = Channel {
            host: host.clone(),
            destination: destination.clone(),
            key: Arc::clone(&key),
            public_key: self.public_key,
            handle: self.handle.clone(),
            signer: Arc::clone(&self.signer),
        };
        let opened = OpenChannel {
            destination,
            key,
            frames: sender,
            task: tokio::spawn(channel.run(frames)).abort_handle(),
        };
        self.channels.insert(host.clone(), opened);
    }
}

/// Tells the signer that this channel will bring no more answers. Some of its frames may have reached the
/// host.
async fn report_lost(signer: &AsyncPacketSocket, host: &HostName) {
    let reply = RelayReply::ChannelLost {
        channel: host.clone(),
        refusal: Refusal::VerifierUnavailable,
    };
    if let Err(error) = signer.send(&reply.encode()).await {
        tracing::warn!(%error, "cannot tell the signer of a lost channel");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use usher_daemon::packet::PacketSocket;

    use super::*;

    /// A courier, and the signer's side of its connection.
    fn courier() -> (Courier, AsyncPacketSocket) {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let [ours, theirs] = [pair.0, pair.1]
            .map(PacketSocket::from_descriptor)
            .map(|socket| AsyncPacketSocket::from_blocking(socket).unwrap());
        let courier = Courier {
            signer: Arc::new(ours),
            public_key: HostPublicKey::from_bytes([1; _]),
            handle: HostKeyHandle::new("/nonexistent"),
            channels: HashMap::new(),
        };
        (courier, theirs)
    }

    fn host(name: &str) -> HostName {
        name.parse().unwrap()
    }

    fn at(address: SocketAddr) -> Destination {
        Destination {
            keys: vec![HostPublicKey::from_bytes([2; _])],
            addresses: vec![address],
        }
    }

    /// The host whose channel is reported lost next.
    async fn next_lost(signer: &AsyncPacketSocket) -> HostName {
        let packet = signer.receive(MAX_RELAY_PACKET).await.unwrap();
        match RelayReply::decode(&packet.bytes).unwrap() {
            RelayReply::ChannelLost { channel, refusal } => {
                assert!(refusal.is_unanswered(), "{refusal}");
                channel
            }
            other => panic!("{other:?}"),
        }
    }

    // Threat model: A53
    #[tokio::test]
    async fn the_signers_requests_find_room_while_a_channel_opens() {
        // The listener's kernel takes the connection, and no one answers the TLS handshake.
        let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let slow = at(slow.local_addr().unwrap());
        let (mut courier, _signer) = courier();
        // As many requests as the signer has for one host, and a closing for each.
        for _ in 0..2 * 8_192 {
            let forwarded = courier.forward(&host("slow"), slow.clone(), vec![0; 81]);
            assert!(forwarded.is_ok(), "{forwarded:?}");
        }
        assert_eq!(courier.channels.len(), 1);
    }

    // Threat model: A40, A41
    #[tokio::test]
    async fn a_full_queue_ends_the_channel_and_sends_nothing() {
        let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = at(slow.local_addr().unwrap());
        let (mut courier, _signer) = courier();
        let mut forward = || courier.forward(&host("slow"), there.clone(), vec![0; 81]);
        for _ in 0..QUEUE {
            forward().unwrap();
        }
        assert!(forward().is_err());
        assert!(courier.channels.is_empty());
        // The next frame gets a channel of its own.
        courier
            .forward(&host("slow"), there.clone(), vec![0; 81])
            .unwrap();
        let waiting = &courier.channels[&host("slow")].frames;
        assert_eq!(waiting.max_capacity() - waiting.capacity(), 1);
        // The new channel makes the only connection: the former one was aborted before it had connected.
        let (mut only, _) = slow.accept().await.unwrap();
        drop(courier);
        only.read_to_end(&mut Vec::new()).await.unwrap();
        let more = std::future::poll_fn(|context| {
            std::task::Poll::Ready(slow.poll_accept(context).is_ready())
        });
        assert!(!more.await);
    }

    #[tokio::test]
    async fn a_replaced_channel_ends_and_does_not_report_the_next_one_lost() {
        let [former, next] = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        // A bound socket that does not listen refuses connections.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (mut courier, signer) = courier();
        let mut forward = |name, address: SocketAddr| {
            courier
                .forward(&host(name), at(address), vec![0; 81])
                .unwrap();
        };
        forward("moved", former.local_addr().unwrap());
        let (mut replaced, _) = former.accept().await.unwrap();
        forward("moved", next.local_addr().unwrap());
        let (present, _) = next.accept().await.unwrap();
        // The replaced channel has ended: its handshake would make it the newest one for the host.
        replaced.read_to_end(&mut Vec::new()).await.unwrap();
        // A channel that breaks is reported, once.
        drop(present);
        assert_eq!(next_lost(&signer).await, host("moved"));
        forward("closed", closed.local_addr().unwrap());
        assert_eq!(next_lost(&signer).await, host("closed"));
    }

    // Threat model: A174
    #[tokio::test]
    async fn an_open_channel_stays_while_its_key_is_one_of_the_hosts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let [former, next, other] = [2, 3, 4].map(|byte| HostPublicKey::from_bytes([byte; _]));
        let (mut courier, _signer) = courier();
        let mut number = |keys: &[HostPublicKey], proven: Option<HostPublicKey>| {
            let (keys, addresses) = (keys.to_vec(), vec![address]);
            let there = Destination { keys, addresses };
            courier.forward(&host("moved"), there, vec![0; 81]).unwrap();
            let channel = &courier.channels[&host("moved")];
            if let Some(key) = proven {
                channel.key.set(key).unwrap();
            }
            channel.task.id()
        };
        let first = number(&[former], Some(former));
        assert_eq!(number(&[former, next], None), first);
        assert_eq!(number(&[next, former], None), first);
        // The host no longer has the channel's key.
        let second = number(&[next], Some(next));
        assert_ne!(second, first);
        assert_eq!(number(&[next, other], None), second);
        // A channel on which no key is proven yet stays only while the accepted keys are the same.
        let third = number(&[other], None);
        assert_eq!(number(&[other], None), third);
        assert_ne!(number(&[other, former], None), third);
    }

    // Threat model: A40, A41
    #[tokio::test(start_paused = true)]
    async fn a_frame_that_has_waited_too_long_is_not_sent() {
        let (courier, _signer) = courier();
        let channel = Channel {
            host: host("slow"),
            destination: at(([127, 0, 0, 1], 3440).into()),
            key: Arc::default(),
            public_key: courier.public_key,
            handle: courier.handle.clone(),
            signer: Arc::clone(&courier.signer),
        };
        let (sender, mut frames) = mpsc::channel(QUEUE);
        let send = |frame| {
            let since = Instant::now();
            let frame = vec![frame];
            sender.try_send(Outgoing { since, frame }).unwrap();
        };
        send(1);
        tokio::time::advance(WAITS).await;
        send(2);
        tokio::time::advance(Duration::from_millis(1)).await;
        send(3);
        drop(sender);
        let (near, mut far) = tokio::io::duplex(64);
        channel.carry(near, &mut frames).await.unwrap();
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, [2, 3]);
    }
}
