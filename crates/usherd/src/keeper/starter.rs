//! The keeper's side of the starter: starts it, asks it for workers, hears how they end, and starts
//! another one when it ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::sync::{mpsc, oneshot, watch};
use usher_kernel::cgroup::Group;
use usher_kernel::worker::{
    BIRTH, Command, Ended, Entry, Input, MAX_REQUEST, REPORT_SIZE, Report, Request, SpawnError,
    Told,
};
use usher_local::packet::PacketSocket;
use usher_local::packet_async::AsyncPacketSocket;

/// A starter that lives no longer than this has failed: the next one waits.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// First and longest pause after a failure; doubled in between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// How much longer than a birth the starter may take to tell of it.
const GRACE: Duration = Duration::from_secs(5);

/// The starter.
pub struct Starter {
    /// None while there is none.
    socket: watch::Sender<Option<Arc<AsyncPacketSocket>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number: u64,
    /// By the numbers of their requests.
    births: HashMap<u64, mpsc::UnboundedSender<Step>>,
    /// Workers that have been told of, by their processes.
    ends: HashMap<u32, oneshot::Sender<Ended>>,
}

/// What the starter tells of a birth.
struct Step {
    told: Told,
    pid: u32,
    /// With what is told first of a worker.
    end: Option<WorkersEnd>,
}

/// Tells how a worker has ended. Dropped without a word when the starter has ended, which the worker
/// survives.
pub type WorkersEnd = oneshot::Receiver<Ended>;

impl Default for Starter {
    fn default() -> Self {
        Self {
            socket: watch::Sender::new(None),
            state: Mutex::default(),
        }
    }
}

impl Starter {
    /// Keeps a starter running, for ever.
    pub async fn keep_running(&self) {
        let mut pause = Duration::ZERO;
        loop {
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            let outcome = match launch() {
                Ok((starter, socket)) => {
                    let outcome = self.hear(socket).await;
                    end(starter).await;
                    outcome
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

    /// Hears one starter until it ends.
    async fn hear(&self, socket: AsyncPacketSocket) -> io::Result<()> {
        let socket = Arc::new(socket);
        self.socket.send_replace(Some(Arc::clone(&socket)));
        let outcome = loop {
            match socket.receive(REPORT_SIZE).await {
                Ok(packet) if packet.bytes.is_empty() => break Ok(()),
                Ok(packet) => match Report::decode(&packet.bytes) {
                    Ok(report) => self.note(report),
                    Err(error) => break Err(io::Error::other(error)),
                },
                Err(error) => break Err(error),
            }
        };
        self.socket.send_replace(None);
        // Whoever waits hears that nothing more is told.
        let mut state = self.state.lock();
        state.births.clear();
        state.ends.clear();
        outcome
    }

    fn note(&self, Report { number, pid, told }: Report) {
        let mut state = self.state.lock();
        if let Told::Ended(ended) = told {
            if let Some(follower) = state.ends.remove(&pid) {
                // Who does not listen any more need not know.
                let _ = follower.send(ended);
            }
            return;
        }
        let end = match told {
            Told::Accepted | Told::Executed | Told::Late if !state.ends.contains_key(&pid) => {
                let (sender, end) = oneshot::channel();
                state.ends.insert(pid, sender);
                Some(end)
            }
            _ => None,
        };
        let step = Step { told, pid, end };
        if told == Told::Accepted {
            if let Some(birth) = state.births.get(&number) {
                let _ = birth.send(step);
            }
        } else if let Some(birth) = state.births.remove(&number) {
            let _ = birth.send(step);
        }
    }

    /// Starts a worker in a group. Calls `begun` as soon as there is one, when it is the user and, in
    /// style `connection`, has accepted; returns when it has executed its program. A worker that has
    /// begun and fails then ends, as every other.
    ///
    /// # Errors
    /// See [`SpawnError`].
    pub async fn start(
        &self,
        command: Command,
        input: Input<'_>,
        group: &Group,
        begun: impl FnOnce(u32, WorkersEnd),
    ) -> Result<(), SpawnError> {
        command.check()?;
        let (accepts, listener) = match input {
            Input::AcceptOne(listener) => (true, listener),
            Input::Listener(listener) => (false, listener),
        };
        let mut request = Request {
            number: 0,
            entry: group.entry(),
            accepts,
            command,
        };
        let mut begun = Some(begun);
        loop {
            let outcome = tokio::time::timeout(
                BIRTH + GRACE,
                self.attempt(&mut request, listener, group, &mut begun),
            );
            match outcome.await.unwrap_or(Err(SpawnError::Late))? {
                Birth::Executed => return Ok(()),
                Birth::Stillborn if request.entry == Entry::Made => {
                    group.note_killed_newborn();
                    request.entry = Entry::Enters;
                }
                Birth::Stillborn => return Err(SpawnError::Killed),
            }
        }
    }

    async fn attempt(
        &self,
        request: &mut Request,
        listener: BorrowedFd<'_>,
        group: &Group,
        begun: &mut Option<impl FnOnce(u32, WorkersEnd)>,
    ) -> Result<Birth, SpawnError> {
        let parent = |error| SpawnError::Parent(io::Error::other(error));
        let directory = group.directory().map_err(parent)?;
        let socket = self.socket().await?;
        let (sender, mut steps) = mpsc::unbounded_channel();
        {
            let mut state = self.state.lock();
            state.number += 1;
            request.number = state.number;
            state.births.insert(request.number, sender);
        }
        let _forgotten = Forgotten(self, request.number);
        let packet = request.encode();
        if packet.len() > MAX_REQUEST {
            return Err(SpawnError::TooLong);
        }
        let mut descriptors = vec![directory.as_fd(), listener];
        descriptors.extend(request.command.errors.as_ref().map(AsFd::as_fd));
        match socket.send_with(&packet, &descriptors).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(SpawnError::StarterGone);
            }
            sent => sent.map_err(SpawnError::Parent)?,
        }
        while let Some(Step { told, pid, end }) = steps.recv().await {
            if let Some(end) = end
                && let Some(begun) = begun.take()
            {
                begun(pid, end);
            }
            match told {
                Told::Accepted | Told::Ended(_) => {}
                Told::Executed => return Ok(Birth::Executed),
                Told::Stillborn => return Ok(Birth::Stillborn),
                Told::Late => return Err(SpawnError::Late),
                Told::NotMade(errno) => {
                    return Err(SpawnError::Parent(io::Error::from_raw_os_error(errno)));
                }
                Told::Failed(stage, errno) => return Err(SpawnError::failed(stage, errno)),
            }
        }
        Err(SpawnError::StarterGone)
    }

    /// The starter's socket; waits while another one is being started.
    async fn socket(&self) -> Result<Arc<AsyncPacketSocket>, SpawnError> {
        let mut present = self.socket.subscribe();
        let present = present.wait_for(Option::is_some).await;
        let socket = present.ok().and_then(|socket| socket.clone());
        socket.ok_or(SpawnError::StarterGone)
    }
}

/// What became of a child.
enum Birth {
    Executed,
    Stillborn,
}

/// Forgets a birth that nobody waits for any more.
struct Forgotten<'a>(&'a Starter, u64);

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        self.0.state.lock().births.remove(&self.1);
    }
}

/// Starts a starter: this program again, with a socket to it as its standard input, and nothing of
/// the keeper's environment but what messages depend on.
fn launch() -> io::Result<(Child, AsyncPacketSocket)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let socket = AsyncPacketSocket::from_blocking(PacketSocket::from_descriptor(ours))?;
    let mut program = Program::new("/proc/self/exe");
    program.arg0("usherd").arg("starter").env_clear();
    for name in ["USHER_LOG", "JOURNAL_STREAM"] {
        program.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    let starter = program.stdin(theirs).stdout(Stdio::null()).spawn()?;
    Ok((starter, socket))
}

/// Sees a starter off.
async fn end(mut starter: Child) {
    let ended = tokio::task::spawn_blocking(move || {
        // One that has closed its socket and not ended serves nobody.
        starter.kill()?;
        starter.wait()
    });
    match ended.await.map_err(io::Error::other).flatten() {
        Ok(status) => tracing::info!(%status, "starter ended"),
        Err(error) => tracing::error!(%error, "cannot wait for the starter"),
    }
}
