//! The server's processes. A supervisor keeps a few workers waiting; each waits with Usher for a
//! user who has no process, becomes that user, and serves all of the user's connections. Workers
//! are newly started programs, not forks: a worker inherits only the listener.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::unistd::User;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use usher::{ByUserListener, ServiceError, UserListener};

use crate::service::Service;

/// Most connections of a user at once; further ones wait.
pub const MAXIMUM_CONNECTIONS: usize = 64;
/// The time that a worker stays without a connection.
const IDLE: Duration = Duration::from_secs(300);
/// The delay before a worker replaces one that failed while it waited.
const PAUSE: Duration = Duration::from_secs(1);

/// Reasons for a server or a worker to end.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A call to Usher failed.
    #[error("{call} failed: {source}")]
    Usher {
        /// The name of the call.
        call: &'static str,
        /// Why.
        source: ServiceError,
    },
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What failed, as it stands behind "cannot".
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The user has no home directory.
    #[error("uid {0} has no entry in the user database")]
    NoAccount(u32),
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> WorkerError {
    move |error| WorkerError::System {
        what,
        source: error.into(),
    }
}

fn usher(call: &'static str) -> impl FnOnce(ServiceError) -> WorkerError {
    move |source| WorkerError::Usher { call, source }
}

/// Listens at `port` and keeps `idle` workers waiting for users. Returns only when it fails; the
/// service manager then ends the workers with it.
///
/// # Errors
/// [`WorkerError`].
pub fn supervise(port: u16, idle: usize) -> Result<(), WorkerError> {
    // For IPv6 and IPv4.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).map_err(system("listen"))?;
    // This checks policy and kernel once, to report problems at the start.
    let asked = listener.try_clone().map_err(system("copy the listener"))?;
    ByUserListener::new(asked).map_err(usher("usher_set_accept_mode"))?;
    let mut workers: Vec<Worker> = Vec::new();
    loop {
        while workers
            .iter()
            .filter(|worker| worker.reserved.is_some())
            .count()
            < idle
        {
            workers.push(Worker::start(&listener)?);
        }
        let mut failed = false;
        for (worker, event) in wait(&workers)?.into_iter().rev() {
            match event {
                Event::Reserved => failed |= !workers[worker].has_reserved()?,
                Event::Ended => {
                    let mut worker = workers.swap_remove(worker);
                    let status = worker.process.wait().map_err(system("wait for a worker"))?;
                    // The worker has reported the error itself, on standard error.
                    failed |= worker.reserved.is_some() && !status.success();
                }
            }
        }
        if failed {
            thread::sleep(PAUSE);
        }
    }
}

/// A worker, as its supervisor sees it.
struct Worker {
    process: Child,
    ended: OwnedFd,
    /// Delivers a byte when the worker has a user; present until then.
    reserved: Option<ChildStdout>,
}

enum Event {
    Reserved,
    Ended,
}

impl Worker {
    fn start(listener: &TcpListener) -> Result<Self, WorkerError> {
        let inherited = listener.try_clone().map_err(system("copy the listener"))?;
        let mut process = Command::new("/proc/self/exe")
            .arg("worker")
            .stdin(Stdio::from(OwnedFd::from(inherited)))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(system("start a worker"))?;
        let ended = rustix::process::pidfd_open(Pid::from_child(&process), PidfdFlags::empty())
            .map_err(system("watch a worker"))?;
        Ok(Self {
            ended,
            reserved: process.stdout.take(),
            process,
        })
    }

    /// Reads the byte; false if the worker ended instead.
    fn has_reserved(&mut self) -> Result<bool, WorkerError> {
        let Some(mut reserved) = self.reserved.take() else {
            return Ok(true);
        };
        let read = reserved
            .read(&mut [0])
            .map_err(system("listen to a worker"))?;
        if read == 0 {
            // Its end comes next, and then it counts as one that was waiting.
            self.reserved = Some(reserved);
        }
        Ok(read > 0)
    }
}

/// The workers' events, in order; at most one event per worker.
fn wait(workers: &[Worker]) -> Result<Vec<(usize, Event)>, WorkerError> {
    let mut waiting: Vec<PollFd<'_>> = workers
        .iter()
        .map(|worker| PollFd::new(&worker.ended, PollFlags::IN))
        .collect();
    let mut telling = Vec::new();
    for (index, worker) in workers.iter().enumerate() {
        if let Some(reserved) = &worker.reserved {
            waiting.push(PollFd::new(reserved, PollFlags::IN));
            telling.push(index);
        }
    }
    match poll(&mut waiting, None) {
        Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
        polled => polled.map_err(system("wait for workers"))?,
    };
    let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let told: Vec<usize> = telling
        .iter()
        .zip(&waiting[workers.len()..])
        .filter(|(_, fd)| ready(fd))
        .map(|(index, _)| *index)
        .collect();
    let mut events = Vec::new();
    for (index, ended) in waiting[..workers.len()].iter().enumerate() {
        if ready(ended) {
            events.push((index, Event::Ended));
        } else if told.contains(&index) {
            events.push((index, Event::Reserved));
        }
    }
    Ok(events)
}

/// Runs a worker: standard input is the listener, and a byte on standard output reports to the
/// supervisor that the worker has a user. Returns when the user has had no connection for a while.
///
/// # Errors
/// [`WorkerError`].
pub fn work() -> Result<(), WorkerError> {
    // This holds only while the worker waits: the kernel clears it when the process becomes a user,
    // who is then served to the end.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(system("ask to end with the supervisor"))?;
    let listener: TcpListener = standard_input()?.into();
    let listener = ByUserListener::new(listener).map_err(usher("usher_set_accept_mode"))?;
    let reservation = listener.pre_accept().map_err(usher("pre_accept"))?;
    let mut supervisor = io::stdout();
    supervisor
        .write_all(b"+")
        .and_then(|()| supervisor.flush())
        .map_err(system("tell the supervisor"))?;
    // The user's process must not keep the service's listener.
    let nothing = std::fs::File::open("/dev/null").map_err(system("open /dev/null"))?;
    rustix::stdio::dup2_stdin(nothing).map_err(system("use standard input"))?;
    let queue = listener
        .set_net_user(reservation)
        .map_err(usher("set_net_user"))?;
    // From here on this process is the user. Threads may be made, files may be read.
    let service = Arc::new(Service::new(calendars()?));
    // Each connection's thread holds one of these.
    let place = Arc::new(());
    while wait_for_connection(&queue, &place)? {
        let (connection, _) = queue
            .accept_by_user()
            .map_err(system("accept a connection"))?;
        let (service, held) = (Arc::clone(&service), Arc::clone(&place));
        thread::Builder::new()
            .name("connection".to_owned())
            .spawn(move || {
                serve(&service, &connection);
                drop(held);
            })
            .map_err(system("start a thread"))?;
        while Arc::strong_count(&place) > MAXIMUM_CONNECTIONS {
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Serves the connection that is standard input: a worker that Usher has started, for a service
/// with `program` and the style `connection`, which needs no LSM programs. The calendars are those
/// in `directory`, or else the user's.
///
/// # Errors
/// [`WorkerError`].
pub fn serve_standard_input(directory: Option<PathBuf>) -> Result<(), WorkerError> {
    let connection: TcpStream = standard_input()?.into();
    let service = Service::new(directory.map_or_else(calendars, Ok)?);
    service
        .serve(&connection)
        .map_err(system("serve the connection"))
}

fn serve(service: &Service, connection: &TcpStream) {
    if let Err(error) = service.serve(connection) {
        eprintln!("calendar-server: a connection ended: {error}");
    }
}

fn standard_input() -> Result<OwnedFd, WorkerError> {
    let input = io::stdin();
    input
        .as_fd()
        .try_clone_to_owned()
        .map_err(system("use standard input"))
}

/// The folder of this user's calendars, not from the environment, which is the service account's.
fn calendars() -> Result<PathBuf, WorkerError> {
    let uid = nix::unistd::geteuid();
    let account = User::from_uid(uid).map_err(|error| WorkerError::System {
        what: "the user database",
        source: error.into(),
    })?;
    let home = account.ok_or(WorkerError::NoAccount(uid.as_raw()))?.dir;
    Ok(home.join(".calendars"))
}

/// Returns false if there was no connection for so long, and none is open, that this process may end:
/// the user's next connection waits in the queue for another worker.
fn wait_for_connection(queue: &UserListener, place: &Arc<()>) -> Result<bool, WorkerError> {
    let patience = Timespec {
        tv_sec: IDLE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    loop {
        let mut waiting = [PollFd::new(queue, PollFlags::IN)];
        match poll(&mut waiting, Some(&patience)) {
            Ok(0) if Arc::strong_count(place) == 1 => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            polled => {
                return polled
                    .map(|_| true)
                    .map_err(system("wait for a connection"));
            }
        }
    }
}
