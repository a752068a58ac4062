//! Serves as the remote user: the calls of netAuth (USENIX Security 2008, section 4). The keeper names a
//! user whose connection waits, the kernel's fence lets this process become that user once, and then the
//! keeper hands over the user's own queue.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::ipproto;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{CapabilitySet, CapabilitySets};
use usher_base::{ConnectionTuple, HostName, ServiceName, UserName};
use usher_daemon::packet::PacketSocket;
use usher_proto::calls::{self, CallReply, CallRequest, ReservationId};
use usher_proto::ssh_key::Fingerprint;

use crate::conversation::{
    Conversation, connect, exchange, forget_inherited, read_reply, send_request,
};
use crate::process;
use crate::service_error::ServiceError;

/// How long [`ByUserListener::pre_accept`] waits for a keeper that restarts: it first restores the queues of
/// all users, who may be ten thousand.
const RESTART: Duration = Duration::from_secs(120);
/// The time between two attempts to reach a keeper that restarts.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket in the accept mode acceptByUser: connections wait in a queue for each user, and only a
/// process of that user accepts them.
#[derive(Debug)]
pub struct ByUserListener {
    // The socket is kept open, so that no other process binds the port meanwhile.
    _listener: TcpListener,
    service: ServicePort,
}

impl ByUserListener {
    /// Puts a listening socket, bound to the port of a service, into the mode.
    ///
    /// The socket itself receives no connections in any mode, because the port is under admission.
    ///
    /// # Errors
    /// [`ServiceError::WrongSocket`]; [`crate::Refusal::NotThisAccount`] when policy has no service with
    /// this port and an `account` that this process runs as; [`crate::Refusal::NoFence`] on a kernel
    /// without LSM programs; [`ServiceError::NoKeeper`].
    pub fn new(listener: TcpListener) -> Result<Self, ServiceError> {
        Ok(Self {
            service: ServicePort::of_socket(listener.as_fd())?,
            _listener: listener,
        })
    }

    /// Waits for a connection whose user has no process yet (in the style `connection`: for any connection),
    /// and reserves the user for this process and the children it forks.
    ///
    /// A reservation that is not used within 30 seconds, or whose maker has ended, lapses.
    ///
    /// # Errors
    /// [`ServiceError::Interrupted`] by a signal; [`ServiceError::NoKeeper`] when the keeper does
    /// not come back within two minutes; [`ServiceError::Refused`] when policy no longer has the
    /// service.
    pub fn pre_accept(&self) -> Result<Reservation, ServiceError> {
        self.service.pre_accept()
    }

    /// Turns this process into the reserved user, for good: user ids, group ids, supplementary groups, no
    /// capability, no new privileges. The process must have one thread. The service's own socket is closed
    /// in this process, so that users' processes do not hold its port.
    ///
    /// # Errors
    /// [`crate::Refusal::ReservationLapsed`], [`crate::Refusal::ProcessShared`], [`crate::Refusal::AlreadySettled`],
    /// [`crate::Refusal::SessionEnded`], [`crate::Refusal::TooManyGroups`], [`ServiceError::Shared`],
    /// [`ServiceError::Prepared`] and [`ServiceError::Change`] leave the process as it was. After
    /// [`ServiceError::ChangedInPart`] it must end.
    pub fn set_net_user(self, reservation: Reservation) -> Result<UserListener, ServiceError> {
        reservation.claim()
    }
}

/// A service, by its port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServicePort {
    port: u16,
}

impl ServicePort {
    pub(crate) fn of_socket(listener: BorrowedFd<'_>) -> Result<Self, ServiceError> {
        let wrong = |error: Errno| ServiceError::WrongSocket("listening TCP socket", error.into());
        if !rustix::net::sockopt::socket_acceptconn(listener).map_err(wrong)? {
            return Err(wrong(Errno::INVAL));
        }
        let protocol = rustix::net::sockopt::socket_protocol(listener).map_err(wrong)?;
        if !matches!(protocol, Some(ipproto::TCP | ipproto::MPTCP)) {
            return Err(wrong(Errno::INVAL));
        }
        let address = rustix::net::getsockname(listener).map_err(wrong)?;
        let address = SocketAddr::try_from(address).map_err(|_| wrong(Errno::INVAL))?;
        let service = Self {
            port: address.port(),
        };
        service.attach()?;
        Ok(service)
    }

    pub(crate) fn pre_accept(&self) -> Result<Reservation, ServiceError> {
        let mut gone: Option<Instant> = None;
        loop {
            let waited = self.attach().and_then(|keeper| {
                gone = None;
                wait_for_user(&keeper.0)
            });
            let error = match waited {
                Err(ServiceError::NoKeeper(error)) => error,
                done => return done,
            };
            if gone.get_or_insert_with(Instant::now).elapsed() > RESTART {
                return Err(ServiceError::NoKeeper(error));
            }
            let pause = rustix::time::Timespec::try_from(PAUSE).unwrap_or_default();
            // Not std's sleep, which continues after a signal: the caller must see the signal.
            match rustix::event::poll(&mut [], Some(&pause)) {
                Err(Errno::INTR) => return Err(ServiceError::Interrupted),
                _ => continue,
            }
        }
    }

    fn attach(&self) -> Result<Conversation, ServiceError> {
        let keeper = Conversation::new()?;
        match exchange(&keeper.0, &CallRequest::Attach { port: self.port })?.0 {
            CallReply::Attached { .. } => Ok(keeper),
            _ => Err(ServiceError::Protocol),
        }
    }
}

fn wait_for_user(keeper: &PacketSocket) -> Result<Reservation, ServiceError> {
    set_socket_timeout(keeper, Timeout::Recv, None)
        .map_err(|error| ServiceError::NoKeeper(error.into()))?;
    send_request(keeper, &CallRequest::PreAccept)?;
    match read_reply(keeper)?.0 {
        CallReply::Reserved { reservation, uid } => Ok(Reservation { reservation, uid }),
        _ => Err(ServiceError::Protocol),
    }
}

/// A user, reserved for this process and the children it forks.
#[derive(Debug, Clone, Copy)]
pub struct Reservation {
    reservation: ReservationId,
    uid: u32,
}

impl Reservation {
    /// The user's id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// See [`ByUserListener::set_net_user`].
    pub(crate) fn claim(self) -> Result<UserListener, ServiceError> {
        forget_inherited()?;
        let keeper = connect()?;
        let request = CallRequest::SetNetUser {
            reservation: self.reservation,
        };
        let CallReply::Identity { uid, gid, groups } = exchange(&keeper, &request)?.0 else {
            return Err(ServiceError::Protocol);
        };
        become_user(uid, gid, &groups)?;
        let settled = |error| ServiceError::ChangedInPart {
            what: "take over the user's queue",
            error,
        };
        let (reply, packet) = exchange(&keeper, &CallRequest::Settled)
            .map_err(|error| settled(io::Error::other(error)))?;
        match (reply, packet.descriptors.into_iter().next()) {
            (CallReply::Queue, Some(queue)) => Ok(UserListener {
                queue,
                first: Mutex::new(Some(FirstAccept(keeper))),
            }),
            _ => Err(settled(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// The kernel compares each step with what the keeper has granted, in this order.
fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), ServiceError> {
    use rustix::thread;
    let groups: Vec<_> = groups
        .iter()
        .map(|&group| rustix::fs::Gid::from_raw(group))
        .collect();
    thread::set_thread_groups(&groups).map_err(|error| match error {
        Errno::AGAIN => ServiceError::Shared,
        Errno::BUSY => ServiceError::Prepared,
        error => ServiceError::Change(error.into()),
    })?;
    let in_part = |what| {
        move |error: Errno| ServiceError::ChangedInPart {
            what,
            error: error.into(),
        }
    };
    let gid = rustix::fs::Gid::from_raw(gid);
    thread::set_thread_res_gid(gid, gid, gid).map_err(in_part("change the group id"))?;
    let uid = rustix::fs::Uid::from_raw(uid);
    thread::set_thread_res_uid(uid, uid, uid).map_err(in_part("change the user id"))?;
    // From here on the fence refuses the use of capabilities.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    thread::set_capabilities(None, none).map_err(in_part("give up capabilities"))?;
    thread::set_no_new_privs(true)
        .map_err(in_part("give up gaining privileges (PR_SET_NO_NEW_PRIVS)"))?;
    process::join_new_keyring().map_err(in_part("leave the service's session keyring"))
}

/// The conversation with the keeper, open until the first connection is accepted. In the style `connection`
/// the keeper offers the user's next connection then.
#[derive(Debug)]
pub(crate) struct FirstAccept(PacketSocket);

impl FirstAccept {
    pub(crate) fn tell(self) {
        // A keeper that has restarted meanwhile checks the queue by itself.
        let _ = self.0.send(&CallRequest::Accepted.encode(), &[]);
    }
}

/// The queue of the user that this process has become.
#[derive(Debug)]
pub struct UserListener {
    queue: OwnedFd,
    first: Mutex<Option<FirstAccept>>,
}

impl UserListener {
    /// Accepts the user's next connection, waiting for it.
    ///
    /// # Errors
    /// As accept4(2).
    pub fn accept_by_user(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (connection, address) = loop {
            match accept(self.queue.as_fd(), false) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                accepted => break accepted?,
            }
        };
        let first = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(first) = first {
            first.tell();
        }
        Ok((connection.into(), address))
    }

    pub(crate) fn into_parts(self) -> (OwnedFd, Option<FirstAccept>) {
        let first = self
            .first
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        (self.queue, first)
    }
}

impl AsFd for UserListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// accept4(2) on a queue whose O_NONBLOCK belongs to the keeper: waits here if the caller wants to.
pub(crate) fn accept(
    queue: BorrowedFd<'_>,
    nonblocking: bool,
) -> io::Result<(OwnedFd, SocketAddr)> {
    loop {
        if !nonblocking {
            let mut waiting = [rustix::event::PollFd::from_borrowed_fd(
                queue,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut waiting, None)?;
        }
        match rustix::net::acceptfrom_with(queue, rustix::net::SocketFlags::CLOEXEC) {
            // Another process of the user took the connection first.
            Err(Errno::AGAIN) if !nonblocking => {}
            Err(error) => return Err(error.into()),
            Ok((connection, address)) => {
                let address = address.ok_or(Errno::NOTCONN)?;
                return Ok((connection, SocketAddr::try_from(address)?));
            }
        }
    }
}

/// Whether a socket is in non-blocking mode.
pub(crate) fn is_nonblocking(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(socket)?.contains(OFlags::NONBLOCK))
}

/// The user and the session of an accepted connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The local account of the user.
    pub uid: u32,
    /// The user.
    pub user: UserName,
    /// The service.
    pub service: ServiceName,
    /// The client's host, by this host's name for it.
    pub host: HostName,
    /// The key that signed for the session; displays as `SHA256:...`, as `ssh-keygen -l` shows it.
    pub key_fingerprint: Fingerprint,
    /// The principals of the key's certificate that its authority is trusted to name for the user; empty
    /// for a plain key.
    pub principals: Vec<String>,
    /// When the session was opened, in seconds since 1970.
    pub opened: u64,
    /// When the session ends at the latest, in seconds since 1970.
    pub expires: u64,
}

impl From<calls::ConnectionInfo> for ConnectionInfo {
    fn from(info: calls::ConnectionInfo) -> Self {
        Self {
            uid: info.uid,
            user: info.user,
            service: info.service,
            host: info.host,
            key_fingerprint: Fingerprint::Sha256(info.key_fingerprint),
            principals: info.principals.names().map(str::to_owned).collect(),
            opened: info.opened,
            expires: info.expires,
        }
    }
}

/// Returns the user and the session of an accepted connection. A worker that Usher started may ask, too. With
/// `style shared`, the processes of the service's account may ask about each connection of the service.
///
/// # Errors
/// [`ServiceError::WrongSocket`]; [`crate::Refusal::NoConnection`] when Usher does not know the connection,
/// or no longer; [`crate::Refusal::ForeignConnection`] when it is another user's, or of another service;
/// [`ServiceError::NoKeeper`].
pub fn connection_info(connection: impl AsFd) -> Result<ConnectionInfo, ServiceError> {
    let wrong = |error: Errno| ServiceError::WrongSocket("connected TCP socket", error.into());
    let end = |address: rustix::net::SocketAddrAny| {
        SocketAddr::try_from(address).map_err(|_| wrong(Errno::NOTSOCK))
    };
    let client = end(rustix::net::getpeername(&connection)
        .map_err(wrong)?
        .ok_or_else(|| wrong(Errno::NOTCONN))?)?;
    let server = end(rustix::net::getsockname(&connection).map_err(wrong)?)?;
    let connection = ConnectionTuple::new(client, server).map_err(|_| wrong(Errno::NOTCONN))?;
    connection_info_by(connection)
}

/// As [`connection_info`], by the endpoints of a connection, for programs that do not hold it.
///
/// # Errors
/// As [`connection_info`], but for [`ServiceError::WrongSocket`].
pub fn connection_info_by(connection: ConnectionTuple) -> Result<ConnectionInfo, ServiceError> {
    match exchange(&connect()?, &CallRequest::Info { connection })?.0 {
        CallReply::Connection(info) => Ok(info.into()),
        _ => Err(ServiceError::Protocol),
    }
}
