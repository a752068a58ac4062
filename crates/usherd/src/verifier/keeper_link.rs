//! The way to the keeper: fixed-size records out, verdicts back.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use usher_local::packet_async::AsyncPacketSocket;
use usher_local::paths;
use usher_proto::keeper_record::{KEEPER_RECORD_SIZE, KeeperReply, KeeperRequest};
use usher_proto::refusal::Refusal;

use super::Verifier;

/// Records that may wait for the keeper; more are refused with [`Refusal::Overloaded`].
const QUEUE: usize = 4096;

/// Requests that wait for their verdict, and the way to the keeper.
#[derive(Default)]
pub struct KeeperLink {
    next_request: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outgoing: Option<mpsc::Sender<[u8; KEEPER_RECORD_SIZE]>>,
    pending: HashMap<u64, oneshot::Sender<Result<(), Refusal>>>,
}

/// A verdict on its way.
pub struct Pending(oneshot::Receiver<Result<(), Refusal>>);

impl Pending {
    /// Waits for the verdict.
    ///
    /// # Errors
    /// The keeper's refusal, or [`Refusal::KeeperUnavailable`] when it has gone.
    pub async fn verdict(self) -> Result<(), Refusal> {
        self.0.await.unwrap_or(Err(Refusal::KeeperUnavailable))
    }
}

impl KeeperLink {
    /// Sends a record, in the order of the calls.
    ///
    /// # Errors
    /// [`Refusal::KeeperUnavailable`] without a keeper, [`Refusal::Overloaded`] when it does not
    /// keep up.
    pub fn send(&self, record: impl FnOnce(u64) -> KeeperRequest) -> Result<Pending, Refusal> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let outgoing = state.outgoing.as_ref().ok_or(Refusal::KeeperUnavailable)?;
        outgoing
            .try_send(record(request).encode())
            .map_err(|_| Refusal::Overloaded)?;
        state.pending.insert(request, sender);
        Ok(Pending(receiver))
    }

    /// Whether the keeper is there.
    pub fn is_connected(&self) -> bool {
        self.lock().outgoing.is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to the keeper, again and again, and hands on its answers.
pub async fn run(verifier: Arc<Verifier>) {
    loop {
        match AsyncPacketSocket::connect(Path::new(paths::KEEPER_RECORDS)) {
            Ok(connection) => {
                tracing::info!("connected to the keeper");
                let connection = Arc::new(connection);
                let (sender, outgoing) = mpsc::channel(QUEUE);
                verifier.keeper.lock().outgoing = Some(sender);
                let writing = tokio::spawn(write(Arc::clone(&connection), outgoing));
                let error = read(&verifier, &connection).await;
                writing.abort();
                let mut state = verifier.keeper.lock();
                state.outgoing = None;
                // Dropping the senders tells those who wait.
                state.pending.clear();
                drop(state);
                tracing::warn!(?error, "the keeper has gone; waiting for it");
            }
            Err(error) => tracing::debug!(%error, "no keeper yet"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn write(
    connection: Arc<AsyncPacketSocket>,
    mut outgoing: mpsc::Receiver<[u8; KEEPER_RECORD_SIZE]>,
) {
    while let Some(record) = outgoing.recv().await {
        if let Err(error) = connection.send(&record).await {
            tracing::warn!(%error, "sending to the keeper");
            return;
        }
    }
}

async fn read(verifier: &Verifier, connection: &AsyncPacketSocket) -> Option<io::Error> {
    loop {
        let packet = match connection.receive(KEEPER_RECORD_SIZE).await {
            Ok(packet) if packet.bytes.is_empty() => return None,
            Ok(packet) => packet,
            Err(error) => return Some(error),
        };
        match KeeperReply::decode(&packet.bytes) {
            Ok(KeeperReply::Verdict { request, verdict }) => {
                if let Some(waiting) = verifier.keeper.lock().pending.remove(&request) {
                    // A channel that has closed meanwhile needs no verdict.
                    let _ = waiting.send(verdict);
                }
            }
            Ok(KeeperReply::SessionEnded {
                session,
                host,
                reason,
            }) => {
                if let Some(channel) = verifier.channels().get(&host) {
                    channel.session_ended(session, reason);
                }
            }
            Err(error) => return Some(io::Error::other(error)),
        }
    }
}
