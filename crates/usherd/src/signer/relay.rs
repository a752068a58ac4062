//! The connection to the courier: sends requests, and matches each answer to its request.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use usher_base::{ConnectionTuple, HostName};
use usher_daemon::packet_async::PacketListener;
use usher_policy::Host;
use usher_proto::frame::{ClientBody, ClientFrame, ServerFrame};
use usher_proto::refusal::Refusal;
use usher_proto::relay::{MAX_RELAY_PACKET, RelayReply, RelayRequest};
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Notice, SessionRequest, Verdict};

use crate::link::exchange;
use crate::shares::{Share, Shares};

/// Time limit of an answer, and of the server's announcing.
pub const ANSWER: Duration = Duration::from_secs(10);
/// The time that an announced connection may take to begin: as long as the announcement lives on
/// the server.
pub const CONNECT: Duration = Duration::from_secs(10);
/// Limits of requests that wait for an answer: in total; for one host, as many as are free; for one
/// user, a sixteenth of the free ones. Further ones are refused with [`Refusal::Overloaded`]. So a
/// host that does not answer has at most half of the places, and two have two thirds.
const PENDING: usize = 16_384;
const PART_OF_HOST: usize = 1;
const PART_OF_USER: usize = 16;

/// Waiting requests, and the channel to the courier.
pub struct Relay {
    next_request: AtomicU64,
    hosts: Shares<HostName>,
    users: Shares<u32>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outgoing: Option<mpsc::Sender<Vec<u8>>>,
    pending: HashMap<u64, Waiting>,
}

struct Waiting {
    host: HostName,
    verdict: oneshot::Sender<Verdict>,
    _shares: (Share<HostName>, Share<u32>),
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            next_request: AtomicU64::default(),
            hosts: Shares::new(PENDING, PENDING, PART_OF_HOST),
            users: Shares::new(PENDING, PENDING, PART_OF_USER),
            state: Mutex::default(),
        }
    }
}

/// An answer on its way. Dropping it frees its place.
pub struct Pending {
    relay: Arc<Relay>,
    request: u64,
    verdict: oneshot::Receiver<Verdict>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.relay.state.lock().pending.remove(&self.request);
    }
}

impl Pending {
    /// Waits for the verdict, at most for [`ANSWER`].
    ///
    /// # Errors
    /// The server's refusal, or [`Refusal::VerifierUnavailable`] when the channel broke or no
    /// answer came.
    pub async fn verdict(mut self) -> Verdict {
        match timeout(ANSWER, &mut self.verdict).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) | Err(_) => Err(Refusal::VerifierUnavailable),
        }
    }
}

impl Relay {
    /// Sends `host` a request about a session of the user, in the order of the calls.
    ///
    /// # Errors
    /// Like [`Relay::send`].
    pub fn ask(
        self: &Arc<Self>,
        host: &Host,
        uid: u32,
        session: SessionId,
        asked: SessionRequest,
    ) -> Result<Pending, Refusal> {
        self.send(host, uid, ClientBody::Session(session, asked))
    }

    /// Sends a request of the user to `host`, in the order of the calls.
    ///
    /// # Errors
    /// [`Refusal::CourierUnavailable`]; [`Refusal::Overloaded`] when too many requests already wait
    /// for this host, of this user or for the courier.
    pub fn send(
        self: &Arc<Self>,
        host: &Host,
        uid: u32,
        body: ClientBody,
    ) -> Result<Pending, Refusal> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed) + 1;
        let packet = RelayRequest::Forward {
            channel: host.name.clone(),
            server_host_key: host.key,
            control: host
                .addresses
                .iter()
                .map(|ip| (*ip, host.control).into())
                .collect(),
            frame: ClientFrame { request, body }.encode(),
        }
        .encode();
        let (verdict, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let outgoing = state.outgoing.clone().ok_or(Refusal::CourierUnavailable)?;
        let full = Refusal::Overloaded;
        let shares = (
            self.hosts.take(host.name.clone()).ok_or(full)?,
            self.users.take(uid).ok_or(full)?,
        );
        outgoing.try_send(packet).map_err(|_| full)?;
        let waiting = Waiting {
            host: host.name.clone(),
            verdict,
            _shares: shares,
        };
        state.pending.insert(request, waiting);
        drop(state);
        Ok(Pending {
            relay: Arc::clone(self),
            request,
            verdict: receiver,
        })
    }

    /// Has the server withdraw an announcement that its host made in this session. Once it has
    /// answered, no earlier announcement stands.
    ///
    /// # Errors
    /// When it has not answered.
    pub async fn withdraw(
        self: &Arc<Self>,
        host: &Host,
        uid: u32,
        session: SessionId,
        connection: ConnectionTuple,
    ) -> Result<(), Refusal> {
        let asked = SessionRequest::Withdraw(connection);
        self.ask(host, uid, session, asked)?.verdict().await?;
        Ok(())
    }

    /// Whether the courier is connected.
    pub fn is_connected(&self) -> bool {
        self.state.lock().outgoing.is_some()
    }

    /// Handles a packet of the courier.
    fn hear(&self, packet: &[u8], heard: &impl Fn(&HostName, Notice)) -> io::Result<()> {
        match RelayReply::decode(packet).map_err(io::Error::other)? {
            RelayReply::Frame { channel, frame } => match ServerFrame::decode(&frame) {
                Ok(ServerFrame::Answer { request, verdict }) => self.answered(request, verdict),
                Ok(ServerFrame::Notice(notice)) => heard(&channel, notice),
                Ok(ServerFrame::Pong { .. }) => {}
                Err(error) => tracing::warn!(host = %channel, %error, "a host sent no valid frame"),
            },
            RelayReply::ChannelLost { channel, refusal } => self.lost(Some(&channel), refusal),
        }
        Ok(())
    }

    fn answered(&self, request: u64, verdict: Verdict) {
        if let Some(waiting) = self.state.lock().pending.remove(&request) {
            // The waiting task may have given up.
            let _ = waiting.verdict.send(verdict);
        }
    }

    fn lost(&self, host: Option<&HostName>, refusal: Refusal) {
        let mut state = self.state.lock();
        let is_lost =
            |_: &u64, waiting: &mut Waiting| host.is_none_or(|host| *host == waiting.host);
        for (_, waiting) in state.pending.extract_if(is_lost) {
            let _ = waiting.verdict.send(Err(refusal));
        }
    }
}

/// Accepts the courier's connections, one at a time; a new one replaces one that hangs. Hosts'
/// notices go to `heard`.
///
/// # Errors
/// Returns only when the listener fails.
pub async fn serve(
    relay: Arc<Relay>,
    listener: OwnedFd,
    courier: u32,
    heard: impl Fn(&HostName, Notice) + Send + Sync + 'static,
) -> io::Result<()> {
    let heard = Arc::new(heard);
    let listener = PacketListener::new(listener)?;
    let mut present: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let connection = listener.accept_of(courier, "courier").await?;
        if let Some(task) = present.take() {
            task.abort();
        }
        relay.lost(None, Refusal::VerifierUnavailable);
        let (sender, outgoing) = mpsc::channel(1024);
        relay.state.lock().outgoing = Some(sender);
        tracing::info!("courier connected");
        let (relay, heard) = (Arc::clone(&relay), Arc::clone(&heard));
        present = Some(tokio::spawn(async move {
            let read = |packet: &[u8]| relay.hear(packet, &*heard);
            let end = exchange(&connection, outgoing, MAX_RELAY_PACKET, read).await;
            relay.state.lock().outgoing = None;
            relay.lost(None, Refusal::CourierUnavailable);
            tracing::warn!(reason = end, "courier gone");
        }));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use usher_proto::host_key::HostPublicKey;

    use super::*;

    fn host(name: &str) -> Host {
        Host {
            name: name.parse().unwrap(),
            addresses: vec![[10, 77, 0, 2].into()],
            key: HostPublicKey::from_bytes([1; _]),
            ike_key: None,
            control: 3440,
            loopback: Vec::new(),
        }
    }

    /// Connects a courier that accepts everything, and returns the packets it gets.
    pub fn connect(relay: &Relay) -> mpsc::Receiver<Vec<u8>> {
        let (sender, courier) = mpsc::channel(2 * PENDING);
        relay.state.lock().outgoing = Some(sender);
        courier
    }

    /// Answers a request.
    pub fn answer(relay: &Relay, request: u64, verdict: Verdict) {
        relay.answered(request, verdict);
    }

    fn relay() -> (Arc<Relay>, mpsc::Receiver<Vec<u8>>) {
        let relay = Arc::<Relay>::default();
        let courier = connect(&relay);
        (relay, courier)
    }

    /// All requests of these users to the host that are accepted.
    fn fill(relay: &Arc<Relay>, host: &Host, users: std::ops::Range<u32>) -> Vec<Pending> {
        let mut waiting = Vec::new();
        loop {
            let sent = users
                .clone()
                .map(|uid| relay.send(host, uid, ClientBody::Ping));
            let (taken, refused): (Vec<_>, Vec<_>) = sent.partition(Result::is_ok);
            for refusal in refused {
                assert_eq!(refusal.err(), Some(Refusal::Overloaded));
            }
            if taken.is_empty() {
                return waiting;
            }
            waiting.extend(taken.into_iter().flatten());
        }
    }

    #[test]
    fn a_host_that_does_not_answer_leaves_room_for_the_others() {
        let (relay, mut courier) = relay();
        let silent = ["one", "two", "three"].map(|name| fill(&relay, &host(name), 1..100));
        assert_eq!(silent[0].len(), PENDING / 2);
        let other = fill(&relay, &host("other"), 100..200);
        assert!(other.len() >= PENDING / 16, "{}", other.len());
        // A refused request was not sent.
        let mut sent = 0;
        while courier.try_recv().is_ok() {
            sent += 1;
        }
        let waiting = silent.iter().chain([&other]).map(Vec::len).sum::<usize>();
        assert_eq!(sent, waiting);
    }

    #[test]
    fn a_user_leaves_room_for_the_others_and_has_the_places_back_in_the_end() {
        let (relay, _courier) = relay();
        let here = host("here");
        let alices = fill(&relay, &here, 1..2);
        assert!(alices.len() <= PENDING / 16, "{}", alices.len());
        let bobs = fill(&relay, &here, 2..3);
        assert!(bobs.len() >= alices.len() / 2, "{}", bobs.len());
        let before = alices.len();
        drop(alices);
        drop(bobs);
        assert_eq!(fill(&relay, &here, 1..2).len(), before);
        assert!(relay.state.lock().pending.is_empty());
    }

    #[tokio::test]
    async fn an_answer_and_a_lost_channel_end_what_waits_and_give_its_place_back() {
        let (relay, _courier) = relay();
        let (one, other) = (host("one"), host("other"));
        let lost = relay.send(&one, 1, ClientBody::Ping).unwrap();
        let answered = relay.send(&other, 1, ClientBody::Ping).unwrap();
        relay.lost(Some(&one.name), Refusal::VerifierUnavailable);
        relay.answered(answered.request, Ok(None));
        assert_eq!(lost.verdict().await, Err(Refusal::VerifierUnavailable));
        assert_eq!(answered.verdict().await, Ok(None));
        assert_eq!(fill(&relay, &one, 1..100).len(), PENDING / 2);
    }

    #[test]
    fn what_the_courier_does_not_take_is_refused_and_does_not_wait() {
        let (relay, _courier) = relay();
        let (sender, _full) = mpsc::channel(1);
        relay.state.lock().outgoing = Some(sender);
        let here = host("here");
        let first = relay.send(&here, 1, ClientBody::Ping);
        assert!(first.is_ok());
        let second = relay.send(&here, 1, ClientBody::Ping);
        assert_eq!(second.err(), Some(Refusal::Overloaded));
        assert_eq!(relay.state.lock().pending.len(), 1);
        relay.state.lock().outgoing = None;
        let third = relay.send(&here, 1, ClientBody::Ping);
        assert_eq!(third.err(), Some(Refusal::CourierUnavailable));
    }
}
