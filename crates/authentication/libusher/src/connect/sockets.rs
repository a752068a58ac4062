//! Sockets, and connect(2) with a limit.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A socket for both families, if the kernel has both.
pub(super) fn stream_socket() -> io::Result<OwnedFd> {
    match socket_of(AddressFamily::INET6) {
        Ok(socket) => {
            rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
            Ok(socket)
        }
        Err(rustix::io::Errno::AFNOSUPPORT) => Ok(socket_of(AddressFamily::INET)?),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn socket_of(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

pub(super) fn family_of(server: SocketAddr) -> AddressFamily {
    match server {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Connects, or fails with `TimedOut` after this long.
pub(super) fn establish_within(
    socket: &OwnedFd,
    server: SocketAddr,
    limit: Duration,
) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Send, Some(limit))?;
    establish(socket, server, limit)?;
    Ok(set_socket_timeout(socket, Timeout::Send, None)?)
}

/// connect(2). After a signal it waits for the connection, which the kernel continues to make (POSIX).
/// `limit`: how long in all, if that is the socket's limit as well.
pub(super) fn establish(socket: &OwnedFd, server: SocketAddr, limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    match rustix::net::connect(socket, &server) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INTR) => wait_until_connected(socket, until),
        // The kernel returns this at the end of the socket's time limit.
        Err(rustix::io::Errno::INPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

/// The form of the server's address that a socket of [`stream_socket`] can connect to: an IPv6 socket
/// takes IPv4 addresses as ::ffff:a.b.c.d.
pub(super) fn reachable_by(socket: &OwnedFd, server: SocketAddr) -> io::Result<SocketAddr> {
    let is_v6 = rustix::net::sockopt::socket_domain(socket)? == AddressFamily::INET6;
    Ok(match server.ip() {
        std::net::IpAddr::V4(ip) if is_v6 => (ip.to_ipv6_mapped(), server.port()).into(),
        _ => server,
    })
}

/// Waits for the end of a connect(2) that is under way.
pub(super) fn wait_until_connected(socket: &OwnedFd, until: Instant) -> io::Result<()> {
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

    use super::*;
    use crate::connect::ANNOUNCED;

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

        // The queue takes one more connection, and nothing is accepted: the next SYN gets no answer.
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<OwnedFd> = (0..3).map(|_| begin(server)).collect();
        let last = waiting.last().unwrap();
        let over = wait_until_connected(last, Instant::now()).unwrap_err();
        // The library's own limit has ended the attempt: the kernel's ETIMEDOUT comes after minutes.
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
