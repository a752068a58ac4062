//! Connects as the local user: the signer announces the connection, then it is made like any other.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use usher_base::{HostName, ServiceName};
use usher_daemon::packet::PacketSocket;
use usher_local::paths;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};
use usher_proto::program_end::ProgramEnd;
use usher_proto::refusal::Refusal;

use crate::token::tell_program;
use attempts::{RESTART, Tried, is_refused, outlast_restart, patience};
use sockets::{establish_within, reachable_by, stream_socket};
use tickets::{TokenError, establish_with_token};

mod attempts;
mod sockets;
mod tickets;

/// How long the signer and the server may take to decide. A decision takes milliseconds; the rest of the time
/// is for a person who touches a security key, a daemon that restarts or a host that does not answer.
const DECISION: Duration = Duration::from_secs(60);

/// How long the signer may take to say how a program has ended. The signer itself waits for the server's
/// report for up to a second.
const REPORT: Duration = Duration::from_secs(3);

/// How long an announced connection may take: as long as its announcement lives on the server. Afterwards the
/// server refuses its SYN.
const ANNOUNCED: Duration = Duration::from_secs(10);

/// A failed connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The signer or the server refused.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The signer of this host does not run.
    #[error("the signer of this host does not answer ({0}); is usher-signer.service running?")]
    NoSigner(io::Error),
    /// The signer's answer makes no sense.
    #[error(
        "cannot understand the signer's answer; are the library and the daemon of one version?"
    )]
    Protocol,
    /// The server has admitted the connection and resets it: its keeper is being restarted and does not listen,
    /// or another program on the way resets. Nothing was sent.
    #[error(
        "the server has admitted the connection, and yet it was reset; try again: its keeper may be restarting \
         (`usher doctor` there), or a packet filter on the way resets connections to the service's port"
    )]
    NotListening,
    /// There is no way to any of the host's addresses.
    #[error("cannot connect to any address of the host: {ways}")]
    Unreachable {
        /// The addresses, each with the reason, for people.
        ways: String,
        /// The errno(3) value of the last address.
        errno: i32,
    },
    /// The connection itself failed although it was admitted.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
}

impl ConnectError {
    /// The errno(3) value of the C interface.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => match refusal {
                Refusal::UnknownHost => libc::EHOSTUNREACH,
                // These refusals end within seconds: no policy, key or account has caused them.
                Refusal::Overloaded
                | Refusal::SessionTableFull
                | Refusal::AdmissionTableFull
                | Refusal::ListenerTableFull
                | Refusal::ListenerFailed
                | Refusal::AccountUnknown
                | Refusal::RecorderUnavailable
                | Refusal::SessionEnded
                | Refusal::ServiceMoved
                | Refusal::AlreadyAnnounced => libc::EAGAIN,
                Refusal::VerifierUnavailable
                | Refusal::CourierUnavailable
                | Refusal::KeeperUnavailable
                | Refusal::SignerUnavailable => libc::ENETUNREACH,
                Refusal::NoPrivateKey | Refusal::AgentUnavailable => libc::ENOKEY,
                _ => libc::EACCES,
            },
            Self::NotListening => libc::EAGAIN,
            Self::Unreachable { errno, .. } => *errno,
            Self::NoSigner(_) => libc::ENETDOWN,
            Self::Protocol => libc::EPROTO,
            Self::Connect(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Connects to `service` on `host` as the user this process runs as.
///
/// Blocks until the connection is established. Each address of the host is tried for at most ten seconds. The
/// first is the one at which the host answers the signer. The socket is an ordinary TCP socket with
/// close-on-exec set. For an IPv4 peer it is an `AF_INET` socket, or an `AF_INET6` socket whose
/// addresses show as `::ffff:a.b.c.d`; which of both can differ from call to call.
///
/// # Errors
/// See [`ConnectError`]. Nothing is left behind on either host.
pub fn connect_by_user(host: &HostName, service: &ServiceName) -> Result<TcpStream, ConnectError> {
    // The kernel draws tokens for the real uid; the signer answers for the effective one.
    let draws = rustix::process::getuid() == rustix::process::geteuid();
    let tried = Tried::default();
    let announced = || connect_announced(host.clone(), service.clone(), &tried);
    if !draws {
        return outlast_restart(announced(), announced, patience(RESTART));
    }
    let failed = match tickets::connect(host, service) {
        Ok(connected) => return Ok(connected),
        Err(failed) => failed,
    };
    let first = connect_with_ticket(host.clone(), service.clone(), failed, &tried);
    outlast_restart(first, announced, patience(RESTART))
}

/// Asks the signer for an announcement.
fn connect_announced(
    host: HostName,
    service: ServiceName,
    tried: &Tried,
) -> Result<TcpStream, ConnectError> {
    let signer = signer()?;
    let request = LocalRequest::Connect { host, service };
    let (socket, answer) = announce(&signer, &request, None)?;
    finish(&signer, socket, answer, tried)
}

/// Asks the signer, which may answer that there is a ticket. `failed`: the address at which a token has just
/// failed, so no other token is tried there.
fn connect_with_ticket(
    host: HostName,
    service: ServiceName,
    failed: Option<SocketAddr>,
    tried: &Tried,
) -> Result<TcpStream, ConnectError> {
    let signer = signer()?;
    let request = LocalRequest::ConnectWithTicket {
        host: host.clone(),
        service: service.clone(),
    };
    let (mut socket, mut answer) = announce(&signer, &request, None)?;
    if let LocalReply::Ticket { server } = answer {
        let outcome = if failed == Some(server) {
            Err(TokenError::Connect)
        } else {
            establish_with_token(server)
        };
        match outcome {
            Ok(connected) => {
                tickets::remember(host, service, server);
                return Ok(connected);
            }
            // The ticket is used up for now, or does not serve this process. The network is not at fault, so
            // the signer need not know.
            Err(TokenError::Draw) => {
                drop(signer);
                return connect_announced(host, service, tried);
            }
            // Asks again in the same conversation, so that the signer issues no tickets for a while.
            Err(TokenError::Connect) => {
                let announced = LocalRequest::Connect { host, service };
                (socket, answer) = announce(&signer, &announced, None)?;
            }
        }
    }
    finish(&signer, socket, answer, tried)
}

/// As [`connect_by_user`], for the user at the other end of `local`, a loopback connection that this process
/// has accepted. For the client proxy: the signer accepts this request from the proxy's account only, and
/// asks the kernel for the connection's user.
///
/// # Errors
/// As [`connect_by_user`].
pub fn connect_on_behalf(
    local: BorrowedFd<'_>,
    host: &HostName,
    service: &ServiceName,
) -> Result<TcpStream, ConnectError> {
    let request = LocalRequest::ConnectOnBehalf {
        host: host.clone(),
        service: service.clone(),
    };
    let tried = Tried::default();
    let announced = || {
        let signer = signer()?;
        let (socket, answer) = announce(&signer, &request, Some(local))?;
        finish(&signer, socket, answer, &tried)
    };
    outlast_restart(announced(), announced, patience(RESTART))
}

/// The uid of the user at the other end of `local`, a loopback connection that this process has accepted for
/// a service; that end may be closed already. For the client proxy: the signer answers only its account.
///
/// # Errors
/// [`ConnectError::Refused`] when the kernel does not know, or the caller is not the proxy; as
/// [`connect_by_user`] when the signer is unavailable.
pub fn owner_at_the_proxy(
    local: BorrowedFd<'_>,
    host: &HostName,
    service: &ServiceName,
) -> Result<u32, ConnectError> {
    let request = LocalRequest::OwnerAtProxy {
        host: host.clone(),
        service: service.clone(),
    };
    let ask = || {
        let signer = signer()?;
        signer
            .send(&request.encode(), &[local])
            .map_err(ConnectError::NoSigner)?;
        match receive(&signer)? {
            LocalReply::Owner { uid } => Ok(uid),
            LocalReply::Refused(refusal) => Err(ConnectError::Refused(refusal)),
            _ => Err(ConnectError::Protocol),
        }
    };
    outlast_restart(ask(), ask, patience(RESTART))
}

/// How the service's program for a connection of the calling user has ended, if it failed at once and the
/// server says so. Ask after a connection has ended before any data came from the server; `client` is the
/// connection's endpoint on this host. The signer waits for the server's report for up to a second.
///
/// # Errors
/// As [`connect_by_user`] when the signer is unavailable.
pub fn how_ended(
    host: &HostName,
    service: &ServiceName,
    client: SocketAddr,
) -> Result<Option<ProgramEnd>, ConnectError> {
    let request = LocalRequest::HowEnded {
        host: host.clone(),
        service: service.clone(),
        client: SocketAddr::new(client.ip().to_canonical(), client.port()),
    };
    let signer = signer_within(REPORT, REPORT)?;
    signer
        .send(&request.encode(), &[])
        .map_err(ConnectError::NoSigner)?;
    match receive(&signer)? {
        LocalReply::Ended(end) => Ok(end),
        LocalReply::Refused(refusal) => Err(ConnectError::Refused(refusal)),
        _ => Err(ConnectError::Protocol),
    }
}

fn signer() -> Result<PacketSocket, ConnectError> {
    signer_within(RESTART, DECISION)
}

/// Connects to the signer. Waits as long as `restart` for it, and as long as `decision` for each answer.
fn signer_within(restart: Duration, decision: Duration) -> Result<PacketSocket, ConnectError> {
    let signer = connect_to(Path::new(paths::SIGNER_APPLICATIONS), patience(restart))
        .map_err(ConnectError::NoSigner)?;
    set_socket_timeout(&signer, Timeout::Recv, Some(decision))
        .map_err(|error| ConnectError::NoSigner(error.into()))?;
    Ok(signer)
}

/// Connects to a daemon. If its socket is there and the daemon is not, the daemon is being restarted, and the
/// call waits for it.
fn connect_to(path: &Path, mut pause: impl FnMut() -> bool) -> io::Result<PacketSocket> {
    loop {
        match PacketSocket::connect(path) {
            Err(error) if is_refused(&error) && pause() => {}
            outcome => return outcome,
        }
    }
}

/// Makes a socket and asks the signer to announce it, for the user of a local connection if there is one.
fn announce(
    signer: &PacketSocket,
    request: &LocalRequest,
    local: Option<BorrowedFd<'_>>,
) -> Result<(OwnedFd, LocalReply), ConnectError> {
    let socket = socket_to_announce().map_err(ConnectError::Connect)?;
    let descriptors: Vec<_> = [socket.as_fd()].into_iter().chain(local).collect();
    signer
        .send(&request.encode(), &descriptors)
        .map_err(ConnectError::NoSigner)?;
    let answer = receive(signer)?;
    Ok((socket, answer))
}

/// Connects according to the signer's answer.
fn finish(
    signer: &PacketSocket,
    socket: OwnedFd,
    answer: LocalReply,
    tried: &Tried,
) -> Result<TcpStream, ConnectError> {
    let server = match answer {
        LocalReply::Ready { server } => server,
        LocalReply::Refused(refusal) => return Err(ConnectError::Refused(refusal)),
        LocalReply::Finished
        | LocalReply::Ticket { .. }
        | LocalReply::Owner { .. }
        | LocalReply::Ended(_) => {
            return Err(ConnectError::Protocol);
        }
    };
    let is_last = tried.has(server);
    let connected = if is_last {
        // The signer has no other address.
        Err(tried.error())
    } else {
        reachable_by(&socket, server)
            .and_then(|server| establish_within(&socket, server, ANNOUNCED))
            .map_err(ConnectError::Connect)
    };
    // Sent in either case: the signer then releases the port.
    let done = match &connected {
        Err(ConnectError::Connect(error)) if tried.note(server, error) => LocalRequest::Unreachable,
        connected => LocalRequest::Done {
            connected: connected.is_ok(),
        },
    };
    let told = signer.send(&done.encode(), &[]);
    if done == LocalRequest::Unreachable {
        // The signer names another address once it has answered. An error means that the signer has gone.
        drop(receive(signer));
    }
    connected?;
    // A signer that has just ended has released the port by that.
    drop(told);
    Ok(socket.into())
}

fn receive(signer: &PacketSocket) -> Result<LocalReply, ConnectError> {
    let packet = signer
        .receive(MAX_LOCAL_PACKET)
        .map_err(ConnectError::NoSigner)?;
    if packet.bytes.is_empty() {
        return Err(ConnectError::NoSigner(io::ErrorKind::UnexpectedEof.into()));
    }
    LocalReply::decode(&packet.bytes).map_err(|_| ConnectError::Protocol)
}

/// A socket to be announced, by which the signer recognizes the calling program.
fn socket_to_announce() -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    // If the kernel refuses this and the policy needs it, the signer refuses too, with the reason.
    let told = tell_program(socket.as_fd());
    drop(told);
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use usher_daemon::packet::{Connectable, Senders, listen};

    use super::*;

    #[test]
    fn a_daemon_that_is_being_restarted_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signer.sock");
        let bind = || {
            let (senders, connectable) = (Senders::Untold, Connectable::ByEverybody);
            listen(&path, senders, connectable).unwrap()
        };
        // The socket of a daemon that has ended.
        drop(bind());
        let gone = connect_to(&path, || false).unwrap_err();
        assert!(is_refused(&gone), "{gone}");
        let mut pauses = 0;
        let mut next = None;
        connect_to(&path, || {
            pauses += 1;
            if pauses == 3 {
                next = Some(bind());
            }
            true
        })
        .unwrap();
        drop(next);
        assert_eq!(pauses, 3);
        // A daemon that never ran is not waited for.
        let never = connect_to(&folder.path().join("other"), || panic!("waits"));
        assert_eq!(never.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
