//! The calls of services' own processes: `pre_accept` reserves a user for whom a connection waits,
//! `set_net_user` lets a process become that user and hands it the user's queue (netAuth, USENIX
//! Security 2008, section 4).
//!
//! SO_PEERCRED identifies the caller. This module decides what a process may become, and the kernel's
//! fence enforces it; without the fence nothing is reserved.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use usher_policy::{ServedBy, Service, Style};
use usher_proto::calls::{CallReply, CallRequest, MAX_CALL_PACKET, MAX_GROUPS, ReservationId};
use usher_proto::refusal::Refusal;

use super::host::Host;
use super::host::process::Process;
use super::queues::Queues;
use super::queues::desk::Offer;
use super::queues::queue::Queue;
use super::sessions::Sessions;
use crate::local_callers::{LocalCaller, LocalCallers};
use usher_kernel::cgroup::Guest;
use usher_kernel::ownership::{Identity, ProcessState};

/// Connections one account may have: idle processes of a pre-forked service have one each.
const CONNECTIONS_PER_USER: usize = 1024;
/// The time that a process may take to send its request, and to use its grant.
const PATIENCE: Duration = Duration::from_secs(10);

/// The calls of services' own processes.
pub struct Calls {
    host: Arc<Host>,
    queues: Arc<Queues>,
    sessions: Arc<Sessions>,
    /// Changes with every configuration that comes in force: then waiting processes are checked again.
    pub generation: watch::Sender<u64>,
}

impl Calls {
    /// Calls for users of these queues and sessions.
    pub fn new(host: Arc<Host>, queues: Arc<Queues>, sessions: Arc<Sessions>) -> Self {
        Self {
            host,
            queues,
            sessions,
            generation: watch::Sender::new(0),
        }
    }

    /// Serves the processes of services.
    ///
    /// # Errors
    /// When the reactor cannot take the listener.
    pub async fn serve(self: Arc<Self>, listener: OwnedFd) -> io::Result<()> {
        let overloaded = CallReply::Refused(Refusal::Overloaded).encode();
        let callers = LocalCallers::new(listener, CONNECTIONS_PER_USER, overloaded)?;
        loop {
            let local = callers.accept().await;
            let calls = Arc::clone(&self);
            tokio::spawn(async move {
                let mut caller = Caller { local };
                if let Err(refusal) = calls.converse(&mut caller).await {
                    caller.local.log_refusal(refusal);
                    caller.answer(&CallReply::Refused(refusal)).await;
                }
            });
        }
    }

    /// One conversation. Its first packet selects its kind.
    async fn converse(&self, caller: &mut Caller) -> Result<(), Refusal> {
        match caller.prompt_request().await? {
            Some(CallRequest::Attach { port }) => self.attached(caller, port).await,
            Some(CallRequest::SetNetUser { reservation }) => {
                self.set_net_user(caller, &reservation).await
            }
            Some(CallRequest::Info { connection }) => {
                let mut asked = Some(connection);
                while let Some(connection) = asked {
                    let info = self.sessions.describe(caller.local.peer.uid, &connection)?;
                    caller.answer(&CallReply::Connection(info)).await;
                    asked = match caller.prompt_request().await? {
                        Some(CallRequest::Info { connection }) => Some(connection),
                        Some(_) => return Err(Refusal::Malformed),
                        None => None,
                    };
                }
                Ok(())
            }
            Some(_) => Err(Refusal::Malformed),
            None => Ok(()),
        }
    }

    /// The service at this port, if the asking account is the one that the policy names for it.
    async fn service_at(&self, port: u16, uid: u32) -> Result<Service, Refusal> {
        let configuration = self.host.configuration.get();
        let service = configuration
            .checked
            .policy
            .services
            .values()
            .find(|service| service.listen == port)
            .ok_or(Refusal::NotThisAccount)?;
        self.check_account(service, uid).await?;
        Ok(service.clone())
    }

    /// Refuses all accounts except the one that the policy names for a service, and fences that one.
    async fn check_account(&self, service: &Service, uid: u32) -> Result<(), Refusal> {
        let ServedBy::Account(account) = &service.served_by else {
            return Err(Refusal::NotThisAccount);
        };
        if self.host.accounts.asked_freely(account).await?.uid != uid {
            return Err(Refusal::NotThisAccount);
        }
        // The account may have been made after the policy that names it was applied.
        self.host.fence.enclose(uid)
    }

    /// Serves a process of a service, which waits for users.
    async fn attached(&self, caller: &mut Caller, port: u16) -> Result<(), Refusal> {
        let peer = caller.local.peer;
        let desk = &self.queues.common.desk;
        let mut reloaded = self.generation.subscribe();
        let service = self.service_at(port, peer.uid).await?;
        let process = look_at(peer.pid)?;
        if !process.can_change_user() {
            return Err(Refusal::LacksCapabilities);
        }
        // The conversation ends with this process, even if another has inherited the connection.
        let process = Arc::new(end_of(&process)?);
        caller
            .answer(&CallReply::Attached {
                service: service.name.clone(),
                process_per_user: service.style == Style::User,
            })
            .await;
        loop {
            match caller.prompt_request().await? {
                Some(CallRequest::PreAccept) => {}
                Some(_) => return Err(Refusal::Malformed),
                None => return Ok(()),
            }
            let offer = loop {
                tokio::select! {
                    offer = desk.take(service.id) => break offer,
                    // One request at a time: a packet now is an error, or the process has ended.
                    request = caller.request() => return match request? {
                        Some(_) => Err(Refusal::Malformed),
                        None => Ok(()),
                    },
                    _ = process.readable() => return Ok(()),
                    _ = reloaded.changed() => {
                        let present = self.service_at(port, peer.uid).await?;
                        if present.id != service.id {
                            return Err(Refusal::UnknownService);
                        }
                    }
                }
            };
            let uid = offer.queue.account.uid;
            let reservation = desk.reserve(offer, peer.pid, Arc::clone(&process))?;
            caller
                .answer(&CallReply::Reserved { reservation, uid })
                .await;
        }
    }

    /// Lets a process become the user that it, or its parent, has reserved.
    async fn set_net_user(
        &self,
        caller: &mut Caller,
        reservation: &ReservationId,
    ) -> Result<(), Refusal> {
        let peer = caller.local.peer;
        let desk = &self.queues.common.desk;
        let process = look_at(peer.pid)?;
        if let ProcessState::Settled { .. } = self.host.fence.state(&process.pidfd)? {
            return Err(Refusal::AlreadySettled);
        }
        let (queue, reserver) = desk
            .reservation(reservation)
            .ok_or(Refusal::ReservationLapsed)?;
        let configuration = self.host.configuration.get();
        let service = configuration
            .checked
            .service(queue.key.0)
            .ok_or(Refusal::UnknownService)?;
        self.check_account(service, peer.uid).await?;
        let identity = match identity(&queue).await {
            Err(refusal @ Refusal::NoLocalAccount) => {
                self.queues.suspect(&queue.account.name);
                return Err(refusal);
            }
            found => found?,
        };
        self.permitted(&queue, reserver, &process, peer.uid)?;
        let offer = desk.claim(reservation).ok_or(Refusal::ReservationLapsed)?;
        // Move the process into the user's group first: anything that ends the user's processes then also
        // ends this one, and its children, from the moment it becomes the user.
        let guest = queue.admit(&process).await?;
        let settled = match self.host.fence.grant(&process.pidfd, &identity) {
            Ok(()) => self.settle(caller, &queue, &identity, &process).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = settled {
            if let Some(obstacle) = self.host.fence.obstacle(&process.pidfd) {
                tracing::warn!(service = %service.name, user = %queue.account.name, pid = process.pid,
                    "a service's process did not become its user: {obstacle}");
            }
            self.undo(&queue, guest, &process).await;
            return Err(refusal);
        }
        if service.style == Style::Connection {
            first_accept(caller, &process).await;
        }
        serve_next(offer);
        Ok(())
    }

    /// Withdraws a grant that a process did not finish using. A process that has become the user
    /// without reporting it is killed, with its children.
    async fn undo(&self, queue: &Queue, guest: Guest, process: &Process) {
        let is_the_service = || {
            matches!(
                self.host.fence.state(&process.pidfd),
                Ok(ProcessState::None)
            )
        };
        self.host.fence.withdraw(&process.pidfd);
        queue.expel(guest, is_the_service()).await;
        // If the process was changing its user when the grant was withdrawn, it may have succeeded since.
        if !is_the_service() {
            tracing::warn!(
                pid = process.pid,
                "a process that has become a user halfway is killed"
            );
            process.signal(Signal::KILL);
        }
    }

    /// Checks whether this process may become the reserved user.
    fn permitted(
        &self,
        queue: &Queue,
        reserver: i32,
        process: &Process,
        account: u32,
    ) -> Result<(), Refusal> {
        if process.pid != reserver && process.parent != reserver {
            return Err(Refusal::ReservationLapsed);
        }
        if process.users != [account; 4] {
            return Err(Refusal::NotThisAccount);
        }
        if process.threads != 1 {
            return Err(Refusal::ProcessShared);
        }
        if !self.queues.has(queue.key) {
            return Err(Refusal::SessionEnded);
        }
        Ok(())
    }

    /// Sends the process its identity, checks that the process has taken it, and passes the queue on to it.
    async fn settle(
        &self,
        caller: &mut Caller,
        queue: &Arc<Queue>,
        identity: &Identity,
        process: &Process,
    ) -> Result<(), Refusal> {
        caller
            .answer(&CallReply::Identity {
                uid: identity.uid,
                gid: identity.gid,
                groups: identity.groups.clone(),
            })
            .await;
        let ended = end_of(process)?;
        let request = tokio::select! {
            request = caller.prompt_request() => request?,
            _ = ended.readable() => None,
        };
        match request {
            Some(CallRequest::Settled) => {}
            Some(_) => return Err(Refusal::Malformed),
            None => return Err(Refusal::ReservationLapsed),
        }
        if self.host.fence.state(&process.pidfd)? != (ProcessState::Settled(identity.uid)) {
            return Err(Refusal::NotThisAccount);
        }
        let pidfd = process.pidfd.try_clone().map_err(|error| {
            tracing::error!(%error, "cannot duplicate the pidfd of a process");
            Refusal::KeeperUnavailable
        })?;
        queue.take_in(process.pid.unsigned_abs(), pidfd)?;
        caller
            .local
            .send(&CallReply::Queue.encode(), &[queue.listener.as_fd()])
            .await;
        Ok(())
    }
}

/// The calling process.
struct Caller {
    local: LocalCaller,
}

impl Caller {
    async fn answer(&self, reply: &CallReply) {
        self.local.send(&reply.encode(), &[]).await;
    }

    /// The next request; none if the process has closed the connection.
    async fn request(&mut self) -> Result<Option<CallRequest>, Refusal> {
        match self.local.receive(MAX_CALL_PACKET).await {
            Ok(bytes) if bytes.is_empty() => Ok(None),
            // No call carries descriptors, and they would stay open until the conversation ends.
            Ok(_) if !self.local.descriptors().is_empty() => Err(Refusal::Malformed),
            // A child that inherited the connection must open another for itself.
            Ok(_) if self.local.sender != Some(self.local.peer.pid) => Err(Refusal::Malformed),
            Ok(bytes) => Ok(Some(CallRequest::decode(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(Refusal::Oversized),
            Err(error) => {
                tracing::debug!(%error, "a service's process");
                Ok(None)
            }
        }
    }

    /// The next request, which must come soon.
    async fn prompt_request(&mut self) -> Result<Option<CallRequest>, Refusal> {
        match tokio::time::timeout(PATIENCE, self.request()).await {
            Ok(request) => request,
            Err(_) => {
                tracing::debug!(
                    pid = self.local.peer.pid,
                    "a service's process says nothing"
                );
                Ok(None)
            }
        }
    }
}

/// The process that asks (SO_PEERCRED).
fn look_at(pid: i32) -> Result<Process, Refusal> {
    Process::open(pid).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Refusal::ReservationLapsed,
        _ => {
            tracing::error!(pid, %error, "cannot look at a process");
            Refusal::KeeperUnavailable
        }
    })
}

/// Readable when a process has ended.
fn end_of(process: &Process) -> Result<AsyncFd<OwnedFd>, Refusal> {
    process.end().map_err(|error| {
        tracing::error!(%error, "cannot wait for a process's end");
        Refusal::KeeperUnavailable
    })
}

fn serve_next(offer: Offer) {
    if offer.served.send(()).is_err() {
        // The queue was removed meanwhile, which has killed the process.
        tracing::debug!(user = %offer.queue.account.name, "served a queue that has gone");
    }
}

/// The identity that a process is to take, by the user's present account.
async fn identity(queue: &Queue) -> Result<Identity, Refusal> {
    let uid = queue.account.uid;
    let found = queue.identity().await?;
    let mut groups = found.groups.clone();
    groups.sort_unstable();
    groups.dedup();
    if groups.len() > MAX_GROUPS {
        return Err(Refusal::TooManyGroups);
    }
    Ok(Identity {
        uid,
        gid: found.gid,
        groups,
    })
}

/// Waits until the process has accepted, or has ended.
async fn first_accept(caller: &mut Caller, process: &Process) {
    if let Ok(ended) = end_of(process) {
        tokio::select! {
            _ = caller.request() => {}
            _ = ended.readable() => {}
        }
    }
}
