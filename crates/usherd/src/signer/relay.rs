//! The way to the courier: frames out, answers back, each answer to the request it belongs to.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use usher_local::packet_async::{AsyncPacketSocket, PacketListener};
use usher_policy::Host;
use usher_proto::frame::ServerFrame;
use usher_proto::name::HostName;
use usher_proto::refusal::Refusal;
use usher_proto::relay::{MAX_RELAY_PACKET, RelayReply, RelayRequest};
use usher_proto::token::TokenSlot;

use super::Signer;
use super::reauthentication::reauthenticate;

/// Requests that may wait for an answer; more are refused with [`Refusal::Overloaded`].
const PENDING: usize = 16_384;

/// A server's verdict; with a slot when tokens were asked for.
type Verdict = Result<Option<TokenSlot>, Refusal>;

/// Requests that wait for their answer, and the way to the courier.
#[derive(Default)]
pub struct Relay {
    next_request: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outgoing: Option<mpsc::Sender<Vec<u8>>>,
    pending: HashMap<u64, (HostName, oneshot::Sender<Verdict>)>,
}

/// An answer on its way. Who drops it waits no longer, and leaves the place to others.
pub struct Pending {
    relay: Arc<Relay>,
    request: u64,
    verdict: oneshot::Receiver<Verdict>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.relay.lock().pending.remove(&self.request);
    }
}

impl Pending {
    /// Waits for the verdict.
    ///
    /// # Errors
    /// The server's refusal, or [`Refusal::VerifierUnavailable`] when the channel broke.
    pub async fn verdict(mut self) -> Verdict {
        (&mut self.verdict)
            .await
            .unwrap_or(Err(Refusal::VerifierUnavailable))
    }
}

impl Relay {
    /// Sends a frame to `host`, in the order of the calls. `frame` gets the request's number.
    ///
    /// # Errors
    /// [`Refusal::VerifierUnavailable`] without a courier, [`Refusal::Overloaded`] when too much
    /// waits already.
    pub fn send(
        self: &Arc<Self>,
        host: &Host,
        frame: impl FnOnce(u64) -> Vec<u8>,
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
            frame: frame(request),
        }
        .encode();
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if state.pending.len() >= PENDING {
            return Err(Refusal::Overloaded);
        }
        let outgoing = state
            .outgoing
            .as_ref()
            .ok_or(Refusal::VerifierUnavailable)?;
        outgoing.try_send(packet).map_err(|_| Refusal::Overloaded)?;
        state.pending.insert(request, (host.name.clone(), sender));
        drop(state);
        Ok(Pending {
            relay: Arc::clone(self),
            request,
            verdict: receiver,
        })
    }

    /// Whether a courier is there.
    pub fn is_connected(&self) -> bool {
        self.lock().outgoing.is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, request: u64, verdict: Verdict) {
        if let Some((_, waiting)) = self.lock().pending.remove(&request) {
            // A waiter that has given up needs no answer.
            let _ = waiting.send(verdict);
        }
    }

    fn lost(&self, host: Option<&HostName>, refusal: Refusal) {
        let mut state = self.lock();
        let lost: Vec<u64> = state
            .pending
            .iter()
            .filter(|(_, (channel, _))| host.is_none_or(|host| host == channel))
            .map(|(request, _)| *request)
            .collect();
        for request in lost {
            if let Some((_, waiting)) = state.pending.remove(&request) {
                let _ = waiting.send(Err(refusal));
            }
        }
    }
}

/// Takes the courier's connection, one at a time; a new one replaces one that hangs.
///
/// # Errors
/// Returns only when the listener fails.
pub async fn serve(signer: Arc<Signer>, listener: OwnedFd, courier: u32) -> io::Result<()> {
    let listener = PacketListener::new(listener)?;
    let mut present: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let connection = listener.accept_of(courier, "courier").await?;
        if let Some(task) = present.take() {
            task.abort();
        }
        signer.relay.lost(None, Refusal::VerifierUnavailable);
        let (sender, outgoing) = mpsc::channel(1024);
        signer.relay.lock().outgoing = Some(sender);
        tracing::info!("courier connected");
        let signer = Arc::clone(&signer);
        present = Some(tokio::spawn(async move {
            let connection = Arc::new(connection);
            let writing = tokio::spawn(write(Arc::clone(&connection), outgoing));
            let error = read(&signer, &connection).await;
            writing.abort();
            signer.relay.lock().outgoing = None;
            signer.relay.lost(None, Refusal::VerifierUnavailable);
            tracing::warn!(?error, "courier gone");
        }));
    }
}

async fn write(connection: Arc<AsyncPacketSocket>, mut outgoing: mpsc::Receiver<Vec<u8>>) {
    while let Some(packet) = outgoing.recv().await {
        if let Err(error) = connection.send(&packet).await {
            tracing::warn!(%error, "sending to the courier");
            return;
        }
    }
}

/// Reads answers until the courier goes; says what was wrong when something was.
async fn read(signer: &Arc<Signer>, connection: &AsyncPacketSocket) -> Option<io::Error> {
    loop {
        let packet = match connection.receive(MAX_RELAY_PACKET).await {
            Ok(packet) if packet.bytes.is_empty() => return None,
            Ok(packet) => packet,
            Err(error) => return Some(error),
        };
        match RelayReply::decode(&packet.bytes) {
            Ok(RelayReply::Frame { channel, frame }) => match ServerFrame::decode(&frame) {
                Ok(ServerFrame::Reply { request, verdict }) => {
                    signer.relay.answered(request, verdict.map(|()| None));
                }
                Ok(ServerFrame::SessionEnded { session, reason }) => {
                    tracing::info!(host = %channel, %session, %reason, "session ended by the server");
                    signer.sessions.ended(&channel, session);
                    signer.tickets.ended(session);
                }
                Ok(ServerFrame::Slot { request, slot }) => {
                    signer.relay.answered(request, Ok(Some(slot)));
                }
                Ok(ServerFrame::Reauthenticate { session }) => {
                    reauthenticate(signer, &channel, session);
                }
                Ok(ServerFrame::Pong { .. }) => {}
                Err(error) => tracing::warn!(host = %channel, %error, "what a host sent"),
            },
            Ok(RelayReply::ChannelLost { channel, refusal }) => {
                signer.relay.lost(Some(&channel), refusal);
            }
            Err(error) => return Some(io::Error::other(error)),
        }
    }
}
