//! A user's listener, in which the admitted connections of one user at one service wait.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::unistd::{Uid, setfsuid};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::KernelError;

/// The number of addresses to try for one listener; two (service, user) pairs share their first address about
/// once in 2^28.
const ATTEMPTS: u32 = 4;

/// An address for a listener, chosen by service and user from 240.0.0.0/4, which is reserved and unused
/// (RFC 1112, section 4). No packet is delivered to it, so only admission reaches the listener, even
/// when the admission programs are gone.
///
/// It is an IPv4 address, used as IPv4-mapped, because a socket bound to a true IPv6 address
/// becomes IPv6-only (`__inet6_bind`), and one bound to all addresses could be reached.
#[must_use]
pub fn listener_address(service: u32, uid: u32, attempt: u32) -> Ipv4Addr {
    // SplitMix64's finalizer spreads neighbours. There is no secret and no attacker here: the
    // administrator chooses uid and service.
    let mut mixed = u64::from(service) << 32 | u64::from(uid);
    mixed = mixed.wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // Only 255.255.255.255 is in use: it is the broadcast address.
    let low = (mixed & 0x0fff_ffff).min(0x0fff_fffe);
    Ipv4Addr::from_bits(0xf000_0000 | u32::try_from(low).unwrap_or_default())
}

/// Makes the listener of a user at a service. Dual-stack: an `AF_INET6` listener accepts IPv4 connections as
/// well. Its own port is the service's if that is free, so that programs that ask for their port see the
/// right one. If another socket listens there for all addresses, or with `port` 0, it is any other port, by
/// which nothing reaches the listener. The socket belongs to the user (in socket diagnosis, `ss -e`, and to
/// firewall rules that match an owner).
///
/// # Errors
/// `EAFNOSUPPORT` on a kernel without IPv6; `EPERM` without CAP_SETUID.
pub fn create(service: u32, uid: u32, port: u16, backlog: u32) -> Result<OwnedFd, KernelError> {
    let attempt = |attempt, port| -> rustix::io::Result<OwnedFd> {
        let socket = socket_of(uid)?;
        sockopt::set_ipv6_v6only(&socket, false)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_ipv6_freebind(&socket, true)?;
        let address = listener_address(service, uid, attempt).to_ipv6_mapped();
        rustix::net::bind(&socket, &SocketAddrV6::new(address, port, 0, 0))?;
        rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    };
    let mut result = attempt(0, port);
    for number in 1..ATTEMPTS {
        if matches!(result, Err(Errno::ADDRINUSE)) {
            result = attempt(number, port);
        }
    }
    if matches!(result, Err(Errno::ADDRINUSE)) {
        result = attempt(0, 0);
    }
    result.map_err(KernelError::system("make a listener"))
}

/// A socket owned by `uid`. A socket gets the owner that new files of its maker would have, which
/// CAP_SETUID may choose per thread; fchown(2) would need CAP_CHOWN, which is equivalent to root.
fn socket_of(uid: u32) -> rustix::io::Result<OwnedFd> {
    let user = Uid::from_raw(uid);
    // Each call changes only this thread and does not fail. It returns the former user, so the second call
    // shows whether the first has changed it.
    let (former, present) = (setfsuid(user), setfsuid(user));
    let socket = if present == user {
        rustix::net::socket_with(
            AddressFamily::INET6,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
    } else {
        Err(Errno::PERM)
    };
    setfsuid(former);
    socket
}

/// The probes that a silent peer gets before its connection ends.
pub const PROBES: u8 = 5;

/// Ends connections of this listener whose peer has answered nothing for `silence`: half of that idle, then
/// [`PROBES`] probes. Accepted connections inherit the setting (tcp(7)); existing ones keep theirs. Linux
/// sends no probe while the peer owes an ACK for data (tcp_keepalive_timer): the keeper looks for those
/// connections.
///
/// # Errors
/// As setsockopt(2): `EINVAL` for a time of more than 18 h.
pub fn keep_alive(listener: BorrowedFd<'_>, silence: Duration) -> Result<(), KernelError> {
    let interval = Duration::from_secs((silence.as_secs() / 2 / u64::from(PROBES)).max(1));
    let idle = silence.saturating_sub(interval * u32::from(PROBES));
    sockopt::set_tcp_keepidle(listener, idle)
        .and_then(|()| sockopt::set_tcp_keepintvl(listener, interval))
        .and_then(|()| sockopt::set_tcp_keepcnt(listener, PROBES.into()))
        .and_then(|()| sockopt::set_socket_keepalive(listener, true))
        .map_err(KernelError::system("set keepalive"))
}

/// Whether a connection waits.
#[must_use]
pub fn has_waiting(listener: BorrowedFd<'_>) -> bool {
    let mut poll = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
    let now = rustix::time::Timespec::default();
    // A descriptor that cannot be polled has nothing waiting.
    rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0)
        && poll[0].revents().contains(PollFlags::IN)
}

/// The number of waiting connections.
///
/// # Errors
/// As getsockopt(2).
pub fn waiting(listener: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: numbers only, for which all zeros is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: a structure of plain numbers of the given size, which the kernel fills in part.
    let code = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    // For a listener, this is the length of its queue (tcp_get_info).
    Ok(info.tcpi_unacked)
}

/// Closes a listener for all holders: waiting connections are reset, a handshake under way is not
/// completed, and accepting from it fails (`EINVAL`).
///
/// # Errors
/// When the kernel refuses. A listener that is already closed is no error.
pub fn close(listener: BorrowedFd<'_>) -> Result<(), KernelError> {
    match rustix::net::shutdown(listener, Shutdown::Read) {
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(KernelError::system("close a listener")(error)),
    }
}

/// Makes a closed listener ([`close`]) listen again; one that listens continues. The socket is the same:
/// its owner, its place in the tables and all its duplicates stay valid.
pub fn reopen(listener: BorrowedFd<'_>, backlog: u32) -> Result<(), KernelError> {
    rustix::net::listen(listener, i32::try_from(backlog).unwrap_or(i32::MAX))
        .map_err(KernelError::system("listen again"))
}

/// Resets all waiting connections, even those whose clients are gone. Connections that arrive while this
/// runs are refused as well.
///
/// # Errors
/// When the kernel refuses; nothing can then be accepted from the listener.
pub fn refuse_waiting(listener: BorrowedFd<'_>, backlog: u32) -> Result<(), KernelError> {
    close(listener)?;
    reopen(listener, backlog)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reserved_ones_and_neighbours_differ() {
        let mut seen = std::collections::HashSet::new();
        for service in 0..10 {
            for uid in 1000..2000 {
                let address = listener_address(service, uid, 0);
                assert!(address.octets()[0] >= 240 && address != Ipv4Addr::BROADCAST);
                assert!(seen.insert(address), "{address}");
            }
        }
        assert_ne!(listener_address(1, 1000, 0), listener_address(1, 1000, 1));
    }

    #[test]
    fn what_waits_is_reset_and_what_comes_later_is_accepted() {
        use std::io::Read;
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::AsFd;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Asks for the port each time: it changes when the socket listens again.
        let connect = || TcpStream::connect(listener.local_addr().unwrap());
        let mut refused = connect().unwrap();
        drop(connect().unwrap());
        assert_eq!(waiting(listener.as_fd()).unwrap(), 2);
        refuse_waiting(listener.as_fd(), 16).unwrap();
        assert_eq!(waiting(listener.as_fd()).unwrap(), 0);
        let error = refused.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

        let _served = connect().unwrap();
        listener.accept().unwrap();
        close(listener.as_fd()).unwrap();
        close(listener.as_fd()).unwrap();
        listener.accept().unwrap_err();
        connect().unwrap_err();
        reopen(listener.as_fd(), 16).unwrap();
        reopen(listener.as_fd(), 16).unwrap();
        let _served = connect().unwrap();
        listener.accept().unwrap();
    }
}
