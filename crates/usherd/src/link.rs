//! A daemon's connection to another one: numbered requests go out, verdicts come back, and a lost
//! connection is made again.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_proto::refusal::Refusal;

/// Requests that may wait for the other side; more are refused with [`Refusal::Overloaded`].
const QUEUE: usize = 4096;

/// How a connection to another daemon ended, for the log.
pub fn how(ended: Option<&io::Error>) -> String {
    ended.map_or_else(
        || "it closed the connection".to_owned(),
        ToString::to_string,
    )
}

/// The grant, or the refusal.
pub type Verdict<T> = Result<T, Refusal>;

/// The requests that wait for their verdict.
pub struct Link<T> {
    /// The refusal of a request while the other side is away.
    absent: Refusal,
    next_request: AtomicU64,
    state: Mutex<State<T>>,
}

struct State<T> {
    outgoing: Option<mpsc::Sender<Vec<u8>>>,
    pending: HashMap<u64, oneshot::Sender<Verdict<T>>>,
}

/// A verdict on its way.
pub struct Pending<T> {
    verdict: oneshot::Receiver<Verdict<T>>,
    absent: Refusal,
}

impl<T> Pending<T> {
    /// Waits for the verdict.
    ///
    /// # Errors
    /// The other side's refusal, or the link's own if the other side has gone.
    pub async fn verdict(self) -> Verdict<T> {
        self.verdict.await.unwrap_or(Err(self.absent))
    }
}

impl<T> Link<T> {
    /// A link that is not connected yet.
    pub fn new(absent: Refusal) -> Self {
        Self {
            absent,
            next_request: AtomicU64::new(0),
            state: Mutex::new(State {
                outgoing: None,
                pending: HashMap::new(),
            }),
        }
    }

    /// Sends a request, in the order of the calls.
    ///
    /// # Errors
    /// The link's own refusal while the other side is away, [`Refusal::Overloaded`] when it does not
    /// keep up.
    pub fn send(&self, packet: impl FnOnce(u64) -> Vec<u8>) -> Result<Pending<T>, Refusal> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, verdict) = oneshot::channel();
        let mut state = self.state.lock();
        if state.pending.len() >= QUEUE {
            // Remove the entries of callers that no longer wait.
            state.pending.retain(|_, waiting| !waiting.is_closed());
            if state.pending.len() >= QUEUE {
                return Err(Refusal::Overloaded);
            }
        }
        let outgoing = state.outgoing.as_ref().ok_or(self.absent)?;
        outgoing
            .try_send(packet(request))
            .map_err(|_| Refusal::Overloaded)?;
        state.pending.insert(request, sender);
        Ok(Pending {
            verdict,
            absent: self.absent,
        })
    }

    /// Delivers a verdict to its waiting caller.
    pub fn settle(&self, request: u64, verdict: Verdict<T>) {
        if let Some(waiting) = self.state.lock().pending.remove(&request) {
            // A channel that has closed meanwhile needs no verdict.
            let _ = waiting.send(verdict);
        }
    }

    /// Whether the other side is connected.
    pub fn is_connected(&self) -> bool {
        self.state.lock().outgoing.is_some()
    }

    /// Connects to the daemon `role` at `path`, repeatedly, and passes each of its packets, of at most
    /// `limit` bytes, to `heard`. An error of `heard` ends the connection.
    pub async fn keep_up(
        &self,
        role: &str,
        path: &str,
        limit: usize,
        mut heard: impl FnMut(&[u8]) -> io::Result<()>,
    ) {
        loop {
            match AsyncPacketSocket::connect(Path::new(path)) {
                Ok(connection) => {
                    tracing::info!("connected to the {role}");
                    let (sender, outgoing) = mpsc::channel(QUEUE);
                    self.state.lock().outgoing = Some(sender);
                    let end = exchange(&connection, outgoing, limit, &mut heard).await;
                    let mut state = self.state.lock();
                    state.outgoing = None;
                    // Dropping the senders notifies the waiting callers.
                    state.pending.clear();
                    drop(state);
                    tracing::warn!(reason = end, "the {role} has gone; waiting for it");
                }
                Err(error) => tracing::debug!(%error, "no {role} yet"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Sends another daemon the packets of `outgoing`, and passes each of its packets, of at most `limit`
/// bytes, to `heard`, until one direction fails: then the other side has gone. Returns the reason, for
/// the log.
pub async fn exchange(
    connection: &AsyncPacketSocket,
    outgoing: mpsc::Receiver<Vec<u8>>,
    limit: usize,
    heard: impl FnMut(&[u8]) -> io::Result<()>,
) -> String {
    let error = tokio::select! {
        error = read(connection, limit, heard) => error,
        error = write(connection, outgoing) => error,
    };
    how(error.as_ref())
}

async fn write(
    connection: &AsyncPacketSocket,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
) -> Option<io::Error> {
    while let Some(packet) = outgoing.recv().await {
        if let Err(error) = connection.send(&packet).await {
            return Some(error);
        }
    }
    None
}

async fn read(
    connection: &AsyncPacketSocket,
    limit: usize,
    mut heard: impl FnMut(&[u8]) -> io::Result<()>,
) -> Option<io::Error> {
    loop {
        let packet = match connection.receive(limit).await {
            Ok(packet) if packet.bytes.is_empty() => return None,
            Ok(packet) => packet,
            Err(error) => return Some(error),
        };
        if let Err(error) = heard(&packet.bytes) {
            return Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_wait_have_so_many_places_and_leave_them_when_they_give_up() {
        let link = Link::<()>::new(Refusal::RecorderUnavailable);
        let send = || link.send(|request| request.to_be_bytes().to_vec());
        assert_eq!(send().err(), Some(Refusal::RecorderUnavailable));
        let (sender, mut outgoing) = mpsc::channel(QUEUE);
        link.state.lock().outgoing = Some(sender);
        let mut waiting: Vec<_> = (0..QUEUE).map(|_| send().unwrap()).collect();
        // The other side has the requests and does not answer.
        while outgoing.try_recv().is_ok() {}
        assert_eq!(send().err(), Some(Refusal::Overloaded));
        waiting.truncate(QUEUE / 2);
        waiting.push(send().unwrap());
        assert_eq!(link.state.lock().pending.len(), QUEUE / 2 + 1);
    }
}
