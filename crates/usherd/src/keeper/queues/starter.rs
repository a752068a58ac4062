//! The keeper's side of the starter: starts it, orders workers, reads its reports of them and their
//! ends, and replaces it if it ends or does not answer.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use usher_daemon::packet::PacketSocket;
use usher_daemon::packet_async::AsyncPacketSocket;
use usher_kernel::cgroup::Group;
use usher_kernel::worker::{
    Ended, Event, MAX_REQUEST, Order, REPORT_SIZE, Report, Request, SpawnError,
};

/// A starter that lives no longer than this has failed: the next one starts after a pause.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// First and longest pause after a failure; doubled in between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The interval of pings to a starter with orders.
const ASKED: Duration = Duration::from_millis(500);
/// The time without an answer after which a starter counts as stopped or stuck.
const SILENT: Duration = Duration::from_secs(4);
/// The time that a killed starter may take to end before the next one starts anyway.
const GONE: Duration = Duration::from_secs(1);
/// How long an order waits for a starter while none can be started.
const ABSENT: Duration = Duration::from_secs(15);
/// Limit of bytes of reports that come at once.
const REPORTS: usize = 64 * REPORT_SIZE;

/// The starter.
#[derive(Default)]
pub struct StarterProcess {
    /// None while no starter runs.
    socket: watch::Sender<Option<Arc<AsyncPacketSocket>>>,
    /// Requests a replacement of the starter.
    replaced: Notify,
    state: Mutex<State>,
    /// The living starters of PAM sessions.
    of_sessions: Mutex<Vec<Weak<StarterProcess>>>,
    /// Whether this is the starter of a PAM session, which is not replaced.
    is_of_session: bool,
    /// How often all orders were ended. The starters of PAM sessions share this number.
    epoch: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    number: u64,
    /// By order number.
    orders: HashMap<u64, mpsc::UnboundedSender<Step>>,
    /// Reported workers, by process id.
    ends: HashMap<u32, oneshot::Sender<Ended>>,
}

/// The starter's report on an order; with [`Event::Begun`] also the receiver of the worker's end.
type Step = (Report, Option<WorkersEnd>);

/// Receives the end of a worker. Closed without a value if the starter has ended, which the worker
/// survives.
pub type WorkersEnd = oneshot::Receiver<Ended>;

impl StarterProcess {
    /// The starter of a PAM session, which usher-pam has started at the other end of this socket.
    pub fn of_session(&self, socket: AsyncPacketSocket) -> Arc<Self> {
        let socket = Arc::new(socket);
        let starter = Arc::new(Self {
            socket: watch::Sender::new(Some(Arc::clone(&socket))),
            is_of_session: true,
            epoch: Arc::clone(&self.epoch),
            ..Self::default()
        });
        let mut of_sessions = self.of_sessions.lock();
        of_sessions.retain(|other| other.strong_count() > 0);
        of_sessions.push(Arc::downgrade(&starter));
        let hearing = Arc::clone(&starter);
        tokio::spawn(async move {
            if let Err(error) = hearing.hear(&socket).await {
                tracing::error!(%error, "the starter of a PAM session failed");
            }
            hearing.socket.send_replace(None);
            hearing.forget();
        });
        starter
    }

    /// Sends no more orders to the starter of a PAM session. The starter goes on reporting the ends of its
    /// workers, and ends after the last one.
    pub fn leave(&self) {
        let Some(socket) = self.socket.send_replace(None) else {
            return;
        };
        if let Err(error) = rustix::net::shutdown(socket.as_fd(), Shutdown::Write) {
            // The starter has ended.
            tracing::debug!(%error, "leaving a PAM session to itself");
        }
    }

    /// Keeps a starter running, for ever.
    pub async fn keep_running(&self) {
        let mut pause = Duration::ZERO;
        loop {
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            let outcome = match launch() {
                Ok((mut starter, socket)) => {
                    let socket = Arc::new(socket);
                    self.socket.send_replace(Some(Arc::clone(&socket)));
                    let outcome = self.hear(&socket).await;
                    self.socket.send_replace(None);
                    // Kill this starter, unless it has ended already: it must make no more workers once
                    // another starter does.
                    let killed = starter.kill();
                    // The starter's socket closes before its children get the signal of its death. Once the
                    // starter is gone, each child is the user, becomes the user, or has its SIGKILL. The
                    // queues adopt the children that have become the user.
                    end_starter(starter).await;
                    self.forget();
                    killed.and(outcome)
                }
                Err(error) => Err(error),
            };
            pause = if begun.elapsed() < TOO_SHORT {
                (pause * 2).clamp(PAUSE.0, PAUSE.1)
            } else {
                Duration::ZERO
            };
            match outcome {
                Ok(()) => tracing::error!(?pause, "the starter has ended; another one is started"),
                Err(error) => {
                    tracing::error!(%error, ?pause, "the starter failed; another one is started")
                }
            }
        }
    }

    /// Reads one starter's reports until it ends or stops answering.
    async fn hear(&self, socket: &AsyncPacketSocket) -> io::Result<()> {
        let mut clock = tokio::time::interval(ASKED);
        let mut asked: Option<Instant> = None;
        loop {
            tokio::select! {
                packet = socket.receive(REPORTS) => {
                    let packet = packet?;
                    if packet.bytes.is_empty() {
                        return Ok(());
                    }
                    for report in packet.bytes.chunks(REPORT_SIZE) {
                        self.note(Report::decode(report).map_err(io::Error::other)?);
                    }
                    asked = None;
                }
                _ = clock.tick() => match asked {
                    _ if !self.has_orders() => asked = None,
                    Some(asked) if asked.elapsed() >= SILENT => {
                        let text = format!("it has not answered for {} seconds", SILENT.as_secs());
                        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                    }
                    Some(_) => {}
                    None => {
                        asked = Some(Instant::now());
                        match socket.try_send(&Request::Ping.encode()) {
                            // The socket is full of messages that the starter has not read.
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                            sent => sent?,
                        }
                    }
                },
                () = self.replaced.notified() => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not listen"));
                }
            }
        }
    }

    /// Whether a task waits for an order to be over.
    fn has_orders(&self) -> bool {
        let mut state = self.state.lock();
        state.orders.retain(|_, order| !order.is_closed());
        !state.orders.is_empty()
    }

    /// Tells all waiting tasks that no more reports come.
    fn forget(&self) {
        let mut state = self.state.lock();
        state.orders.clear();
        state.ends.clear();
    }

    fn note(&self, report: Report) {
        let mut state = self.state.lock();
        let mut end = None;
        match report.event {
            Event::Pong => return,
            Event::Ended(ended) => {
                if let Some(follower) = state.ends.remove(&report.pid) {
                    // The task may no longer be waiting.
                    let _ = follower.send(ended);
                }
                return;
            }
            Event::Begun(_) => {
                let (sender, receiver) = oneshot::channel();
                state.ends.insert(report.pid, sender);
                end = Some(receiver);
            }
            _ => {}
        }
        let order = if report.event.is_last() {
            state.orders.remove(&report.number)
        } else {
            state.orders.get(&report.number).cloned()
        };
        if let Some(order) = order {
            let _ = order.send((report, end));
        }
    }

    /// Ends all orders for connections to come, because their basis may have changed. Later
    /// connections need a new order. A starter that cannot be reached is replaced.
    pub fn end_orders(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        let of_sessions = self.of_sessions.lock();
        for starter in of_sessions.iter().filter_map(Weak::upgrade) {
            starter.end_standing();
        }
        drop(of_sessions);
        self.end_standing();
    }

    /// Ends the orders that stand at this starter.
    fn end_standing(&self) {
        let Some(socket) = self.socket.borrow().clone() else {
            return;
        };
        match socket.try_send(&Request::End.encode()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.replaced.notify_one(),
            // The request was sent, or the starter has ended, and its orders with it.
            _ => {}
        }
    }

    /// Grows whenever all orders are ended. An order of an earlier epoch is not sent, or is ended again.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Starts workers in a group, to serve a listener. Calls `begun` for each worker as soon as it is the
    /// user and has accepted its connection (with the client's endpoint) or has executed its program. Returns
    /// when the order is over. The order gets its number here. `epoch` is the [`StarterProcess::epoch`] that
    /// was read before the policy of the order.
    ///
    /// # Errors
    /// See [`SpawnError`]; [`SpawnError::NothingWaiting`] when no worker was needed and nothing
    /// failed.
    pub async fn start(
        &self,
        mut order: Order,
        epoch: u64,
        group: &Group,
        listener: BorrowedFd<'_>,
        mut begun: impl FnMut(u32, Option<SocketAddr>, WorkersEnd),
    ) -> Result<(), SpawnError> {
        order.command.check()?;
        let parent = |error| SpawnError::Parent(io::Error::other(error));
        let directory = group.directory().map_err(parent)?;
        let socket = self.socket().await?;
        if epoch != self.epoch() {
            return Err(SpawnError::NothingWaiting);
        }
        let (sender, mut steps) = mpsc::unbounded_channel();
        order.number = {
            let mut state = self.state.lock();
            state.number += 1;
            let number = state.number;
            state.orders.insert(number, sender);
            number
        };
        let errors = order.command.errors.clone();
        let request = Request::Order(Box::new(order));
        let packet = request.encode();
        if packet.len() > MAX_REQUEST {
            return Err(SpawnError::TooLong);
        }
        let mut descriptors = vec![directory.as_fd(), listener];
        descriptors.extend(errors.as_ref().map(AsFd::as_fd));
        match socket.send_with(&packet, &descriptors).await {
            // ConnectionReset: the starter ended before it had read all requests.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                return Err(SpawnError::StarterGone);
            }
            sent => sent.map_err(SpawnError::Parent)?,
        }
        if epoch != self.epoch() {
            // All orders were ended before this one was sent.
            self.end_standing();
        }
        let mut workers = 0_u64;
        while let Some((report, end)) = steps.recv().await {
            match report.event {
                Event::Begun(client) => {
                    workers += 1;
                    end.into_iter()
                        .for_each(|end| begun(report.pid, client, end));
                }
                Event::Stillborn => group.note_killed_newborn(),
                Event::Over if workers == 0 => return Err(SpawnError::NothingWaiting),
                Event::Killed => return Err(SpawnError::Killed),
                Event::Late => return Err(SpawnError::Late),
                Event::NotMade(errno) => {
                    return Err(SpawnError::Parent(io::Error::from_raw_os_error(errno)));
                }
                Event::Failed(stage, errno) => return Err(SpawnError::failed(stage, errno)),
                Event::Over | Event::Ended(_) | Event::Pong => return Ok(()),
            }
        }
        Err(SpawnError::StarterGone)
    }

    /// The starter's socket; waits while another one is being started.
    async fn socket(&self) -> Result<Arc<AsyncPacketSocket>, SpawnError> {
        if self.is_of_session {
            return self.socket.borrow().clone().ok_or(SpawnError::StarterGone);
        }
        let mut present = self.socket.subscribe();
        let present = tokio::time::timeout(ABSENT, present.wait_for(Option::is_some)).await;
        let socket = present.ok().and_then(|present| present.ok()?.clone());
        socket.ok_or(SpawnError::StarterGone)
    }
}

/// Starts a starter: this program again.
fn launch() -> io::Result<(Child, AsyncPacketSocket)> {
    let mut program = Program::new("/proc/self/exe");
    program.arg0("usherd").arg("starter").stdout(Stdio::null());
    spawn(program)
}

/// Runs a program with a socket to it as its standard input, and with only the variables of the
/// keeper's environment that control messages.
pub fn spawn(mut program: Program) -> io::Result<(Child, AsyncPacketSocket)> {
    let (ours, theirs) = socket_pair()?;
    program.env_clear();
    for name in ["USHER_LOG", "JOURNAL_STREAM"] {
        program.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    Ok((program.stdin(theirs).spawn()?, ours))
}

fn socket_pair() -> io::Result<(AsyncPacketSocket, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let ours = AsyncPacketSocket::from_blocking(PacketSocket::from_descriptor(ours))?;
    Ok((ours, theirs))
}

/// Waits up to [`GONE`] for a killed starter to end.
async fn end_starter(mut starter: Child) {
    let ended = tokio::task::spawn_blocking(move || starter.wait());
    match tokio::time::timeout(GONE, ended).await {
        Ok(Ok(Ok(status))) => tracing::info!(%status, "starter ended"),
        Ok(Ok(Err(error))) => tracing::error!(%error, "cannot wait for the starter"),
        Ok(Err(error)) => tracing::error!(%error, "cannot wait for the starter"),
        Err(_) => tracing::error!("a starter that was killed is not gone yet"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;
    use crate::starter::example;

    #[tokio::test]
    async fn an_order_of_a_former_epoch_is_not_sent() {
        let (ours, theirs) = socket_pair().unwrap();
        let theirs = PacketSocket::from_descriptor(theirs);
        let starter = StarterProcess::default().of_session(ours);
        // Any folder: no process is made here.
        let (group, listener) = (
            Group::open(Path::new("/")).unwrap(),
            File::open("/").unwrap(),
        );
        let former = starter.epoch();
        starter.end_orders();
        let next = || Request::decode(&theirs.receive(MAX_REQUEST).unwrap().bytes).unwrap();
        assert!(matches!(next(), Request::End));
        let refused = starter.start(
            example(2001),
            former,
            &group,
            listener.as_fd(),
            |_, _, _| {},
        );
        assert!(matches!(refused.await, Err(SpawnError::NothingWaiting)));
        let present = starter.start(
            example(2001),
            former + 1,
            &group,
            listener.as_fd(),
            |_, _, _| {},
        );
        let replied = async {
            tokio::task::yield_now().await;
            // The former order would have come first.
            let Request::Order(order) = next() else {
                panic!("no order")
            };
            let event = Event::Over;
            let report = Report {
                number: order.number,
                pid: 0,
                event,
            }
            .encode();
            theirs.send(&report, &[]).unwrap();
        };
        let (outcome, ()) = tokio::join!(present, replied);
        assert!(matches!(outcome, Err(SpawnError::NothingWaiting)));
    }
}
