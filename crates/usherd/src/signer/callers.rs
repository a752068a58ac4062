//! Requests of local callers. The kernel identifies the caller (`SO_PEERCRED`, or for the proxy the
//! owner of the local connection), and the policy decides which services it may reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use usher_base::{ConnectionTuple, HostName, ServiceName, UserName};
use usher_daemon::clock::unix_time;
use usher_daemon::packet::Peer;
use usher_kernel::ticket::ProgramId;
use usher_policy::Host;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_system::namespace;

use super::Signer;
use super::announcement::{announce, withdraw};
use super::closing::suspend;
use super::gates::{self, Gated};
use super::lease::{Lease, Use};
use super::loans;
use super::relay::CONNECT;
use super::sessions::Pair;
use crate::local_callers::{LocalCaller, LocalCallers};

/// Most requests that one user may have under way; the next one is refused with
/// [`Refusal::Overloaded`].
const REQUESTS_PER_USER: usize = 512;
/// How long a caller may take to send its request.
const REQUEST: Duration = Duration::from_secs(5);
/// The number of ports to try before the kernel chooses one.
const PORTS_TRIED: usize = 16;

/// Serves callers.
///
/// # Errors
/// When the reactor cannot take the listener.
pub async fn serve(signer: Arc<Signer>, listener: OwnedFd) -> io::Result<()> {
    let overloaded = LocalReply::Refused(Refusal::Overloaded).encode();
    let callers = LocalCallers::new(listener, REQUESTS_PER_USER, overloaded)?;
    loop {
        let caller = callers.accept().await;
        let signer = Arc::clone(&signer);
        tokio::spawn(async move { serve_one(&signer, caller).await });
    }
}

/// Serves one request, or two: a program whose ticket failed sends another.
async fn serve_one(signer: &Arc<Signer>, mut caller: LocalCaller) {
    let peer = caller.peer;
    let mut patience = REQUEST;
    let mut former_descriptors = 0;
    let mut ticket = None;
    let (asked, socket) = loop {
        let received = tokio::time::timeout(patience, caller.receive(MAX_LOCAL_PACKET)).await;
        let bytes = match received {
            // It has connected by its ticket.
            Ok(Ok(bytes)) if bytes.is_empty() && ticket.is_some() => return,
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return tracing::debug!(uid = peer.uid, %error, "request"),
            Err(_) => return tracing::debug!(uid = peer.uid, "a caller asked nothing"),
        };
        if ticket.is_none() && LocalRequest::decode(&bytes) == Ok(LocalRequest::Lend) {
            return loans::serve(signer, caller).await;
        }
        let descriptors = &caller.descriptors()[former_descriptors..];
        let (asked, socket) = match admit(signer, peer, &bytes, descriptors).await {
            Ok(asked) => asked,
            Err(refusal) => {
                caller.log_refusal(refusal);
                return reply(&caller, &LocalReply::Refused(refusal)).await;
            }
        };
        if let Some((server, number)) = ticket {
            suspend(signer, asked.uid, server, number).await;
        } else if asked.with_ticket
            && let Some((server, number)) = asked.ticket(signer)
        {
            reply(&caller, &LocalReply::Ticket { server }).await;
            ticket = Some((server, number));
            former_descriptors = caller.descriptors().len();
            patience = CONNECT;
            continue;
        }
        break (asked, socket);
    };
    let mut gated = match gated(signer, &asked, socket) {
        Ok(gated) => gated,
        Err(refusal) => return refuse(&caller, &asked, refusal).await,
    };
    let connection = gated.connection;
    match prepare(signer, &asked, socket, &mut gated).await {
        Ok((lease, session)) => {
            let ready = LocalReply::Ready {
                server: connection.server,
            };
            reply(&caller, &ready).await;
            wait_until_done(&mut caller).await;
            // The socket among its descriptors is our duplicate: while it is open no other socket can get
            // its port, so the server must lose the announcement before the duplicate is closed.
            withdraw(signer, &lease.pair, session, connection).await;
        }
        Err(refusal) => refuse(&caller, &asked, refusal).await,
    }
    // A refused connection may be announced nonetheless: no other socket gets the port until that
    // is over.
    gated.lift(signer).await;
}

async fn refuse(caller: &LocalCaller, asked: &Asked, refusal: Refusal) {
    tracing::info!(user = %asked.user, host = %asked.host.name, service = %asked.service,
        reason = refusal.name(), "refused: {refusal}");
    reply(caller, &LocalReply::Refused(refusal)).await;
}

/// A permitted request.
struct Asked {
    uid: u32,
    user: UserName,
    /// Whether the program accepts a ticket.
    with_ticket: bool,
    host: Host,
    service: ServiceName,
    port: u16,
    /// The program that made the socket, if programs are listed.
    program: Option<ProgramId>,
}

impl Asked {
    /// The ticket, if the user's connections to the service carry tokens.
    fn ticket(&self, signer: &Signer) -> Option<(SocketAddr, u32)> {
        self.host.addresses.iter().find_map(|ip| {
            let server = SocketAddr::new(*ip, self.port);
            let number = signer.tickets.number(self.uid, server)?;
            Some((server, number))
        })
    }
}

/// Identifies the caller, and checks its permission.
async fn admit<'a>(
    signer: &Signer,
    peer: Peer,
    bytes: &[u8],
    descriptors: &'a [OwnedFd],
) -> Result<(Asked, &'a OwnedFd), Refusal> {
    let request = LocalRequest::decode(bytes)?;
    let mut descriptors = descriptors.iter();
    let socket = descriptors.next().ok_or(Refusal::Malformed)?;
    let with_ticket = matches!(request, LocalRequest::ConnectWithTicket { .. });
    let (uid, host, service) = match request {
        LocalRequest::Connect { host, service }
        | LocalRequest::ConnectWithTicket { host, service } => (peer.uid, host, service),
        LocalRequest::ConnectOnBehalf { host, service } => {
            let local = descriptors.next().ok_or(Refusal::Malformed)?;
            let uid = owner_at_the_proxy(signer, peer, local, &host, &service)?;
            (uid, host, service)
        }
        LocalRequest::Done { .. } | LocalRequest::Lend => return Err(Refusal::Malformed),
    };
    let user = signer.names.of(uid).await?;
    let configuration = signer.configuration.get();
    let checked = &configuration.checked;
    if checked.disabled.contains(&user) {
        return Err(Refusal::DisabledUser);
    }
    let permitted = checked
        .policy
        .client_permits(&user, &host, &service, unix_time())?;
    let port = permitted.port;
    let program = match permitted.programs.listed() {
        Some(_) => signer.tickets.asker(socket.as_fd())?,
        None => None,
    };
    let programs = &signer.programs;
    programs
        .permit(&signer.tickets, &permitted.programs, program)
        .await?;
    let host = checked
        .policy
        .hosts
        .get(&host)
        .ok_or(Refusal::UnknownHost)?
        .clone();
    Ok((
        Asked {
            uid,
            user,
            with_ticket,
            host,
            service,
            port,
            program,
        },
        socket,
    ))
}

/// The user at the other end of a connection that the proxy has accepted. Accepted only from the proxy,
/// for an address that the policy maps to that host, and only as the kernel reports it: a subverted
/// proxy can speak only for users who are connected to it.
fn owner_at_the_proxy(
    signer: &Signer,
    peer: Peer,
    local: &OwnedFd,
    host: &HostName,
    service: &ServiceName,
) -> Result<u32, Refusal> {
    if signer.proxy_uid != Some(peer.uid) {
        tracing::warn!(
            uid = peer.uid,
            pid = peer.pid,
            "asks on behalf of others and is not the proxy"
        );
        return Err(Refusal::ClientPolicy);
    }
    let ours = address(rustix::net::getsockname(local)).ok_or(Refusal::Malformed)?;
    let theirs = address(
        rustix::net::getpeername(local).and_then(|peer| peer.ok_or(rustix::io::Errno::NOTCONN)),
    )
    .ok_or(Refusal::Malformed)?;
    let mapped = signer
        .configuration
        .get()
        .checked
        .policy
        .proxy_listeners()
        .into_iter()
        .any(|listener| {
            SocketAddr::V4(listener.address) == ours
                && listener.host == *host
                && listener.service == *service
        });
    if !mapped {
        return Err(Refusal::ClientPolicy);
    }
    match usher_system::connections::owner(theirs, ours) {
        Ok(Some(owner)) => Ok(owner.uid),
        Ok(None) => Err(Refusal::ClientPolicy),
        Err(error) => {
            tracing::error!(%error, "cannot ask the kernel whose connection it is");
            Err(Refusal::SignerUnavailable)
        }
    }
}

/// Gives the caller's socket its address.
fn gated(signer: &Signer, asked: &Asked, socket: &OwnedFd) -> Result<Gated, Refusal> {
    let is_taken = |connection: &ConnectionTuple| gates::stands(signer, connection);
    let connection = bind(signer.network, socket, &asked.host, asked.port, &is_taken)?;
    Gated::of_socket(connection, socket.as_fd())
}

/// Announces the caller's connection.
async fn prepare(
    signer: &Arc<Signer>,
    asked: &Asked,
    socket: &OwnedFd,
    gated: &mut Gated,
) -> Result<(Lease, SessionId), Refusal> {
    let connection = gated.connection;
    let user = (asked.user.clone(), asked.uid);
    let pair = Pair::new(user, &asked.host, &asked.service, connection.server);
    let lease = signer.lease(pair, Use::Asked(asked.program))?;
    let session = announce(signer, &lease, gated).await?;
    // This may have taken a while.
    if let Err(refusal) = lease.check() {
        withdraw(signer, &lease.pair, session, connection).await;
        return Err(refusal);
    }
    signer.tickets.exempt(socket.as_fd());
    Ok((lease, session))
}

/// Binds the socket, which has to be in this `network`, to the address it will come from and to a port
/// nobody else has. `is_taken`: these endpoints are announced already, or may be.
fn bind(
    network: u64,
    socket: &OwnedFd,
    host: &Host,
    port: u16,
    is_taken: &impl Fn(&ConnectionTuple) -> bool,
) -> Result<ConnectionTuple, Refusal> {
    let malformed = |_| Refusal::Malformed;
    if !is_of_this_network(network, socket)? {
        // Its address and port belong to another host, whatever they look like.
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
    for ip in &host.addresses {
        if ip.is_ipv6() && !dual_stack {
            continue;
        }
        let server = SocketAddr::new(*ip, port);
        match bind_towards(socket.as_fd(), server, dual_stack, is_taken) {
            Ok(client) => return Ok(ConnectionTuple { client, server }),
            Err(error) => last = error,
        }
        // A socket is bound once, and this port still belongs to another connection.
        if is_bound(socket) {
            break;
        }
    }
    tracing::info!(host = %host.name, error = %last, "no way to the host");
    Err(Refusal::VerifierUnavailable)
}

/// Whether the socket has a port.
fn is_bound(socket: &OwnedFd) -> bool {
    address(rustix::net::getsockname(socket)).is_none_or(|address| address.port() != 0)
}

/// Whether the socket is in the network namespace of this process, whose addresses and ports are
/// announced to the server.
fn is_of_this_network(network: u64, socket: &OwnedFd) -> Result<bool, Refusal> {
    // Only a socket has one.
    let its = namespace::network_of(socket).map_err(|_| Refusal::Malformed)?;
    Ok(its == network)
}

/// Binds the socket to an explicit port: if the kernel has chosen a socket's port, the socket loses it
/// when connecting fails, even if there is a duplicate.
fn bind_towards(
    socket: BorrowedFd<'_>,
    server: SocketAddr,
    dual_stack: bool,
    is_taken: &impl Fn(&ConnectionTuple) -> bool,
) -> io::Result<SocketAddr> {
    let is_taken = |client| is_taken(&ConnectionTuple { client, server });
    for _ in 0..PORTS_TRIED {
        let source = source_for(server)?;
        if is_taken(source) {
            continue;
        }
        match bind_to(socket, source, dual_stack) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            outcome => return outcome,
        }
    }
    // Nearly all are taken: let the kernel find a free one.
    let source = SocketAddr::new(source_for(server)?.ip(), 0);
    let client = bind_to(socket, source, dual_stack)?;
    if is_taken(client) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(client)
}

/// The source address by the kernel's routing, and a port from its range: connect(2) on a datagram
/// socket sends nothing and determines both.
fn source_for(server: SocketAddr) -> io::Result<SocketAddr> {
    let family = if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&probe, &server)?;
    let local = SocketAddr::try_from(rustix::net::getsockname(&probe)?)?;
    Ok(SocketAddr::new(local.ip(), local.port()))
}

fn bind_to(socket: BorrowedFd<'_>, source: SocketAddr, dual_stack: bool) -> io::Result<SocketAddr> {
    let wanted = match source.ip() {
        IpAddr::V4(ip) if dual_stack => SocketAddr::from((ip.to_ipv6_mapped(), source.port())),
        _ => source,
    };
    // Already bound by an earlier attempt of the loop or by the caller: bind fails, as it
    // must, since the announced address has to be the one chosen here.
    rustix::net::bind(socket, &wanted)?;
    address(rustix::net::getsockname(socket)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// An internet address, with an IPv4-mapped one as IPv4.
fn address(found: Result<rustix::net::SocketAddrAny, rustix::io::Errno>) -> Option<SocketAddr> {
    let found = SocketAddr::try_from(found.ok()?).ok()?;
    Some(SocketAddr::new(found.ip().to_canonical(), found.port()))
}

/// Waits until the caller has connected, has given up or has gone.
async fn wait_until_done(caller: &mut LocalCaller) {
    let done = tokio::time::timeout(CONNECT, caller.receive(MAX_LOCAL_PACKET)).await;
    if let Ok(Ok(bytes)) = done
        && let Ok(LocalRequest::Done { .. }) = LocalRequest::decode(&bytes)
    {
        reply(caller, &LocalReply::Finished).await;
    }
}

async fn reply(caller: &LocalCaller, reply: &LocalReply) {
    caller.send(&reply.encode(), &[]).await;
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn host(addresses: &[IpAddr]) -> Host {
        Host {
            name: "here".parse().unwrap(),
            addresses: addresses.to_vec(),
            key: usher_proto::host_key::HostPublicKey::from_bytes([1; 32]),
            ike_key: None,
            control: 3440,
            loopback: Vec::new(),
        }
    }

    fn tcp(family: AddressFamily) -> OwnedFd {
        rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn own_network() -> u64 {
        namespace::own_network().unwrap()
    }

    #[test]
    fn a_socket_gets_an_address_of_its_own() {
        let v4 = host(&[Ipv4Addr::LOCALHOST.into()]);
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let socket = tcp(family);
            let connection = bind(own_network(), &socket, &v4, 143, &|_| false).unwrap();
            assert_eq!(connection.client.ip(), Ipv4Addr::LOCALHOST);
            assert_ne!(connection.client.port(), 0);
            assert_eq!(connection.server, SocketAddr::from(([127, 0, 0, 1], 143)));
        }
    }

    #[test]
    fn a_duplicate_holds_the_port_after_a_failed_connect() {
        let v4 = host(&[Ipv4Addr::LOCALHOST.into()]);
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let socket = tcp(family);
            let bound = bind(own_network(), &socket, &v4, 1, &|_| false)
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
        let v6 = host(&[Ipv6Addr::LOCALHOST.into()]);
        assert!(
            bind(own_network(), &tcp(AddressFamily::INET6), &v6, 143, &|_| {
                false
            })
            .is_ok()
        );
        let shared = tcp(AddressFamily::INET6);
        sockopt::set_socket_reuseport(&shared, true).unwrap();
        assert_eq!(
            bind(own_network(), &shared, &v6, 143, &|_| false),
            Err(Refusal::Malformed)
        );
        let shared = tcp(AddressFamily::INET6);
        sockopt::set_socket_reuseaddr(&shared, true).unwrap();
        assert_eq!(
            bind(own_network(), &shared, &v6, 143, &|_| false),
            Err(Refusal::Malformed)
        );
    }

    #[test]
    fn what_is_no_fresh_tcp_socket_is_refused() {
        let v4 = host(&[Ipv4Addr::LOCALHOST.into()]);
        let datagram = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        assert_eq!(
            bind(own_network(), &datagram, &v4, 143, &|_| false),
            Err(Refusal::Malformed)
        );
        let bound = tcp(AddressFamily::INET);
        rustix::net::bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        assert!(bind(own_network(), &bound, &v4, 143, &|_| false).is_err());
    }
}
