//! The connection to the courier: sends requests, and matches each answer to its request.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;
use usher_base::{ConnectionTuple, HostName};
use usher_daemon::events;
use usher_daemon::packet_async::PacketListener;
use usher_daemon::quota::{Quota, Taken};
use usher_policy::{Host, Policy};
use usher_proto::frame::{ClientBody, ClientFrame, ServerFrame};
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::relay::{MAX_CHANNELS, MAX_RELAY_PACKET, RelayReply, RelayRequest};
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Notice, SessionRequest, Verdict};
use usher_proto::token::TokenSlot;

use crate::link::{self, Link};

/// How long an answer may take, and how long the server may take to announce a connection.
pub const ANSWER: Duration = Duration::from_secs(10);
/// The time that an announced connection may take to begin: as long as the announcement lives on
/// the server.
pub const CONNECT: Duration = Duration::from_secs(10);
/// A host that has answered within this time is taken to answer at the same address.
const LATELY: Duration = Duration::from_secs(10);
/// Limits of requests that wait for an answer: in total; for one host, as many as there are free places; for
/// one user, a sixteenth of the free places. Further requests are refused with [`Refusal::Overloaded`]. So a
/// host that does not answer has at most half of the places, and two such hosts have two thirds. The courier
/// has room for the requests of one host (`QUEUE` there).
const PENDING: usize = 16_384;
const PART_OF_HOST: usize = 1;
const PART_OF_USER: usize = 16;

/// The uid for requests that no user has made.
const ROOT: u32 = 0;

/// The requests that wait for answers of hosts, by host.
pub struct Relay {
    link: Link<Option<TokenSlot>, HostName>,
    hosts: Quota<HostName>,
    users: Quota<u32>,
    /// The open channels, at most [`MAX_CHANNELS`].
    open: Mutex<HashMap<HostName, Open>>,
    /// The hosts of the policy in force.
    known: Mutex<BTreeMap<HostName, Host>>,
}

/// An open channel.
struct Open {
    address: IpAddr,
    key: HostPublicKey,
    heard: Instant,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            link: Link::with_limit(Refusal::CourierUnavailable, PENDING),
            hosts: Quota::new(PENDING, PENDING).in_parts(PART_OF_HOST),
            users: Quota::new(PENDING, PENDING).in_parts(PART_OF_USER),
            open: Mutex::default(),
            known: Mutex::default(),
        }
    }
}

/// A request whose answer is on its way. Dropping this value frees the request's place.
pub struct PendingAnswer {
    verdict: link::Pending<Option<TokenSlot>>,
    _taken: (Taken<HostName>, Taken<u32>),
}

impl PendingAnswer {
    /// Waits for the verdict, at most for [`ANSWER`].
    ///
    /// # Errors
    /// The server's refusal, [`Refusal::CourierUnavailable`] when the courier went, or
    /// [`Refusal::VerifierUnavailable`] when the channel broke or no answer came.
    pub async fn verdict(self) -> Verdict {
        let verdict = timeout(ANSWER, self.verdict.verdict()).await;
        verdict.unwrap_or(Err(Refusal::VerifierUnavailable))
    }
}

impl Relay {
    /// Sends requests from now on by the keys and addresses that this policy has for their hosts. A caller's
    /// knowledge of a host may be older, and name a key that the host has replaced.
    pub fn know(&self, policy: &Policy) {
        self.known.lock().clone_from(&policy.hosts);
        let mut former = Vec::new();
        self.open.lock().retain(|name, open| {
            let host = policy.hosts.get(name);
            let is_key = host.is_some_and(|host| host.keys.contains(&open.key));
            former.extend(host.filter(|_| !is_key));
            is_key
        });
        // For this request the courier opens a channel by a present key, and ends the one by the former key.
        for host in former {
            if let Err(refusal) = self.send(host, ROOT, ClientBody::Ping) {
                tracing::warn!(host = %host.name, %refusal, "cannot replace a channel whose key the policy \
                    no longer has; the next request does");
            }
        }
    }

    /// Calls `look` with the host as the policy in force has it, or as the caller knows it if the policy does
    /// not have it.
    fn present<T>(&self, host: &Host, look: impl FnOnce(&Host) -> T) -> T {
        look(self.known.lock().get(&host.name).unwrap_or(host))
    }

    /// The key by which the host authenticates itself: its only key or, while the host replaces its key, the
    /// key of its channel.
    ///
    /// # Errors
    /// As [`Self::reach`].
    pub async fn key(&self, host: &Host, uid: u32) -> Result<HostPublicKey, Refusal> {
        let of_channel = || self.open.lock().get(&host.name).map(|open| open.key);
        // The only key, or the key of the channel. The error is the first key.
        let settled = || {
            self.present(host, |host| match (&host.keys[..], of_channel()) {
                ([key], _) => Ok(*key),
                (_, Some(key)) if host.keys.contains(&key) => Ok(key),
                _ => Err(host.keys[0]),
            })
        };
        match settled() {
            Ok(key) => Ok(key),
            Err(_) => {
                self.reach(host, uid).await?;
                Ok(settled().unwrap_or_else(|first| first))
            }
        }
    }

    /// Sends `host` a request about a session of the user, in the order of the calls.
    pub fn ask(
        &self,
        host: &Host,
        uid: u32,
        session: SessionId,
        asked: SessionRequest,
    ) -> Result<PendingAnswer, Refusal> {
        self.send(host, uid, ClientBody::Session(session, asked))
    }

    /// Sends a request of the user to `host`, in the order of the calls.
    ///
    /// # Errors
    /// [`Refusal::CourierUnavailable`]; [`Refusal::Overloaded`] when too many requests already wait
    /// for this host, of this user or for the courier.
    pub fn send(&self, host: &Host, uid: u32, body: ClientBody) -> Result<PendingAnswer, Refusal> {
        let full = |_| Refusal::Overloaded;
        let taken = (
            self.hosts.take(host.name.clone()).map_err(full)?,
            self.users.take(uid).map_err(full)?,
        );
        let (server_host_keys, control) = self.present(host, |host| {
            let addresses = host.addresses.iter();
            let control = addresses.map(|ip| (*ip, host.control).into());
            (host.keys.clone(), control.collect())
        });
        let packet = |request| {
            let forward = RelayRequest::Forward {
                channel: host.name.clone(),
                server_host_keys,
                control,
                frame: ClientFrame { request, body }.encode(),
            };
            forward.encode()
        };
        Ok(PendingAnswer {
            verdict: self.link.send_about(host.name.clone(), packet)?,
            _taken: taken,
        })
    }

    /// Has the server withdraw an announcement that this host has made in a session. Once the server has
    /// answered, no earlier announcement of the connection stands.
    ///
    /// # Errors
    /// When the request cannot be sent, is refused, or is not answered.
    pub async fn withdraw(
        &self,
        host: &Host,
        uid: u32,
        session: SessionId,
        connection: ConnectionTuple,
    ) -> Result<(), Refusal> {
        let asked = SessionRequest::Withdraw(connection);
        self.ask(host, uid, session, asked)?.verdict().await?;
        Ok(())
    }

    /// The address of the host at which its control channel is open.
    pub fn address(&self, host: &Host) -> Option<IpAddr> {
        let open = self.open.lock();
        let address = open.get(&host.name)?.address;
        host.addresses.contains(&address).then_some(address)
    }

    /// As [`Self::address`], for a host that has answered lately. Any other host is asked first, which opens
    /// a channel.
    ///
    /// # Errors
    /// [`Refusal::VerifierUnavailable`] if the host has not answered for as long as an answer may take: another
    /// request would only wait as long again.
    pub async fn reach(&self, host: &Host, uid: u32) -> Result<Option<IpAddr>, Refusal> {
        let heard = self.open.lock().get(&host.name).map(|open| open.heard);
        if heard.is_none_or(|heard| heard.elapsed() > LATELY) {
            let begun = Instant::now();
            // Ask a second time after a broken channel, but not after silence.
            for _ in 0..2 {
                let Ok(asked) = self.send(host, uid, ClientBody::Ping) else {
                    break;
                };
                match asked.verdict().await {
                    Err(Refusal::VerifierUnavailable) if begun.elapsed() < ANSWER => {}
                    Err(Refusal::VerifierUnavailable) => return Err(Refusal::VerifierUnavailable),
                    _ => break,
                }
            }
        }
        Ok(self.address(host))
    }

    /// Whether the courier is connected.
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Handles a packet of the courier.
    fn hear(&self, packet: &[u8], heard: &impl Fn(&HostName, Notice)) -> io::Result<()> {
        match RelayReply::decode(packet).map_err(io::Error::other)? {
            RelayReply::Frame { channel, frame } => {
                if let Some(open) = self.open.lock().get_mut(&channel) {
                    open.heard = Instant::now();
                }
                match ServerFrame::decode(&frame) {
                    Ok(ServerFrame::Answer { request, verdict }) => {
                        self.link.settle_about(&channel, request, verdict);
                    }
                    Ok(ServerFrame::Notice(notice)) => heard(&channel, notice),
                    Ok(ServerFrame::Pong { request }) => {
                        self.link.settle_about(&channel, request, Ok(None))
                    }
                    Err(error) => tracing::warn!(host = %channel, %error, "cannot understand a \
                        frame of a host"),
                }
            }
            RelayReply::ChannelOpen {
                channel,
                address,
                key,
            } => {
                let known = self.known.lock();
                let host = known.get(&channel);
                if host.is_some_and(|host| !host.keys.contains(&key)) {
                    tracing::warn!(host = %channel, key = %key.fingerprint(),
                        "a channel is open by a key that is none of the host's");
                    return Ok(());
                }
                drop(known);
                let (address, heard) = (address.ip(), Instant::now());
                let mut open = self.open.lock();
                if open.len() < MAX_CHANNELS || open.contains_key(&channel) {
                    let opened = Open {
                        address,
                        key,
                        heard,
                    };
                    open.insert(channel, opened);
                }
            }
            RelayReply::ChannelLost { channel, refusal } => {
                self.open.lock().remove(&channel);
                // Some requests may have reached the host, and one that the courier has not read yet may
                // still do so by the next channel. So none of them may count as refused.
                let unanswered = Some(refusal).filter(|refusal| refusal.is_unanswered());
                let refusal = unanswered.unwrap_or(Refusal::VerifierUnavailable);
                self.link.refuse(&channel, refusal);
            }
        }
        Ok(())
    }
}

/// Accepts the courier's connections, one at a time; a new one replaces the former, which may hang. Hosts'
/// notices go to `heard`.
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
        relay.link.disconnect();
        relay.open.lock().clear();
        tracing::info!(name: events::DAEMON_CONNECTED, "courier connected");
        let (relay, heard) = (Arc::clone(&relay), Arc::clone(&heard));
        present = Some(tokio::spawn(async move {
            let hear = |packet: &[u8]| relay.hear(packet, &*heard);
            let end = relay.link.serve(&connection, MAX_RELAY_PACKET, hear).await;
            tracing::warn!(name: events::DAEMON_GONE, reason = link::how(&end), "the courier has gone");
        }));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::mpsc::Receiver;
    use usher_proto::frame::FRAME_LENGTH_SIZE;

    use super::*;

    fn host(name: &str) -> Host {
        Host {
            name: name.parse().unwrap(),
            addresses: vec![[10, 77, 0, 2].into()],
            keys: vec![HostPublicKey::from_bytes([1; _])],
            ike_keys: Vec::new(),
            is_held: true,
            unlabelled: None,
            control: 3440,
            loopback: Vec::new(),
        }
    }

    /// Connects a courier that accepts everything, and returns the packets it gets.
    pub fn connect(relay: &Relay) -> Receiver<Vec<u8>> {
        link::tests::connect(&relay.link, 2 * PENDING)
    }

    /// Answers a request.
    pub fn answer(relay: &Relay, request: u64, verdict: Verdict) {
        relay.link.settle(request, verdict);
    }

    fn relay() -> (Relay, Receiver<Vec<u8>>) {
        let relay = Relay::default();
        let courier = connect(&relay);
        (relay, courier)
    }

    /// Sends requests of these users to the host until all are refused, and returns the accepted ones.
    fn fill(relay: &Relay, host: &Host, users: std::ops::Range<u32>) -> Vec<PendingAnswer> {
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

    // Threat model: A53
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

    // Threat model: A53
    #[test]
    fn a_users_requests_leave_room_for_others() {
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
    }

    #[tokio::test]
    async fn an_answer_or_a_lost_channel_frees_the_requests_place() {
        let (relay, _courier) = relay();
        let (one, other) = (host("one"), host("other"));
        let lost = relay.send(&one, 1, ClientBody::Ping).unwrap();
        let answered = relay.send(&other, 1, ClientBody::Ping).unwrap();
        relay.link.refuse(&one.name, Refusal::VerifierUnavailable);
        answer(&relay, 2, Ok(None));
        assert_eq!(lost.verdict().await, Err(Refusal::VerifierUnavailable));
        assert_eq!(answered.verdict().await, Ok(None));
        assert_eq!(fill(&relay, &one, 1..100).len(), PENDING / 2);
    }

    // Threat model: A40, A41
    #[tokio::test]
    async fn requests_of_a_lost_channel_count_as_unanswered() {
        let (relay, _courier) = relay();
        let here = host("here");
        for refusal in [Refusal::Overloaded, Refusal::VerifierUnavailable] {
            let asked = relay.send(&here, 1, ClientBody::Ping).unwrap();
            let channel = here.name.clone();
            let lost = RelayReply::ChannelLost { channel, refusal };
            relay.hear(&lost.encode(), &|_, _| {}).unwrap();
            let verdict = asked.verdict().await;
            assert!(verdict.unwrap_err().is_unanswered(), "{verdict:?}");
        }
    }

    // Threat model: A168
    #[test]
    fn only_an_address_of_the_host_is_one_that_answers() {
        let (relay, here) = (Relay::default(), host("here"));
        let hear = |reply: RelayReply| relay.hear(&reply.encode(), &|_, _| {}).unwrap();
        let open = |address: [u8; 4]| {
            let (channel, address) = (here.name.clone(), (address, 3440).into());
            let key = here.keys[0];
            hear(RelayReply::ChannelOpen {
                channel,
                address,
                key,
            });
            relay.address(&here)
        };
        assert_eq!(open([192, 0, 2, 1]), None);
        assert_eq!(open([10, 77, 0, 2]), Some(here.addresses[0]));
        assert_eq!(relay.address(&host("other")), None);
        let (channel, refusal) = (here.name.clone(), Refusal::VerifierUnavailable);
        hear(RelayReply::ChannelLost { channel, refusal });
        assert_eq!(relay.address(&here), None);
    }

    fn policy_of(host: &Host) -> Policy {
        Policy {
            hosts: [(host.name.clone(), host.clone())].into(),
            ..Policy::default()
        }
    }

    // Threat model: A168, A174
    #[tokio::test]
    async fn the_key_of_a_host_is_that_of_its_channel_if_the_policy_has_it() {
        let (relay, mut courier) = relay();
        let [former, next, other] = [1, 2, 3].map(|byte| HostPublicKey::from_bytes([byte; _]));
        let with = |keys: &[HostPublicKey]| {
            let keys = keys.to_vec();
            Host {
                keys,
                ..host("here")
            }
        };
        let long_ago = with(&[former]);
        let open = |key| {
            let (channel, address) = (long_ago.name.clone(), ([10, 77, 0, 2], 3440).into());
            let reply = RelayReply::ChannelOpen {
                channel,
                address,
                key,
            };
            relay.hear(&reply.encode(), &|_, _| {}).unwrap();
        };
        relay.know(&policy_of(&with(&[former, next])));
        open(next);
        assert_eq!(relay.key(&long_ago, 1).await, Ok(next));
        // A key that the courier makes up counts for nothing.
        open(other);
        assert_eq!(relay.key(&long_ago, 1).await, Ok(next));
        // Without a channel the courier is asked for one. If none is open then, the first key counts.
        relay.open.lock().clear();
        let asked = relay.key(&long_ago, 1);
        let answered = async {
            courier.recv().await.unwrap();
            answer(&relay, 1, Ok(None));
        };
        assert_eq!(tokio::join!(asked, answered).0, Ok(former));
        // A caller that has learnt of the host before its key was replaced asks by the present key.
        relay.know(&policy_of(&with(&[next])));
        assert_eq!(relay.key(&long_ago, 1).await, Ok(next));
        let _sent = relay.send(&long_ago, 1, ClientBody::Ping).unwrap();
        let packet = courier.recv().await.unwrap();
        let RelayRequest::Forward {
            server_host_keys, ..
        } = RelayRequest::decode(&packet).unwrap();
        assert_eq!(server_host_keys, [next]);

        // A channel by a removed key is replaced at once, and one by a key that stays is not.
        relay.know(&policy_of(&with(&[next, other])));
        open(other);
        relay.know(&policy_of(&with(&[other])));
        assert!(courier.try_recv().is_err());
        relay.know(&policy_of(&with(&[next])));
        let RelayRequest::Forward {
            server_host_keys, ..
        } = RelayRequest::decode(&courier.recv().await.unwrap()).unwrap();
        assert_eq!(server_host_keys, [next]);
        assert_eq!(relay.address(&long_ago), None);
    }

    // Threat model: A168
    #[test]
    fn channels_that_the_courier_makes_up_are_limited() {
        let relay = Relay::default();
        for number in 0..=MAX_CHANNELS {
            let channel = format!("host-{number}").parse().unwrap();
            let address = ([10, 77, 0, 2], 3440).into();
            let key = HostPublicKey::from_bytes([1; _]);
            let reply = RelayReply::ChannelOpen {
                channel,
                address,
                key,
            };
            relay.hear(&reply.encode(), &|_, _| {}).unwrap();
        }
        assert_eq!(relay.open.lock().len(), MAX_CHANNELS);
    }

    // Threat model: A168
    #[tokio::test]
    async fn a_host_answers_its_own_requests_only() {
        let (relay, _courier) = relay();
        let (here, other) = (host("here"), host("other"));
        let asked = relay.send(&here, 1, ClientBody::Ping).unwrap();
        let hear = |from: &Host| {
            let frame = ServerFrame::Pong { request: 1 }.encode();
            let frame = frame[FRAME_LENGTH_SIZE..].to_vec();
            let channel = from.name.clone();
            let reply = RelayReply::Frame { channel, frame };
            relay.hear(&reply.encode(), &|_, _| {}).unwrap();
        };
        hear(&other);
        relay.link.refuse(&other.name, Refusal::VerifierUnavailable);
        hear(&here);
        assert_eq!(asked.verdict().await, Ok(None));
    }

    #[test]
    fn what_the_courier_does_not_take_is_refused_and_does_not_wait() {
        let (relay, _courier) = relay();
        let _full = link::tests::connect(&relay.link, 1);
        let here = host("here");
        let first = relay.send(&here, 1, ClientBody::Ping);
        assert!(first.is_ok());
        let second = relay.send(&here, 1, ClientBody::Ping);
        assert_eq!(second.err(), Some(Refusal::Overloaded));
        relay.link.disconnect();
        let third = relay.send(&here, 1, ClientBody::Ping);
        assert_eq!(third.err(), Some(Refusal::CourierUnavailable));
    }
}
