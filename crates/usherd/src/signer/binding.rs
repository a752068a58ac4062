//! Binds the socket of a caller to the address that is announced to the server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use usher_base::ConnectionTuple;
use usher_proto::refusal::Refusal;
use usher_system::namespace;

/// The number of ports to try before the kernel chooses one.
const PORTS_TRIED: usize = 16;

/// Binds the socket, which has to be in this `network`, to the address it will come from and to a port
/// that no other socket has. `addresses`: the other host's, in the order in which to try them. `own`: this
/// host's addresses by its policy, one of which the other host expects; none if the policy does not have this
/// host. `is_taken`: these endpoints are announced already, or may be.
pub fn bind(
    network: u64,
    socket: &OwnedFd,
    addresses: &[IpAddr],
    own: &[IpAddr],
    port: u16,
    is_taken: &impl Fn(&ConnectionTuple) -> bool,
) -> Result<ConnectionTuple, Refusal> {
    let malformed = |_| Refusal::Malformed;
    if !is_of_this_network(network, socket)? {
        // In another network namespace, address and port belong to another host, whatever they look like.
        return Err(Refusal::Malformed);
    }
    let family = sockopt::socket_domain(socket).map_err(malformed)?;
    let stream = sockopt::socket_type(socket).map_err(malformed)? == SocketType::STREAM;
    let reusable = sockopt::socket_reuseaddr(socket).map_err(malformed)?
        || sockopt::socket_reuseport(socket).map_err(malformed)?;
    let fresh = rustix::net::getpeername(socket) == Err(rustix::io::Errno::NOTCONN);
    if !stream
        || !fresh
        || reusable
        || ![AddressFamily::INET, AddressFamily::INET6].contains(&family)
    {
        // With SO_REUSEADDR or SO_REUSEPORT another process could share the announced port.
        return Err(Refusal::Malformed);
    }
    let dual_stack = family == AddressFamily::INET6;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for ip in addresses {
        if ip.is_ipv6() && !dual_stack {
            continue;
        }
        let server = SocketAddr::new(*ip, port);
        match bind_towards(socket.as_fd(), server, own, dual_stack, is_taken) {
            Ok(client) => return Ok(ConnectionTuple { client, server }),
            Err(error) => last = error,
        }
        // A socket can be bound only once, and the port that it got belongs to another connection.
        if is_bound(socket) {
            break;
        }
    }
    tracing::info!(?addresses, error = %last, "no way to the host");
    Err(Refusal::VerifierUnavailable)
}

/// Whether the socket has a port.
fn is_bound(socket: &OwnedFd) -> bool {
    address(rustix::net::getsockname(socket)).is_none_or(|address| address.port() != 0)
}

/// Whether the socket is in the network namespace of this process, whose addresses and ports are
/// announced to the server.
fn is_of_this_network(network: u64, socket: &OwnedFd) -> Result<bool, Refusal> {
    // Only a socket has a network namespace.
    let its = namespace::network_of(socket).map_err(|_| Refusal::Malformed)?;
    Ok(its == network)
}

/// Binds the socket to an explicit port: if the kernel has chosen a socket's port, the socket loses it
/// when connecting fails, even if there is a duplicate.
fn bind_towards(
    socket: BorrowedFd<'_>,
    server: SocketAddr,
    own: &[IpAddr],
    dual_stack: bool,
    is_taken: &impl Fn(&ConnectionTuple) -> bool,
) -> io::Result<SocketAddr> {
    let is_taken = |client| is_taken(&ConnectionTuple { client, server });
    for _ in 0..PORTS_TRIED {
        let source = source_for(server, own)?;
        if is_taken(source) {
            continue;
        }
        match bind_to(socket, source, dual_stack) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            outcome => return outcome,
        }
    }
    // Nearly all ports are taken: let the kernel find a free one.
    let source = SocketAddr::new(source_for(server, own)?.ip(), 0);
    let client = bind_to(socket, source, dual_stack)?;
    if is_taken(client) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(client)
}

/// The source address that the kernel's routing chooses, and a port from its range. If this address is not in
/// `own` (a temporary IPv6 address, RFC 8981), the first of `own` with a route there is used. If none has a
/// route, the kernel's choice stays: the policy may have an address that a NAT gives this host.
fn source_for(server: SocketAddr, own: &[IpAddr]) -> io::Result<SocketAddr> {
    let by_kernel = source_from(None, server)?;
    if own.contains(&by_kernel.ip()) {
        return Ok(by_kernel);
    }
    let mut others = own
        .iter()
        .filter(|address| address.is_ipv4() == server.is_ipv4());
    // Addresses that are not this host's drop out: they cannot be bound.
    let other = others.find_map(|address| source_from(Some(*address), server).ok());
    Ok(other.unwrap_or(by_kernel))
}

/// Finds a source address and port by connect(2) on a datagram socket, which sends nothing.
fn source_from(own: Option<IpAddr>, server: SocketAddr) -> io::Result<SocketAddr> {
    let family = if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if let Some(own) = own {
        rustix::net::bind(&probe, &SocketAddr::new(own, 0))?;
    }
    rustix::net::connect(&probe, &server)?;
    let local = SocketAddr::try_from(rustix::net::getsockname(&probe)?)?;
    Ok(SocketAddr::new(local.ip(), local.port()))
}

fn bind_to(socket: BorrowedFd<'_>, source: SocketAddr, dual_stack: bool) -> io::Result<SocketAddr> {
    let wanted = match source.ip() {
        IpAddr::V4(ip) if dual_stack => SocketAddr::from((ip.to_ipv6_mapped(), source.port())),
        _ => source,
    };
    // This fails if an earlier attempt of the loop, or the caller, has bound the socket. It must fail: the
    // announced address has to be the one chosen here.
    rustix::net::bind(socket, &wanted)?;
    address(rustix::net::getsockname(socket)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// An internet address, with an IPv4-mapped one as IPv4.
pub fn address(found: Result<rustix::net::SocketAddrAny, rustix::io::Errno>) -> Option<SocketAddr> {
    let found = SocketAddr::try_from(found.ok()?).ok()?;
    Some(SocketAddr::new(found.ip().to_canonical(), found.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn tcp(family: AddressFamily) -> OwnedFd {
        rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn own_network() -> u64 {
        namespace::own_network().unwrap()
    }

    #[test]
    fn a_socket_gets_an_address_of_its_own() {
        let v4 = [Ipv4Addr::LOCALHOST.into()];
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let socket = tcp(family);
            let connection = bind(own_network(), &socket, &v4, &[], 143, &|_| false).unwrap();
            assert_eq!(connection.client.ip(), Ipv4Addr::LOCALHOST);
            assert_ne!(connection.client.port(), 0);
            assert_eq!(connection.server, SocketAddr::from(([127, 0, 0, 1], 143)));
        }
    }

    #[test]
    fn the_policys_own_address_is_preferred_to_the_kernels() {
        // All of 127.0.0.0/8 is this host's; the kernel chooses 127.0.0.1.
        let v4 = [Ipv4Addr::LOCALHOST.into()];
        let (second, foreign) = ([127, 0, 0, 2].into(), [192, 0, 2, 1].into());
        let from = |own: &[IpAddr]| {
            let socket = tcp(AddressFamily::INET6);
            let bound = bind(own_network(), &socket, &v4, own, 143, &|_| false);
            bound.unwrap().client.ip()
        };
        assert_eq!(from(&[foreign, second]), second);
        assert_eq!(
            from(&[second, Ipv4Addr::LOCALHOST.into()]),
            Ipv4Addr::LOCALHOST
        );
        assert_eq!(
            from(&[foreign, Ipv6Addr::LOCALHOST.into()]),
            Ipv4Addr::LOCALHOST
        );
    }

    #[test]
    fn a_duplicate_holds_the_port_after_a_failed_connect() {
        let v4 = [Ipv4Addr::LOCALHOST.into()];
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let socket = tcp(family);
            let bound = bind(own_network(), &socket, &v4, &[], 1, &|_| false)
                .unwrap()
                .client;
            let duplicate = socket.try_clone().unwrap();
            // A connection to itself would not fail, but nothing listens at port 1.
            let nobody = match family {
                AddressFamily::INET => SocketAddr::from(([127, 0, 0, 1], 1)),
                _ => (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 1).into(),
            };
            rustix::net::connect(&socket, &nobody).unwrap_err();
            drop(socket);
            let taken = rustix::net::bind(tcp(AddressFamily::INET), &bound);
            assert_eq!(taken, Err(rustix::io::Errno::ADDRINUSE));
            drop(duplicate);
        }
    }

    #[test]
    fn a_socket_whose_port_could_be_shared_is_refused() {
        let v6 = [Ipv6Addr::LOCALHOST.into()];
        assert!(
            bind(
                own_network(),
                &tcp(AddressFamily::INET6),
                &v6,
                &[],
                143,
                &|_| { false }
            )
            .is_ok()
        );
        let shared = tcp(AddressFamily::INET6);
        sockopt::set_socket_reuseport(&shared, true).unwrap();
        assert_eq!(
            bind(own_network(), &shared, &v6, &[], 143, &|_| false),
            Err(Refusal::Malformed)
        );
        let shared = tcp(AddressFamily::INET6);
        sockopt::set_socket_reuseaddr(&shared, true).unwrap();
        assert_eq!(
            bind(own_network(), &shared, &v6, &[], 143, &|_| false),
            Err(Refusal::Malformed)
        );
    }

    #[test]
    fn what_is_no_fresh_tcp_socket_is_refused() {
        let v4 = [Ipv4Addr::LOCALHOST.into()];
        let datagram = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        assert_eq!(
            bind(own_network(), &datagram, &v4, &[], 143, &|_| false),
            Err(Refusal::Malformed)
        );
        let bound = tcp(AddressFamily::INET);
        rustix::net::bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        assert!(bind(own_network(), &bound, &v4, &[], 143, &|_| false).is_err());
    }
}
