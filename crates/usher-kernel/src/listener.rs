//! A user's listener: what the admitted connections of one user at one service wait in.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV6};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::KernelError;

/// How many addresses are tried for a listener before the port counts as taken.
const CANDIDATES: u32 = 64;

/// The address a listener is bound to, if no other has it: of the reserved block 240.0.0.0/4
/// (RFC 1112), with the low bits of the service's id and the user's. No packet is delivered to it,
/// so the listener is reached through admission or not at all, also when the admission programs
/// are gone.
///
/// It is an IPv4 address in IPv6 form because a socket bound to any true IPv6 address but `::`
/// takes no IPv4 connection (inet6_bind), and `::` would be reachable.
#[must_use]
pub fn address(service: u32, uid: u32) -> Ipv4Addr {
    candidate(service, uid, 0)
}

fn candidate(service: u32, uid: u32, number: u32) -> Ipv4Addr {
    let place = ((service & 0xff) << 20 | (uid & 0xf_ffff)).wrapping_add(number);
    Ipv4Addr::from(0xf000_0000 | (place & 0x0fff_ffff))
}

/// Makes the listener of a user at a service. Dual-stack: an `AF_INET6` listener takes IPv4
/// connections as well. Its own port is the service's, so it needs none besides, and programs that
/// ask for their port see the right one. The socket belongs to the user (in socket diagnosis,
/// `ss -e`, and to firewall rules that match an owner).
///
/// # Errors
/// `EADDRINUSE` when something else listens at the port for all addresses; `EAFNOSUPPORT` on a
/// kernel without IPv6; `EPERM` without CAP_SETUID.
pub fn create(service: u32, uid: u32, port: u16, backlog: u32) -> Result<OwnedFd, KernelError> {
    let attempt = |address: Ipv4Addr| -> io::Result<OwnedFd> {
        let socket = socket_of(uid)?;
        sockopt::set_ipv6_v6only(&socket, false)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_ipv6_freebind(&socket, true)?;
        let address = SocketAddrV6::new(address.to_ipv6_mapped(), port, 0, 0);
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    };
    let mut outcome = Err(io::ErrorKind::AddrInUse.into());
    for number in 0..CANDIDATES {
        outcome = attempt(candidate(service, uid, number));
        match &outcome {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            _ => break,
        }
    }
    outcome.map_err(KernelError::system("making a listener"))
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
    fn addresses_are_of_the_reserved_block_and_differ() {
        assert_eq!(address(0, 0), Ipv4Addr::new(240, 0, 0, 0));
        assert_eq!(address(1, 1000), Ipv4Addr::new(240, 16, 3, 232));
        assert_eq!(
            address(u32::MAX, u32::MAX),
            Ipv4Addr::new(255, 255, 255, 255)
        );
        assert_ne!(address(1, 1000), address(2, 1000));
        assert_ne!(address(1, 1000), address(1, 1001));
        // Users whose low bits are the same are told apart by trying the next one.
        assert_eq!(address(1, 1000), address(1, 1000 + (1 << 20)));
        assert_ne!(candidate(1, 1000, 0), candidate(1, 1000, 1));
        assert_eq!(candidate(0xff, 0xf_ffff, 1), Ipv4Addr::new(240, 0, 0, 0));
    }
}
