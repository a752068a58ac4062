//! Connects as the local user: the signer announces the connection, then it is made like any other.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use usher_base::{HostName, ServiceName};
use usher_daemon::packet::PacketSocket;
use usher_local::paths;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};
use usher_proto::program_end::ProgramEnd;
use usher_proto::refusal::Refusal;

use crate::token::{draw_token, prefer_lasting_source, tell_program};

mod tickets;

/// How long the signer and the server may take to decide. That takes milliseconds; the rest is for a person
/// who touches a security key, a daemon that restarts or a host that does not answer.
const DECISION: Duration = Duration::from_secs(60);
/// How long a connection with a token may take before it is announced instead: a router on the way may drop
/// SYNs with options that it does not know.
const TOKEN: Duration = Duration::from_secs(3);

/// How long a daemon is waited for that is being restarted, and the pauses between attempts: doubled from the
/// first to the longest, because an attempt at another host takes an element of the user's hash chain.
const RESTART: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(640));

/// How long the signer may take to say how a program has ended. It waits for a second itself.
const REPORT: Duration = Duration::from_secs(3);

/// How long an announced connection may take: as long as its announcement lives on the server, which
/// refuses it afterwards.
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
        /// The addresses, and why not, for people.
        ways: String,
        /// The errno(3) value of the last one.
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
                // Over in seconds: nothing that a policy, a key or an account decides.
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
    // The kernel draws tokens for the real user, the signer answers the effective one.
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

/// The addresses to which there was no way, each with the reason.
#[derive(Default)]
struct Tried(RefCell<Vec<(SocketAddr, Errno)>>);

impl Tried {
    fn has(&self, server: SocketAddr) -> bool {
        self.0.borrow().iter().any(|(tried, _)| *tried == server)
    }

    /// Notes the address if this error means that there is no way to it. Returns whether it does.
    fn note(&self, server: SocketAddr, error: &io::Error) -> bool {
        let no_way = no_way(error);
        self.0
            .borrow_mut()
            .extend(no_way.map(|errno| (server, errno)));
        no_way.is_some()
    }

    fn error(&self) -> ConnectError {
        let tried = self.0.borrow();
        let ways = tried
            .iter()
            .map(|(server, errno)| format!("{server} ({})", io::Error::from(*errno)));
        let last = tried.last().map_or(Errno::HOSTUNREACH, |(_, errno)| *errno);
        ConnectError::Unreachable {
            ways: ways.collect::<Vec<_>>().join(", "),
            errno: last.raw_os_error(),
        }
    }
}

/// Waits for a listener of the server, or the signer, that is being restarted: a granted connection that is
/// refused is announced and tried again, and so is a request at which the signer has gone. Nothing was sent to
/// the service then. `pause` waits, and returns whether there may be another attempt. After an address without
/// a way the signer names another one, until it has no more.
fn outlast_restart<T>(
    first: Result<T, ConnectError>,
    again: impl Fn() -> Result<T, ConnectError>,
    mut pause: impl FnMut() -> bool,
) -> Result<T, ConnectError> {
    let mut outcome = first;
    loop {
        let failed = match outcome {
            Err(ConnectError::Connect(error)) if is_refused(&error) => ConnectError::NotListening,
            Err(ConnectError::Connect(error)) if no_way(&error).is_some() => {
                outcome = again();
                continue;
            }
            Err(ConnectError::NoSigner(error)) if has_gone(&error) => ConnectError::NoSigner(error),
            outcome => return outcome,
        };
        if !pause() {
            return Err(failed);
        }
        outcome = again();
    }
}

/// The error of a conversation whose other end has ended.
fn has_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// The error that means that there is no way to an address, or that it is silent.
fn no_way(error: &io::Error) -> Option<Errno> {
    if error.raw_os_error().is_none() && error.kind() == io::ErrorKind::TimedOut {
        return Some(Errno::TIMEDOUT);
    }
    let errno = Errno::from_raw_os_error(error.raw_os_error()?);
    [
        Errno::TIMEDOUT,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
    ]
    .contains(&errno)
    .then_some(errno)
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// Pauses between attempts, for this long in all.
fn patience(limit: Duration) -> impl FnMut() -> bool {
    let until = Instant::now() + limit;
    let mut next = RETRY.0;
    move || {
        let has_time = Instant::now() + next < until;
        if has_time {
            std::thread::sleep(next);
            next = (next * 2).min(RETRY.1);
        }
        has_time
    }
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
/// failed, so no other is tried there.
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
            // The ticket is used up for now, or not for this process. The network is not at fault, so
            // the signer need not know.
            Err(TokenError::Draw) => {
                drop(signer);
                return connect_announced(host, service, tried);
            }
            // Asked again in the same conversation: the signer then issues no tickets for a while.
            Err(TokenError::Connect) => {
                let announced = LocalRequest::Connect { host, service };
                (socket, answer) = announce(&signer, &announced, None)?;
            }
        }
    }
    finish(&signer, socket, answer, tried)
}

/// As [`connect_by_user`], for the user at the other end of `local`, a loopback connection that this process
/// has accepted. For the client proxy: the signer takes this from the proxy's account only, and asks the
/// kernel for the connection's user.
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

/// How the service's program for a connection of the calling user has ended, if it ended at once and has
/// failed, and the server says so. For a connection that has ended before anything has come from it; `client`
/// is this host's end. The signer waits for the server's report for up to a second.
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

/// The signer, which is waited for as long as `restart` and may take as long as `decision`.
fn signer_within(restart: Duration, decision: Duration) -> Result<PacketSocket, ConnectError> {
    let signer = connect_to(Path::new(paths::SIGNER_APPLICATIONS), patience(restart))
        .map_err(ConnectError::NoSigner)?;
    set_socket_timeout(&signer, Timeout::Recv, Some(decision))
        .map_err(|error| ConnectError::NoSigner(error.into()))?;
    Ok(signer)
}

/// Connects to a daemon. If its socket is there and the daemon is not, another one replaces it: that is waited
/// for.
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
        // Once it has answered, or has gone, it names another address.
        drop(receive(signer));
    }
    connected?;
    // A signer that has gone in this instant has let go of the port by itself.
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

/// A socket to the signer, by which it recognizes the calling program.
fn socket_to_announce() -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    // If the kernel refuses it and it matters, the signer refuses too, with the reason.
    let told = tell_program(socket.as_fd());
    drop(told);
    Ok(socket)
}

/// A socket for both families, if the kernel has both.
fn stream_socket() -> io::Result<OwnedFd> {
    match socket_of(AddressFamily::INET6) {
        Ok(socket) => {
            rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
            Ok(socket)
        }
        Err(rustix::io::Errno::AFNOSUPPORT) => Ok(socket_of(AddressFamily::INET)?),
        Err(error) => Err(error.into()),
    }
}

fn socket_of(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

fn family_of(server: SocketAddr) -> AddressFamily {
    match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// A failed connection with a token.
enum TokenError {
    /// No token was available; nothing was sent.
    Draw,
    /// It was not taken, or there is no way.
    Connect,
}

/// Connects with a token of the user's ticket for this address. Each system call counts here: this is
/// the way of all connections after a user's first. The address is known, so that the socket can be
/// of its family.
fn establish_with_token(server: SocketAddr) -> Result<TcpStream, TokenError> {
    let socket = socket_of(family_of(server)).map_err(|_| TokenError::Draw)?;
    if server.is_ipv6() {
        prefer_lasting_source(socket.as_fd()).map_err(|_| TokenError::Draw)?;
    }
    draw_token(socket.as_fd(), server).map_err(|_| TokenError::Draw)?;
    establish_within(&socket, server, TOKEN).map_err(|_| TokenError::Connect)?;
    Ok(socket.into())
}

/// Connects, or fails with `TimedOut` after this long.
fn establish_within(socket: &OwnedFd, server: SocketAddr, limit: Duration) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Send, Some(limit))?;
    establish(socket, server, limit)?;
    Ok(set_socket_timeout(socket, Timeout::Send, None)?)
}

/// connect(2), going on after a signal as POSIX says it does by itself. `limit`: how long in all, if
/// it is the socket's as well.
fn establish(socket: &OwnedFd, server: SocketAddr, limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    match rustix::net::connect(socket, &server) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INTR) => wait_until_connected(socket, until),
        // The kernel's error at the end of the socket's time.
        Err(rustix::io::Errno::INPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

/// The form of the server's address that a socket of [`stream_socket`] can connect to: an IPv6 socket
/// takes IPv4 addresses as ::ffff:a.b.c.d.
fn reachable_by(socket: &OwnedFd, server: SocketAddr) -> io::Result<SocketAddr> {
    let is_v6 = rustix::net::sockopt::socket_domain(socket)? == AddressFamily::INET6;
    Ok(match server.ip() {
        std::net::IpAddr::V4(ip) if is_v6 => (ip.to_ipv6_mapped(), server.port()).into(),
        _ => server,
    })
}

/// Waits for the end of a connect(2) that is under way.
fn wait_until_connected(socket: &OwnedFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut waiting = [PollFd::new(socket, PollFlags::OUT)];
        match poll(&mut waiting, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(rustix::net::sockopt::socket_error(socket)??),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use usher_daemon::packet::{Connectable, Senders, listen};

    use super::*;

    /// A connection to `server` that is under way.
    fn begin(server: SocketAddr) -> OwnedFd {
        let socket = stream_socket().unwrap();
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        let server = reachable_by(&socket, server).unwrap();
        let begun = rustix::net::connect(&socket, &server);
        assert!(matches!(begun, Ok(()) | Err(rustix::io::Errno::INPROGRESS)));
        socket
    }

    #[test]
    fn a_connection_under_way_is_waited_for_until_the_limit() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let server = listener.local_addr().unwrap();
        wait_until_connected(&begin(server), Instant::now() + ANNOUNCED).unwrap();

        // With nothing accepted, one fits in beside the one above; the next SYN has no answer.
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<OwnedFd> = (0..3).map(|_| begin(server)).collect();
        let last = waiting.last().unwrap();
        let over = wait_until_connected(last, Instant::now()).unwrap_err();
        // Not the kernel's ETIMEDOUT, which comes after minutes.
        assert_eq!(
            (over.kind(), over.raw_os_error()),
            (io::ErrorKind::TimedOut, None)
        );
    }

    #[test]
    fn a_connection_is_given_up_in_time() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let within = |limit| {
            let socket = stream_socket().unwrap();
            let server = reachable_by(&socket, server).unwrap();
            establish_within(&socket, server, limit)
        };
        within(ANNOUNCED).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting: Vec<OwnedFd> = (0..3).map(|_| begin(server)).collect();
        let over = within(Duration::from_millis(1)).unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_daemon_that_is_being_restarted_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signer.sock");
        let bind = || {
            let (senders, connectable) = (Senders::Untold, Connectable::ByEverybody);
            listen(&path, senders, connectable).unwrap()
        };
        // The socket of one that has ended.
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
        // One that never ran is not waited for.
        let never = connect_to(&folder.path().join("other"), || panic!("waits"));
        assert_eq!(never.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_granted_connection_that_is_refused_is_tried_again() {
        // Bound and not listening: no other process can take the port meanwhile.
        let server = socket_of(AddressFamily::INET).unwrap();
        rustix::net::bind(&server, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = rustix::net::getsockname(&server).unwrap();
        let address = SocketAddr::try_from(address).unwrap();
        let attempts = std::cell::Cell::new(0);
        let attempt = || {
            attempts.set(attempts.get() + 1);
            TcpStream::connect(address).map_err(ConnectError::Connect)
        };
        let mut pauses = 0;
        let over = outlast_restart(attempt(), attempt, || {
            pauses += 1;
            pauses < 3
        });
        assert!(matches!(over, Err(ConnectError::NotListening)), "{over:?}");
        assert_eq!((attempts.take(), pauses), (3, 3));
        assert_eq!(ConnectError::NotListening.errno(), libc::EAGAIN);
        let listens = || rustix::net::listen(&server, 1).is_ok();
        outlast_restart(attempt(), attempt, listens).unwrap();
        assert_eq!(attempts.take(), 2);
        // Other failures and refusals are final.
        let refused = || Err::<(), _>(ConnectError::Refused(Refusal::ClientPolicy));
        let attempt = || panic!("tries again");
        let over = outlast_restart(refused(), attempt, || panic!("waits"));
        assert!(matches!(over, Err(ConnectError::Refused(_))), "{over:?}");
    }

    #[test]
    fn a_signer_that_goes_while_it_is_asked_is_asked_again() {
        let gone = || ConnectError::NoSigner(io::ErrorKind::UnexpectedEof.into());
        let attempts = std::cell::Cell::new(0);
        let again = || {
            attempts.set(attempts.get() + 1);
            (attempts.get() == 2).then_some(7).ok_or_else(gone)
        };
        let answered = outlast_restart(again(), again, || true);
        assert_eq!(answered.unwrap(), 7);
        let over = outlast_restart(again(), again, || false);
        assert!(matches!(over, Err(ConnectError::NoSigner(_))), "{over:?}");
        assert_eq!(attempts.get(), 3);
        // One that hangs is not.
        let hangs = || Err::<(), _>(ConnectError::NoSigner(io::ErrorKind::WouldBlock.into()));
        let over = outlast_restart(hangs(), || panic!("tries again"), || panic!("waits"));
        assert!(matches!(over, Err(ConnectError::NoSigner(_))), "{over:?}");
    }

    #[test]
    fn after_an_address_without_a_way_the_next_is_tried() {
        let servers = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| SocketAddr::from((ip, 143)));
        let tried = Tried::default();
        let attempt = |errors: &[(SocketAddr, Errno)]| {
            let errors = std::cell::RefCell::new(errors.iter().copied());
            let again = || {
                let (server, errno) = errors.borrow_mut().next().ok_or_else(|| tried.error())?;
                let error = io::Error::from(errno);
                tried.note(server, &error);
                Err::<(), _>(ConnectError::Connect(error))
            };
            outlast_restart(again(), again, || panic!("waits")).unwrap_err()
        };
        let [first, second] = servers;
        let all = attempt(&[(first, Errno::TIMEDOUT), (second, Errno::HOSTUNREACH)]);
        assert_eq!(all.errno(), libc::EHOSTUNREACH);
        let said = all.to_string();
        for server in servers {
            assert!(
                tried.has(server) && said.contains(&server.to_string()),
                "{said}"
            );
        }
        // An error of this host is the same for each address.
        let own = attempt(&[(first, Errno::PERM), (second, Errno::HOSTUNREACH)]);
        assert_eq!(own.errno(), libc::EPERM);
        assert!(no_way(&io::ErrorKind::TimedOut.into()).is_some());
    }

    #[test]
    fn patience_ends() {
        assert!(!patience(Duration::ZERO)());
        assert!(patience(Duration::from_secs(3600))());
    }

    #[test]
    fn a_connection_that_is_refused_says_so() {
        // Bound and not listening: no other process can take the port meanwhile.
        let closed = stream_socket().unwrap();
        rustix::net::bind(&closed, &SocketAddr::from(([0; 8], 0))).unwrap();
        let bound: SocketAddr = rustix::net::getsockname(&closed)
            .unwrap()
            .try_into()
            .unwrap();
        let socket = stream_socket().unwrap();
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        let server = SocketAddr::from(([127, 0, 0, 1], bound.port()));
        let server = reachable_by(&socket, server).unwrap();
        let begun = rustix::net::connect(&socket, &server).map_err(io::Error::from);
        let ended = begun.or_else(|_| wait_until_connected(&socket, Instant::now() + ANNOUNCED));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
