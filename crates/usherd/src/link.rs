//! A daemon's connection to another one: numbered requests go out, verdicts come back, and a lost
//! connection is made again.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use usher_daemon::events;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_proto::refusal::Refusal;

/// Requests that may wait for the other side unless the link has another limit; more are refused with
/// [`Refusal::Overloaded`].
const QUEUE: usize = 4096;

/// Says how a connection to another daemon ended, for the log.
pub fn how(ended: &io::Result<()>) -> String {
    match ended {
        Ok(()) => "it closed the connection".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// A connection's requests that wait for their verdict: a `T`, or a refusal. Each has a subject of type `S`.
pub struct Link<T, S = ()> {
    /// The refusal of a request while the other side is away.
    absent: Refusal,
    limit: usize,
    next_request: AtomicU64,
    state: Mutex<State<T, S>>,
}

struct State<T, S> {
    outgoing: Option<mpsc::Sender<Vec<u8>>>,
    pending: HashMap<u64, (S, oneshot::Sender<Result<T, Refusal>>)>,
}

/// A verdict on its way.
pub struct Pending<T> {
    verdict: oneshot::Receiver<Result<T, Refusal>>,
    absent: Refusal,
}

impl<T> Pending<T> {
    /// Waits for the verdict.
    ///
    /// # Errors
    /// The other side's refusal, or the link's own if the other side has gone.
    pub async fn verdict(self) -> Result<T, Refusal> {
        self.verdict.await.unwrap_or(Err(self.absent))
    }
}

impl<T> Link<T> {
    /// A link that is not connected yet.
    pub fn new(absent: Refusal) -> Self {
        Self::with_limit(absent, QUEUE)
    }

    /// Sends a request, in the order of the calls.
    pub fn send(&self, packet: impl FnOnce(u64) -> Vec<u8>) -> Result<Pending<T>, Refusal> {
        self.send_about((), packet)
    }
}

impl<T, S> Link<T, S> {
    /// A link that is not connected yet, and on which at most `limit` requests may wait.
    pub fn with_limit(absent: Refusal, limit: usize) -> Self {
        Self {
            absent,
            limit,
            next_request: AtomicU64::new(0),
            state: Mutex::new(State {
                outgoing: None,
                pending: HashMap::new(),
            }),
        }
    }

    /// Sends a request about a subject, in the order of the calls.
    ///
    /// # Errors
    /// The link's own refusal while the other side is away; [`Refusal::Overloaded`] while it does not keep
    /// up.
    pub fn send_about(
        &self,
        subject: S,
        packet: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Pending<T>, Refusal> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, verdict) = oneshot::channel();
        let mut state = self.state.lock();
        if state.pending.len() >= self.limit {
            // Remove the entries of callers that no longer wait.
            state.pending.retain(|_, (_, waiting)| !waiting.is_closed());
            if state.pending.len() >= self.limit {
                return Err(Refusal::Overloaded);
            }
        }
        let outgoing = state.outgoing.as_ref().ok_or(self.absent)?;
        outgoing
            .try_send(packet(request))
            .map_err(|_| Refusal::Overloaded)?;
        state.pending.insert(request, (subject, sender));
        Ok(Pending {
            verdict,
            absent: self.absent,
        })
    }

    /// Delivers a verdict to its waiting caller.
    pub fn settle(&self, request: u64, verdict: Result<T, Refusal>) {
        if let Some((_, waiting)) = self.state.lock().pending.remove(&request) {
            // A caller that no longer waits needs no verdict.
            let _ = waiting.send(verdict);
        }
    }

    /// Delivers a verdict if the request is about this subject.
    pub fn settle_about(&self, subject: &S, request: u64, verdict: Result<T, Refusal>)
    where
        S: PartialEq,
    {
        let mut state = self.state.lock();
        if state
            .pending
            .get(&request)
            .is_some_and(|(about, _)| about == subject)
            && let Some((_, waiting)) = state.pending.remove(&request)
        {
            // A caller that no longer waits needs no verdict.
            let _ = waiting.send(verdict);
        }
    }

    /// Refuses the waiting requests about a subject.
    pub fn refuse(&self, subject: &S, refusal: Refusal)
    where
        S: PartialEq,
    {
        let mut state = self.state.lock();
        let its = state.pending.extract_if(|_, (about, _)| about == subject);
        for (_, (_, waiting)) in its {
            let _ = waiting.send(Err(refusal));
        }
    }

    /// Whether the other side is connected.
    pub fn is_connected(&self) -> bool {
        self.state.lock().outgoing.is_some()
    }

    /// Sends the requests over a connection, and passes each packet that arrives, of at most `limit` bytes,
    /// to `heard`. An error of `heard` ends the connection.
    ///
    /// # Errors
    /// When the connection ends without the other side's closing it.
    pub async fn serve(
        &self,
        connection: &AsyncPacketSocket,
        limit: usize,
        heard: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (sender, outgoing) = mpsc::channel(QUEUE);
        self.state.lock().outgoing = Some(sender);
        let end = exchange(connection, outgoing, limit, heard).await;
        self.disconnect();
        end
    }

    /// Refuses the waiting requests, and further ones until the link is connected again.
    pub fn disconnect(&self) {
        let mut state = self.state.lock();
        state.outgoing = None;
        // Dropping the senders notifies the waiting callers.
        state.pending.clear();
    }

    /// Connects to the daemon `role` at `path`, repeatedly, and serves each connection.
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
                    tracing::info!(name: events::DAEMON_CONNECTED, "connected to the {role}");
                    let end = self.serve(&connection, limit, &mut heard).await;
                    tracing::warn!(name: events::DAEMON_GONE, reason = how(&end),
                        "the {role} has gone; waiting for it");
                }
                Err(error) => tracing::debug!(%error, "no {role} yet"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Sends another daemon the packets of `outgoing`, and passes each packet from that daemon, of at most
/// `limit` bytes, to `heard`, until one direction fails: then the daemon has gone.
///
/// # Errors
/// When the connection ends without the other side's closing it.
pub async fn exchange(
    connection: &AsyncPacketSocket,
    outgoing: mpsc::Receiver<Vec<u8>>,
    limit: usize,
    heard: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    tokio::select! {
        end = read_link(connection, limit, heard) => end,
        end = write_link(connection, outgoing) => end,
    }
}

/// Sends another daemon the packets of `outgoing`.
///
/// # Errors
/// As sendmsg(2), when the other daemon has gone.
pub async fn write_link(
    connection: &AsyncPacketSocket,
    mut outgoing: mpsc::Receiver<impl AsRef<[u8]>>,
) -> io::Result<()> {
    while let Some(packet) = outgoing.recv().await {
        connection.send(packet.as_ref()).await?;
    }
    Ok(())
}

async fn read_link(
    connection: &AsyncPacketSocket,
    limit: usize,
    mut heard: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let packet = connection.receive(limit).await?;
        if packet.bytes.is_empty() {
            return Ok(());
        }
        heard(&packet.bytes)?;
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Connects a stand-in for the other side, whose queue takes `limit` packets, and returns the queue.
    pub fn connect<T, S>(link: &Link<T, S>, limit: usize) -> mpsc::Receiver<Vec<u8>> {
        let (sender, outgoing) = mpsc::channel(limit);
        link.state.lock().outgoing = Some(sender);
        outgoing
    }

    #[test]
    fn waiting_callers_have_a_limit_and_free_their_places() {
        let link = Link::<()>::new(Refusal::RecorderUnavailable);
        let send = || link.send(|request| request.to_be_bytes().to_vec());
        assert_eq!(send().err(), Some(Refusal::RecorderUnavailable));
        let mut outgoing = connect(&link, QUEUE);
        let mut waiting: Vec<_> = (0..QUEUE).map(|_| send().unwrap()).collect();
        // The other side has the requests and does not answer.
        while outgoing.try_recv().is_ok() {}
        assert_eq!(send().err(), Some(Refusal::Overloaded));
        waiting.truncate(QUEUE / 2);
        waiting.push(send().unwrap());
        assert_eq!(link.state.lock().pending.len(), QUEUE / 2 + 1);
    }
}
