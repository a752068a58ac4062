//! Connecting as the local user: the signer announces the connection, then it is made as any
//! other.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use usher_local::packet::PacketSocket;
use usher_local::paths;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};
use usher_proto::name::{HostName, ServiceName};
use usher_proto::refusal::Refusal;

use crate::token::draw_token;

mod tickets;

/// How long the signer and the server may take to decide. They decide in milliseconds; this much
/// is for a daemon that is being restarted or a host that does not answer.
const DECISION: Duration = Duration::from_secs(30);
/// How long a connection with a token may take before it is announced instead: something on the way
/// may drop SYNs with options that it does not know.
const TOKEN: Duration = Duration::from_secs(3);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The signer or the server refused.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The signer of this host does not run.
    #[error("the signer of this host does not answer ({0}); is usher-signer.service running?")]
    NoSigner(io::Error),
    /// The signer answered what is no answer.
    #[error(
        "the signer's answer is not understood; are the library and the daemon of one version?"
    )]
    Protocol,
    /// The connection itself failed although it was admitted.
    #[error("connecting: {0}")]
    Connect(io::Error),
}

impl ConnectError {
    /// The errno(3) value of the C interface.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => match refusal {
                Refusal::UnknownHost => libc::EHOSTUNREACH,
                Refusal::Overloaded => libc::EAGAIN,
                Refusal::VerifierUnavailable
                | Refusal::KeeperUnavailable
                | Refusal::SignerUnavailable => libc::ENETUNREACH,
                Refusal::NoPrivateKey => libc::ENOKEY,
                _ => libc::EACCES,
            },
            Self::NoSigner(_) => libc::ENETDOWN,
            Self::Protocol => libc::EPROTO,
            Self::Connect(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Connects to `service` on `host` as the user this process runs as.
///
/// Blocks until the connection is established. The socket is an ordinary TCP socket with
/// close-on-exec set; where the kernel has IPv6 it is an `AF_INET6` socket also for an IPv4 peer,
/// whose address then shows as `::ffff:a.b.c.d`.
///
/// # Errors
/// See [`ConnectError`]. Nothing is left behind on either host.
pub fn connect_by_user(host: &HostName, service: &ServiceName) -> Result<TcpStream, ConnectError> {
    // The kernel draws for the real user, the signer's word is for the effective one.
    let draws = rustix::process::getuid() == rustix::process::geteuid();
    if draws && let Some(connected) = tickets::connect(host, service) {
        return Ok(connected);
    }
    let (host, service) = (host.clone(), service.clone());
    let signer = signer()?;
    let mut socket = stream_socket().map_err(ConnectError::Connect)?;
    let request = if draws {
        LocalRequest::ConnectWithTicket {
            host: host.clone(),
            service: service.clone(),
        }
    } else {
        LocalRequest::Connect {
            host: host.clone(),
            service: service.clone(),
        }
    };
    let mut answer = ask(&signer, &request, &[socket.as_fd()])?;
    if let LocalReply::Ticket { server } = answer {
        match establish_with_token(&socket, server) {
            Ok(()) => {
                tickets::remember(host, service, server);
                return Ok(socket.into());
            }
            // Of no use here: announced as ever.
            Err(_) => {
                socket = stream_socket().map_err(ConnectError::Connect)?;
                let announced = LocalRequest::Connect { host, service };
                answer = ask(&signer, &announced, &[socket.as_fd()])?;
            }
        }
    }
    finish(&signer, socket, answer)
}

/// As [`connect_by_user`], for the user at the other end of `local`, a loopback connection this
/// process has accepted. For the client proxy: the signer takes it from the proxy's account only,
/// and asks the kernel whose connection it is.
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
    let signer = signer()?;
    let socket = stream_socket().map_err(ConnectError::Connect)?;
    let answer = ask(&signer, &request, &[socket.as_fd(), local])?;
    finish(&signer, socket, answer)
}

fn signer() -> Result<PacketSocket, ConnectError> {
    let signer = PacketSocket::connect(Path::new(paths::SIGNER_APPLICATIONS))
        .map_err(ConnectError::NoSigner)?;
    set_socket_timeout(&signer, Timeout::Recv, Some(DECISION))
        .map_err(|error| ConnectError::NoSigner(error.into()))?;
    Ok(signer)
}

fn ask(
    signer: &PacketSocket,
    request: &LocalRequest,
    descriptors: &[BorrowedFd<'_>],
) -> Result<LocalReply, ConnectError> {
    signer
        .send(&request.encode(), descriptors)
        .map_err(ConnectError::NoSigner)?;
    receive(signer)
}

/// Connects as the signer has answered.
fn finish(
    signer: &PacketSocket,
    socket: OwnedFd,
    answer: LocalReply,
) -> Result<TcpStream, ConnectError> {
    let server = match answer {
        LocalReply::Ready { server } => server,
        LocalReply::Refused(refusal) => return Err(ConnectError::Refused(refusal)),
        LocalReply::Finished | LocalReply::Ticket { .. } => return Err(ConnectError::Protocol),
    };
    // Told in either case: the signer then lets go of the port.
    let connected = establish(&socket, server);
    let done = LocalRequest::Done {
        connected: connected.is_ok(),
    };
    let told = signer.send(&done.encode(), &[]);
    connected.map_err(ConnectError::Connect)?;
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

/// A socket that reaches both families where the kernel has both.
fn stream_socket() -> io::Result<OwnedFd> {
    let socket =
        |family| rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    match socket(AddressFamily::INET6) {
        Ok(socket) => {
            rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
            Ok(socket)
        }
        Err(rustix::io::Errno::AFNOSUPPORT) => Ok(socket(AddressFamily::INET)?),
        Err(error) => Err(error.into()),
    }
}

/// Connects with a token of the user's ticket for this address.
fn establish_with_token(socket: &OwnedFd, server: SocketAddr) -> io::Result<()> {
    draw_token(socket.as_fd(), server)?;
    set_socket_timeout(socket, Timeout::Send, Some(TOKEN))?;
    establish(socket, server)?;
    Ok(set_socket_timeout(socket, Timeout::Send, None)?)
}

/// connect(2), going on after a signal as POSIX says it does by itself.
fn establish(socket: &OwnedFd, server: SocketAddr) -> io::Result<()> {
    let is_v6 = rustix::net::sockopt::socket_domain(socket)? == AddressFamily::INET6;
    let server = match server.ip() {
        std::net::IpAddr::V4(ip) if is_v6 => (ip.to_ipv6_mapped(), server.port()).into(),
        _ => server,
    };
    match rustix::net::connect(socket, &server) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INTR) => {
            let mut waiting = [rustix::event::PollFd::new(
                socket,
                rustix::event::PollFlags::OUT,
            )];
            while rustix::event::poll(&mut waiting, None) == Err(rustix::io::Errno::INTR) {}
            rustix::net::sockopt::socket_error(socket)?.map_err(io::Error::from)
        }
        Err(error) => Err(error.into()),
    }
}
