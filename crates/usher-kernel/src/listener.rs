//! A user's listener: what the admitted connections of one user at one service wait in.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::KernelError;

/// The address a listener is bound to: of the discard-only prefix 100::/64 (RFC 6666), with the
/// service's id and the user's. No packet is delivered to it, so the listener is reached through
/// admission or not at all, also when the admission programs are gone.
#[must_use]
pub fn address(service: u32, uid: u32) -> Ipv6Addr {
    let prefix = 0x0100_u128 << 112;
    Ipv6Addr::from(prefix | u128::from(service) << 32 | u128::from(uid))
}

/// Makes the listener of a user at a service. Dual-stack: an `AF_INET6` listener takes IPv4
/// connections as well. Its own port is the service's, so it needs none besides, and programs that
/// ask for their port see the right one. The socket belongs to the user (in socket diagnosis,
/// `ss -e`, and to firewall rules that match an owner).
///
/// # Errors
/// `EADDRINUSE` when something else listens at the port for all addresses; `EAFNOSUPPORT` on a
/// kernel without IPv6.
pub fn create(service: u32, uid: u32, port: u16, backlog: u32) -> Result<OwnedFd, KernelError> {
    let attempt = || -> io::Result<OwnedFd> {
        let socket = socket_of(uid)?;
        sockopt::set_ipv6_v6only(&socket, false)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_ipv6_freebind(&socket, true)?;
        rustix::net::bind(
            &socket,
            &SocketAddrV6::new(address(service, uid), port, 0, 0),
        )?;
        rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    };
    attempt().map_err(KernelError::system("making a listener"))
}

/// A socket whose owner is `uid`. A socket takes the owner of files that its maker would create,
/// which CAP_SETUID may choose per thread; fchown(2) would take CAP_CHOWN, which is as good as root.
fn socket_of(uid: u32) -> io::Result<OwnedFd> {
    // SAFETY: two system calls with numbers; they change this thread only and do not fail, but
    // answer with the former user, so that a second call tells what the first did.
    let (former, present) = unsafe { (libc::setfsuid(uid), libc::setfsuid(uid)) };
    let socket = if present as u32 == uid {
        rustix::net::socket_with(
            AddressFamily::INET6,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    };
    // SAFETY: as above.
    unsafe { libc::setfsuid(former as u32) };
    socket
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_and_user_has_an_address_of_its_own_in_the_discard_prefix() {
        assert_eq!(address(0, 0), "100::".parse::<Ipv6Addr>().unwrap());
        assert_eq!(
            address(1, 0x3e8),
            "100::1:0:3e8".parse::<Ipv6Addr>().unwrap()
        );
        assert_eq!(
            address(u32::MAX, u32::MAX),
            "100::ffff:ffff:ffff:ffff".parse::<Ipv6Addr>().unwrap()
        );
    }
}
