//! What the command line asks a daemon, and the answer: one JSON line each way over a stream
//! socket that only root may use (file mode and peer credentials). One request has a configuration
//! behind its line. Before its answer a daemon sends [`HEARD`], so that one that hangs is told from
//! one that has much to do.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use usher_proto::name::{HostName, ServiceName, UserName};

use crate::applied::Applied;
use crate::paths;

/// Largest request line.
pub const MAX_REQUEST: usize = 4096;

/// Largest answer in bytes, and the keeper's, which may list a million sessions.
const MAX_ANSWER: usize = 4 << 20;
const MAX_KEEPER_ANSWER: usize = 1 << 30;

/// What a daemon sends as soon as it has a request: an empty line.
pub const HEARD: u8 = b'\n';

/// How long a daemon may take until it has heard a request: it does one thing after the other, and
/// the longest takes a few seconds.
const HEARING: Duration = Duration::from_secs(10);
/// How long it may then take for its whole answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Largest configuration that may follow a request, in bytes.
pub const MAX_CANDIDATE: u64 = 64 << 20;

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Read the applied configuration again and put it in force.
    Reload,
    /// Refuse this user from now on, whatever the applied configuration says (keeper, verifier,
    /// signer). Needs no disk. Holds until [`Request::Enable`], or as long as the daemon lives.
    Disable {
        /// The user.
        user: UserName,
    },
    /// Take [`Request::Disable`] back: what the applied configuration says of the user counts.
    Enable {
        /// The user.
        user: UserName,
    },
    /// Live sessions and connections (keeper); users who sign by an ssh-agent (signer).
    Who,
    /// The sessions that have ended last (keeper).
    Recent,
    /// What keeps services from serving their users (keeper).
    Troubles,
    /// How the daemon is.
    Status,
    /// What putting this configuration in force would end (keeper). Nothing changes.
    WouldEnd {
        /// How many bytes follow the request's line, at most [`MAX_CANDIDATE`].
        bytes: u64,
        /// These bytes: an applied configuration in JSON.
        #[serde(skip)]
        candidate: Vec<u8>,
    },
}

impl Request {
    /// Asks what putting this configuration in force would end.
    ///
    /// # Errors
    /// When it is larger than [`MAX_CANDIDATE`] or has no JSON form.
    pub fn would_end(candidate: &Applied) -> io::Result<Self> {
        let candidate = serde_json::to_vec(candidate)?;
        let bytes = candidate.len() as u64;
        if bytes > MAX_CANDIDATE {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "the configuration has {bytes} bytes, and at most {MAX_CANDIDATE} can be asked about"
                ),
            ));
        }
        Ok(Self::WouldEnd { bytes, candidate })
    }
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The configuration of this generation is in force.
    Reloaded {
        /// The generation.
        generation: u64,
        /// Sessions that were ended because the new configuration no longer permits them, with the
        /// connections that were cut; oldest first.
        ended: Vec<EndingView>,
        /// What it forbids and has not ended yet, in words for an administrator.
        #[serde(default)]
        unfinished: Vec<String>,
    },
    /// What keeps services from serving their users.
    Troubles {
        /// Of each service that has had any, by its name.
        troubles: Vec<TroubleView>,
    },
    /// What the configuration asked about would end.
    WouldEnd {
        /// Sessions with the connections that they have, oldest first.
        ended: Vec<EndingView>,
    },
    /// Live sessions and connections.
    Who(WhoView),
    /// The sessions that have ended last.
    Recent(RecentView),
    /// Users who sign by an ssh-agent.
    Agents {
        /// In the order of their names.
        agents: Vec<AgentView>,
    },
    /// How the daemon is.
    Status(StatusView),
    /// The request could not be carried out; nothing changed.
    Failed {
        /// Why, in words for an administrator.
        reason: String,
    },
}

/// Live state of the keeper.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct WhoView {
    /// Sessions, oldest first.
    pub sessions: Vec<SessionView>,
    /// Running workers.
    pub workers: Vec<WorkerView>,
    /// What has kept services from serving their users.
    #[serde(default)]
    pub troubles: Vec<TroubleView>,
}

/// What has kept a service from serving its users since the keeper started.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct TroubleView {
    /// The service.
    pub service: ServiceName,
    /// How many times a process could not be started, or has ended at once.
    pub failed_starts: u64,
    /// How many connections were reset without having been served.
    pub refused_connections: u64,
    /// Whom it concerned last.
    pub user: UserName,
    /// Why, the last time.
    pub reason: String,
    /// When, seconds since 1970.
    pub at: u64,
    /// Whether the service has served since.
    pub over: bool,
}

/// A user who signs by an ssh-agent.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct AgentView {
    /// The user.
    pub user: UserName,
    /// Fingerprint of the key that the agent has to have, as `ssh-keygen -l` shows it.
    pub key: String,
    /// Whether a process of the user lends it.
    pub lent: bool,
}

/// One session.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct SessionView {
    /// Session id, hexadecimal.
    pub session: String,
    /// Remote user.
    pub user: UserName,
    /// Host the user comes from.
    pub host: HostName,
    /// Service used.
    pub service: ServiceName,
    /// Local account the user is here.
    pub uid: u32,
    /// Fingerprint of the key that opened it, as `ssh-keygen -l` shows it.
    #[serde(default)]
    pub key: String,
    /// By which certificate that key is the user's; none for a key that is listed.
    #[serde(default)]
    pub certificate: Option<CertificateView>,
    /// When it was opened, seconds since 1970.
    pub opened: u64,
    /// When it ends, seconds since 1970.
    pub expires: u64,
    /// Chain elements that announcements have used.
    pub used: u32,
    /// Elements that tokens have used; none where connections are announced only.
    #[serde(default)]
    pub tokens: Option<u32>,
    /// Length of either chain.
    pub chain_length: u32,
    /// Its connections.
    pub connections: Vec<ConnectionView>,
}

/// A session that ends because a configuration does not permit it. One that its client has closed
/// is among them when it has connections.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct EndingView {
    /// The session and its connections, by the names of the configuration that is in force before.
    #[serde(flatten)]
    pub session: SessionView,
    /// Why: the name of a refusal.
    #[serde(default)]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    pub text: String,
}

/// What a session has of its certificate.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct CertificateView {
    /// Fingerprint of the authority's key.
    pub authority: String,
    /// The authority's number for it; 0: none.
    pub serial: u64,
    /// Names that its holder may go by.
    pub principals: Vec<String>,
    /// When it ends, seconds since 1970.
    pub valid_before: u64,
}

/// The sessions that have ended last.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct RecentView {
    /// Each with its end, oldest first.
    pub ended: Vec<EndedView>,
}

/// The end of a session. One that its client had closed ends again when its connections are cut.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct EndedView {
    /// Session id, hexadecimal.
    pub session: String,
    /// Remote user.
    pub user: UserName,
    /// Host the user came from.
    pub host: HostName,
    /// Service used.
    pub service: ServiceName,
    /// Local account the user was here.
    pub uid: u32,
    /// When it was opened, seconds since 1970.
    pub opened: u64,
    /// When it ended, seconds since 1970.
    pub ended: u64,
    /// Why: the name of a refusal.
    pub reason: String,
    /// Why, for people.
    pub text: String,
}

/// One connection of a session.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct ConnectionView {
    /// Remote address and port.
    pub client: String,
    /// Local address and port.
    pub server: String,
    /// `announced`, `syn_received`, `withdrawn` or `established`.
    pub state: String,
    /// How long it has been established, seconds.
    pub seconds: Option<f64>,
}

/// One worker process.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct WorkerView {
    /// Service it serves.
    pub service: ServiceName,
    /// User it runs as.
    pub user: UserName,
    /// That user's id.
    pub uid: u32,
    /// Its process.
    pub pid: u32,
    /// How long it has run, seconds.
    pub seconds: f64,
}

/// How a daemon is.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct StatusView {
    /// `keeper`, `verifier`, `recorder`, `signer`, `courier` or `proxy`.
    pub role: String,
    /// Version of the program.
    pub version: String,
    /// Generation of the configuration in force; 0: none applied yet, everything is refused.
    pub generation: u64,
    /// Named numbers: counters and table fill.
    pub numbers: std::collections::BTreeMap<String, u64>,
    /// What keeps the daemon from doing its part, each for people: `usher doctor` fails by them.
    #[serde(default)]
    pub troubles: Vec<String>,
}

/// Why a daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The daemon is not there.
    #[error(
        "the {role} does not run on this host (nothing answers at {path}); \
         start it with `systemctl start usher-{role}`"
    )]
    NotRunning {
        /// Which daemon.
        role: String,
        /// Its socket.
        path: String,
    },
    /// The caller may not ask.
    #[error("only root may ask the {role}; run this with sudo")]
    NotPermitted {
        /// Which daemon.
        role: String,
    },
    /// The daemon is there and does not answer.
    #[error(
        "the {role} does not answer ({} s): it hangs, or was stopped (SIGSTOP). The service manager \
         ends it after its watchdog's time and starts it again; `systemctl kill -s KILL \
         usher-{role}` does so now",
        .after.as_secs()
    )]
    Hangs {
        /// Which daemon.
        role: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The exchange broke off.
    #[error("the {role} did not answer: {error}; look at its log (journalctl -u usher-{role})")]
    Broken {
        /// Which daemon.
        role: String,
        /// What the system says.
        error: io::Error,
    },
    /// The daemon refused.
    #[error("the {role} says: {reason}")]
    Refused {
        /// Which daemon.
        role: String,
        /// Its reason.
        reason: String,
    },
}

/// Asks the daemon of `role`.
///
/// # Errors
/// See [`ControlError`]; an [`Answer::Failed`] becomes [`ControlError::Refused`].
pub fn ask(role: &str, request: &Request) -> Result<Answer, ControlError> {
    let path = paths::control_socket(role);
    let broken = |error| ControlError::Broken {
        role: role.into(),
        error,
    };
    let stream = connect(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::NotRunning {
            role: role.into(),
            path: path.clone(),
        },
        io::ErrorKind::PermissionDenied => ControlError::NotPermitted { role: role.into() },
        io::ErrorKind::WouldBlock => ControlError::Hangs {
            role: role.into(),
            after: HEARING,
        },
        _ => broken(error),
    })?;
    let limit = match role {
        "keeper" => MAX_KEEPER_ANSWER,
        _ => MAX_ANSWER,
    };
    match exchange(stream, request, limit, (HEARING, PATIENCE)) {
        Ok(Answer::Failed { reason }) => Err(ControlError::Refused {
            role: role.into(),
            reason,
        }),
        Ok(answer) => Ok(answer),
        Err(Unanswered::After(after)) => Err(ControlError::Hangs {
            role: role.into(),
            after,
        }),
        Err(Unanswered::Broken(error)) => Err(broken(error)),
    }
}

/// Connects to a socket, also one of a daemon that accepts no more: `WouldBlock` in time.
fn connect(path: &str) -> io::Result<UnixStream> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // What connecting waits for, when too many wait to be accepted (unix(7), SO_SNDTIMEO).
    set_socket_timeout(&socket, Timeout::Send, Some(HEARING))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Why there is no answer.
#[derive(Debug)]
enum Unanswered {
    /// The daemon is there and has not said anything, or not all, for so long.
    After(Duration),
    /// The exchange broke off.
    Broken(io::Error),
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<serde_json::Error> for Unanswered {
    fn from(error: serde_json::Error) -> Self {
        Self::Broken(error.into())
    }
}

/// `hearing` is for the daemon to say that it has heard, `patience` for its whole answer after that.
fn exchange(
    mut stream: UnixStream,
    request: &Request,
    limit: usize,
    (hearing, patience): (Duration, Duration),
) -> Result<Answer, Unanswered> {
    let late = |after| {
        move |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Unanswered::After(after),
            _ => Unanswered::Broken(error),
        }
    };
    stream.set_write_timeout(Some(hearing))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(late(hearing))?;
    if let Request::WouldEnd { candidate, .. } = request {
        stream.write_all(candidate).map_err(late(hearing))?;
    }
    let (mut answer, mut heard) = (Vec::new(), false);
    let (mut after, mut deadline) = (hearing, Instant::now() + hearing);
    let mut chunk = vec![0; 64 * 1024];
    while answer.last() != Some(&b'\n') {
        // Of the whole answer: one that comes byte by byte is none.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Unanswered::After(after));
        }
        stream.set_read_timeout(Some(left))?;
        let mut received = match stream.read(&mut chunk) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(length) => &chunk[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(late(after)(error)),
        };
        if !heard {
            heard = true;
            (after, deadline) = (patience, Instant::now() + patience);
            received = received.strip_prefix(&[HEARD]).unwrap_or(received);
        }
        answer.extend_from_slice(received);
        if answer.len() > limit {
            return Err(io::Error::other("an answer without end").into());
        }
    }
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a daemon that answers with these bytes.
    fn asked(answer: &[u8], limit: usize) -> Result<Answer, Unanswered> {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(answer)?;
        exchange(ours, &Request::Status, limit, (HEARING, PATIENCE))
    }

    #[test]
    fn a_daemon_that_hangs_is_told_from_one_that_has_much_to_do() {
        let whole = Answer::Recent(RecentView::default());
        let mut answer = serde_json::to_vec(&whole).unwrap();
        answer.push(b'\n');
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
        let ask = |said: &[u8], times| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(said).unwrap();
            // Both ends stay open.
            let outcome = exchange(ours, &Request::Status, 1 << 10, times);
            drop(theirs);
            outcome
        };
        let after = |outcome: Result<Answer, Unanswered>| match outcome {
            Err(Unanswered::After(after)) => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(ask(b"", (short, long))), short);
        assert_eq!(after(ask(b"\n", (long, short))), short);
        assert_eq!(after(ask(b"\n{\"answer\"", (long, short))), short);
        answer.insert(0, HEARD);
        assert_eq!(ask(&answer, (long, long)).unwrap(), whole);
    }

    #[test]
    fn a_configuration_to_ask_about_has_a_limit_and_up_to_it_is_sent() {
        let asked = |size: usize| {
            let mut candidate = Applied {
                user_authorities: Some(String::new()),
                ..Applied::default()
            };
            let rest = serde_json::to_vec(&candidate).unwrap().len();
            candidate.user_authorities = Some("x".repeat(size - rest));
            Request::would_end(&candidate)
        };
        let limit = usize::try_from(MAX_CANDIDATE).unwrap();
        match asked(limit).unwrap() {
            Request::WouldEnd { bytes, candidate } => {
                assert_eq!((bytes, candidate.len()), (MAX_CANDIDATE, limit));
            }
            other => panic!("{other:?}"),
        }
        let refused = asked(limit + 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn an_answer_has_a_limit_and_below_it_is_taken() {
        let whole = Answer::Failed {
            reason: "no".into(),
        };
        let mut answer = serde_json::to_vec(&whole).unwrap();
        answer.push(b'\n');
        assert_eq!(asked(&answer, answer.len()).unwrap(), whole);
        asked(&answer, answer.len() - 1).unwrap_err();
        // One that ends too early is none.
        let closed = {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&answer[..4]).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            exchange(ours, &Request::Status, answer.len(), (HEARING, PATIENCE))
        };
        match closed {
            Err(Unanswered::Broken(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
            other => panic!("{other:?}"),
        }
    }
}
