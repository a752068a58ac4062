//! Requests of local callers. The kernel identifies the caller (`SO_PEERCRED`, or for the proxy the
//! owner of the local connection), and the policy decides which services it may reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use usher_base::{ConnectionTuple, HostName, ServiceName, UserName};
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_daemon::packet::Peer;
use usher_kernel::ticket::ProgramId;
use usher_policy::Host;
use usher_proto::host_key::HostPublicKey;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Signer;
use super::announcement::{announce, withdraw};
use super::binding::{address, bind};
use super::closing::suspend;
use super::failures::Subject;
use super::gates::{self, Gated};
use super::lease::{Lease, Use};
use super::loans;
use super::relay::CONNECT;
use super::sessions::Pair;
use crate::local_callers::{LocalCaller, LocalCallers};

/// Limit of requests that one user may have under way; the next one is refused with
/// [`Refusal::Overloaded`].
const REQUESTS_PER_USER: usize = 512;
/// How long a caller may take to report that connecting has timed out: it may be short of processor time.
const REPORT: Duration = Duration::from_secs(5);
/// How long a caller may take to send its request.
const REQUEST: Duration = Duration::from_secs(5);

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
            // The program has connected by its ticket.
            Ok(Ok(bytes)) if bytes.is_empty() && ticket.is_some() => return,
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return tracing::debug!(uid = peer.uid, %error, "request"),
            Err(_) => return tracing::debug!(uid = peer.uid, "a caller asked nothing"),
        };
        if ticket.is_none() && LocalRequest::decode(&bytes) == Ok(LocalRequest::Lend) {
            return loans::serve(signer, caller).await;
        }
        match LocalRequest::decode(&bytes) {
            Ok(LocalRequest::OwnerAtProxy { host, service }) => {
                return tell_owner(signer, &caller, &host, &service).await;
            }
            Ok(LocalRequest::HowEnded {
                host,
                service,
                client,
            }) => {
                let uid = peer.uid;
                let subject = Subject {
                    uid,
                    host,
                    service,
                    client,
                };
                let end = signer.failures.of(&subject).await;
                return reply(&caller, &LocalReply::Ended(end)).await;
            }
            _ => {}
        }
        let descriptors = &caller.descriptors()[former_descriptors..];
        let (asked, socket) = match admit(signer, peer, &bytes, descriptors).await {
            Ok(asked) => asked,
            Err(refusal) => {
                log_refusal(&caller, &bytes, refusal);
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
    let mut gated = match gated(signer, &asked, socket).await {
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
            let no_way = || signer.ways.note_none(asked.uid, connection.server);
            wait_until_done(&mut caller, no_way).await;
            // The caller's descriptors hold our duplicate of its socket. While the duplicate is open, no
            // other socket can get the port. So withdraw the announcement before the duplicate is closed.
            withdraw(signer, &lease.pair, session, connection).await;
        }
        Err(refusal) => refuse(&caller, &asked, refusal).await,
    }
    // A refused connection may be announced nonetheless: no other socket gets the port until that
    // is over.
    gated.lift(signer).await;
}

/// Logs that a request is not admitted, with the service that it names.
fn log_refusal(caller: &LocalCaller, bytes: &[u8], refusal: Refusal) {
    let Ok(
        LocalRequest::Connect { host, service }
        | LocalRequest::ConnectWithTicket { host, service }
        | LocalRequest::ConnectOnBehalf { host, service },
    ) = LocalRequest::decode(bytes)
    else {
        return caller.log_refusal(refusal);
    };
    let Peer { uid, pid } = caller.peer;
    tracing::info!(name: events::PROCESS_REFUSED, uid, pid, %host, %service,
        reason = refusal.name(), "refused a process: {refusal}");
}

async fn refuse(caller: &LocalCaller, asked: &PermittedRequest, refusal: Refusal) {
    tracing::info!(name: events::SESSION_REFUSED, user = %asked.user, host = %asked.host.name, service = %asked.service,
        reason = refusal.name(), "refused: {refusal}");
    reply(caller, &LocalReply::Refused(refusal)).await;
}

struct PermittedRequest {
    uid: u32,
    user: UserName,
    /// Whether the program accepts a ticket.
    with_ticket: bool,
    host: Host,
    /// The host's identity.
    identity: HostPublicKey,
    service: ServiceName,
    port: u16,
    /// The program that made the socket, if programs are listed.
    program: Option<ProgramId>,
}

impl PermittedRequest {
    /// The ticket, if the user's connections to the service carry tokens. If the address at which the host
    /// answers is known, only a ticket for the address that is tried first.
    fn ticket(&self, signer: &Signer) -> Option<(SocketAddr, u32)> {
        let channel = signer.relay.address(&self.host);
        let addresses = self.addresses(signer, channel);
        let count = channel.map_or(addresses.len(), |_| 1);
        addresses.into_iter().take(count).find_map(|ip| {
            let server = SocketAddr::new(ip, self.port);
            let number = signer.tickets.number(self.uid, server)?;
            Some((server, number))
        })
    }

    /// The host's addresses, in the order in which to try them.
    fn addresses(&self, signer: &Signer, channel: Option<IpAddr>) -> Vec<IpAddr> {
        let addresses = &self.host.addresses;
        signer.ways.order(self.uid, self.port, addresses, channel)
    }
}

/// Identifies the caller, and checks its permission.
async fn admit<'a>(
    signer: &Signer,
    peer: Peer,
    bytes: &[u8],
    descriptors: &'a [OwnedFd],
) -> Result<(PermittedRequest, &'a OwnedFd), Refusal> {
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
        LocalRequest::Done { .. }
        | LocalRequest::Unreachable
        | LocalRequest::Lend
        | LocalRequest::OwnerAtProxy { .. }
        | LocalRequest::HowEnded { .. } => {
            return Err(Refusal::Malformed);
        }
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
    let identity = checked.identity(&host);
    Ok((
        PermittedRequest {
            uid,
            user,
            with_ticket,
            host,
            identity,
            service,
            port,
            program,
        },
        socket,
    ))
}

/// Answers the proxy's question which user has made a connection.
async fn tell_owner(signer: &Signer, caller: &LocalCaller, host: &HostName, service: &ServiceName) {
    let accepted = caller.descriptors().first().ok_or(Refusal::Malformed);
    let owner =
        accepted.and_then(|local| owner_at_the_proxy(signer, caller.peer, local, host, service));
    let answer = match owner {
        Ok(uid) => LocalReply::Owner { uid },
        Err(refusal) => {
            caller.log_refusal(refusal);
            LocalReply::Refused(refusal)
        }
    };
    reply(caller, &answer).await;
}

/// The user at the other end of a connection that the proxy has accepted. Only the proxy may ask, only about
/// an address that the policy maps to that host, and the answer is the kernel's: a subverted proxy can speak
/// only for users who are connected to it.
///
/// The kernel's programs have noted the owner when the connection was made. Where no owner is noted, as on a
/// kernel that refuses the programs, only an owner who still holds the other end is known.
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
            "refused a request on behalf of others: its process is not the proxy"
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
    if let Some(uid) = signer.tickets.noted_owner(local.as_fd())? {
        return Ok(uid);
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

/// Binds the caller's socket, towards the address at which the host answers. A host with one address need not
/// be asked before.
async fn gated(
    signer: &Signer,
    asked: &PermittedRequest,
    socket: &OwnedFd,
) -> Result<Gated, Refusal> {
    let channel = if asked.host.addresses.len() > 1 {
        signer.relay.reach(&asked.host, asked.uid).await?
    } else {
        None
    };
    let addresses = asked.addresses(signer, channel);
    let is_taken = |connection: &ConnectionTuple| gates::stands(signer, connection);
    let configuration = signer.configuration.get();
    let own = configuration.checked.policy.host_by_key(&signer.host_key);
    let own = own.map_or(&[][..], |own| &own.addresses);
    let port = asked.port;
    let connection = bind(signer.network, socket, &addresses, own, port, &is_taken)?;
    Gated::of_socket(connection, socket.as_fd())
}

/// Announces the caller's connection.
async fn prepare(
    signer: &Arc<Signer>,
    asked: &PermittedRequest,
    socket: &OwnedFd,
    gated: &mut Gated,
) -> Result<(Lease, SessionId), Refusal> {
    let connection = gated.connection;
    let user = (asked.user.clone(), asked.uid);
    let host = (&asked.host, asked.identity);
    let pair = Pair::new(user, host, &asked.service, connection.server);
    let lease = signer.lease(pair, Use::Asked(asked.program))?;
    let session = announce(signer, &lease, gated).await?;
    // Check again: announcing may have taken a while.
    if let Err(refusal) = lease.check() {
        withdraw(signer, &lease.pair, session, connection).await;
        return Err(refusal);
    }
    signer.tickets.exempt(socket.as_fd());
    Ok((lease, session))
}

/// Waits until the caller has connected, has given up or has gone. If the caller has found no way to the
/// address, `no_way` is called before the answer, so that its next request gets another address.
async fn wait_until_done(caller: &mut LocalCaller, no_way: impl FnOnce()) {
    let done = tokio::time::timeout(CONNECT + REPORT, caller.receive(MAX_LOCAL_PACKET)).await;
    let Ok(Ok(bytes)) = done else {
        return;
    };
    match LocalRequest::decode(&bytes) {
        Ok(LocalRequest::Done { .. }) => {}
        Ok(LocalRequest::Unreachable) => no_way(),
        _ => return,
    }
    reply(caller, &LocalReply::Finished).await;
}

async fn reply(caller: &LocalCaller, reply: &LocalReply) {
    caller.send(&reply.encode(), &[]).await;
}
