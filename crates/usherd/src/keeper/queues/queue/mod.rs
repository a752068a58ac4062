//! A queue: the listener of one user at one service, and the workers that serve it. The keeper
//! holds a duplicate of the listener, so waiting connections survive a worker's crash.

mod adoption;
mod exits;
mod origins;
mod serving;

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usher_base::{HostName, ServiceName};
use usher_daemon::events;
use usher_kernel::admission::AdmissionRow;
use usher_kernel::cgroup::Group;
use usher_kernel::worker::{self, Command, Ended, Order, SpawnError};
use usher_policy::{Backend, FileAccess, Program, ServedBy, Service, Style};
use usher_proto::refusal::Refusal;

use super::output::Output;
use super::pam_session::{Session, SessionError};
use super::starter::StarterProcess;
use super::{Common, Key};
use crate::keeper::host::accounts::{Account, Identity};
use crate::keeper::host::identities;
use exits::{Exit, reap};
use origins::Admitted;
use serving::serve;

/// Search path of a worker; the service's `environment` does not change it.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The time that the processes of an idle worker may take to end when asked: a database writes out
/// all of its memory.
const GRACE: Duration = Duration::from_secs(30);

/// PAM sessions of a user at a service beyond its processes: those that are closing, or that wait for
/// what a process has left behind.
const CLOSING: usize = 16;

/// A queue and its workers.
pub struct Queue {
    /// Service id and user id.
    pub key: Key,
    /// The service's name.
    pub service: ServiceName,
    /// The user; of a shared queue, the service's account.
    pub account: Account,
    /// Whether the queue is for all users of the service ([`Style::Shared`]).
    pub is_shared: bool,
    /// The server to which its processes pass connections on.
    backend: Option<Backend>,
    /// The user's listener.
    pub listener: Arc<OwnedFd>,
    /// The group of the user's processes at this service.
    pub group: Group,
    /// The hosts from which the user has opened sessions.
    hosts: Mutex<BTreeSet<HostName>>,
    common: Arc<Common>,
    output: Output,
    state: Mutex<State>,
    /// Notified when a worker has ended, which may make room for another.
    ended: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    workers: Vec<Running>,
    last_used: Option<Instant>,
    /// The time when the user's processes are killed: they have been asked to end.
    ending: Option<Instant>,
    /// Whether one process serves the whole queue. Processes that it leaves behind are asked to end before
    /// they are killed.
    one_for_all: bool,
    task: Option<tokio::task::AbortHandle>,
    /// The queue was removed.
    stopped: bool,
    /// The end of the last worker whose end is known.
    last_end: Option<Ended>,
    /// The starters of PAM sessions, which live until all processes of their sessions have ended.
    sessions: Vec<Weak<StarterProcess>>,
    /// The number of orders and guests under way: their processes may be in the group, but are not in
    /// `workers` yet.
    starting: usize,
}

/// A running worker.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    pub pid: u32,
    pub since: Instant,
    /// The client's endpoint, if the worker has one connection and this keeper's starter made the worker.
    pub client: Option<SocketAddr>,
}

/// The reason why no worker was started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The account no longer exists, or has changed.
    #[error("cannot look the user up: {0}")]
    Account(Refusal),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A process of the service reserved the user and did nothing.
    #[error("a process of the service reserved the user and did nothing")]
    Lapsed,
    /// The PAM session that the policy demands could not be opened.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The user may no longer use the service.
    #[error("the queue has been taken away")]
    Stopped,
}

impl Queue {
    /// Starts serving the queue. Processes in the group were started by an earlier keeper and continue; with
    /// `left`, they belong to a removed queue, which kills them.
    pub(super) fn start(
        common: &Arc<Common>,
        service: &Service,
        account: Account,
        host: Option<&HostName>,
        listener: OwnedFd,
        group: Group,
        left: bool,
    ) -> Arc<Self> {
        let queue = Arc::new(Self {
            key: (service.id, account.uid),
            service: service.name.clone(),
            account,
            is_shared: service.style == Style::Shared,
            backend: backend(service).cloned(),
            listener: Arc::new(listener),
            group,
            hosts: Mutex::new(host.cloned().into_iter().collect()),
            common: Arc::clone(common),
            output: Output::default(),
            state: Mutex::default(),
            ended: tokio::sync::Notify::new(),
        });
        queue.state.lock().one_for_all = service.style.serves_queue();
        if !left && !queue.group.is_new() {
            queue.follow_inherited();
        }
        let task = tokio::spawn(serve(Arc::clone(&queue)));
        queue.state.lock().task = Some(task.abort_handle());
        queue
    }

    /// Whether the service's policy, which may have changed, has its users served by this queue.
    pub fn belongs_to(&self, service: &Service) -> bool {
        match service.shared_account() {
            Some(account) => {
                self.is_shared
                    && *account == self.account.name
                    && self.backend.as_ref() == backend(service)
            }
            None => !self.is_shared,
        }
    }

    /// Whether an admitted connection is one of this queue's.
    pub(super) fn has(&self, row: &AdmissionRow) -> bool {
        row.service == self.key.0 && (self.is_shared || row.uid == self.key.1)
    }

    /// Stops serving: no process can accept from the listener any more, whichever holds it, and
    /// waiting connections are reset. [`Queue::gone`] then ends the processes.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        if let Some(task) = state.task.take() {
            task.abort();
        }
        drop(state);
        if let Err(error) = usher_kernel::listener::close(self.listener.as_fd()) {
            tracing::error!(%error, service = %self.service, user = %self.account.name,
                "cannot close a user's listener");
        }
    }

    /// Kills all processes of the user at this service and their descendants.
    pub fn kill(&self) {
        if let Err(error) = self.group.kill() {
            tracing::error!(%error, service = %self.service, user = %self.account.name, "cannot kill a worker");
        }
    }

    /// The running workers.
    pub fn workers(&self) -> Vec<Running> {
        self.state.lock().workers.clone()
    }

    /// The number of running workers, including an earlier keeper's.
    fn running(&self) -> usize {
        self.state.lock().workers.len()
    }

    /// Whether [`Queue::end_if_idle`] has anything to check.
    pub fn may_end(&self) -> bool {
        let state = self.state.lock();
        // The process of a shared queue is never idle.
        (!state.workers.is_empty() && !self.is_shared) || state.ending.is_some()
    }

    /// Whether a worker or a process left behind by one runs. Asks the kernel, which is too slow to
    /// do for all queues every second.
    pub fn has_worker(&self) -> bool {
        self.running() > 0 || self.occupied()
    }

    fn occupied(&self) -> bool {
        self.group.populated().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot look into a worker's cgroup");
            true
        })
    }

    /// Orders workers: in style `connection`, one for each connection that waits or comes soon, as
    /// far as there is `room`. Returns when the order is over; a worker of style `user` has
    /// executed its program by then.
    async fn spawn(
        self: Arc<Self>,
        program: Program,
        style: Style,
        room: usize,
        epoch: u64,
    ) -> Result<(), StartError> {
        // Take this stamp before the identity: any later change of the files ends the order.
        let accounts = identities::stamp();
        let admitted = if self.is_shared {
            let identities = &self.common.host.identities;
            let identity = identities.of_service(&self.account).await;
            identity.map(Admitted::as_service)
        } else {
            self.ask_pam(style, program.pam_session).await
        };
        let mut admitted = admitted.map_err(StartError::Account)?;
        // Open the session before the order counts as starting: removing the queue must not wait for PAM.
        let session = if program.pam_session {
            let session = self.open_session(room, admitted.client).await?;
            // Opening the session may have taken seconds, so the identity is looked up again.
            let identities = &self.common.host.identities;
            let present = identities.of(&self.account, admitted.client).await;
            admitted.identity = present.map_err(StartError::Account)?;
            Some(session)
        } else {
            None
        };
        if !self.begin() {
            return Err(StartError::Stopped);
        }
        let environment = session
            .as_ref()
            .map_or(&[][..], |session| &session.environment);
        let order = Order {
            number: 0,
            entry: self.group.entry(),
            accepts: style == Style::Connection,
            most: u32::try_from(room).unwrap_or(u32::MAX),
            total: admitted.total,
            accounts,
            command: self.command(&program, admitted, environment),
        };
        let order = self.order(order, epoch, session.as_ref());
        let outcome = order.await;
        if let Err(StartError::Spawn(SpawnError::StarterGone)) = outcome {
            self.follow_strays().await;
        }
        self.nothing_starts();
        outcome
    }

    async fn order(
        self: &Arc<Self>,
        order: Order,
        epoch: u64,
        session: Option<&Session>,
    ) -> Result<(), StartError> {
        let begun = |pid, client, end| {
            tracing::info!(name: events::WORKER_STARTED, service = %self.service, user = %self.account.name,
                uid = self.account.uid, pid, "worker started");
            self.enlist(pid, client, Exit::Worker(end));
        };
        let starter = session.map_or(&self.common.starter, |session| &session.starter);
        let (group, listener) = (&self.group, self.listener.as_fd());
        Ok(starter.start(order, epoch, group, listener, begun).await?)
    }

    /// Opens a PAM session for at most `room` more processes of the user, whose account PAM has permitted
    /// for this client's address.
    async fn open_session(&self, room: usize, client: IpAddr) -> Result<Session, StartError> {
        let most = self.running() + room + CLOSING;
        {
            let mut state = self.state.lock();
            state.sessions.retain(|session| session.strong_count() > 0);
            if state.sessions.len() >= most {
                return Err(SessionError::TooMany(most).into());
            }
        }
        let group = self
            .common
            .groups
            .of_sessions()
            .map_err(SessionError::from)?;
        let outside = &self.common.starter;
        let session = Session::open(&self.account.name, client, group.path(), outside).await?;
        let starter = Arc::downgrade(&session.starter);
        self.state.lock().sessions.push(starter);
        Ok(session)
    }

    /// Records that a process is about to enter the user's group. Returns false if the queue was
    /// removed, so that none may.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        if state.stopped {
            return false;
        }
        state.starting += 1;
        // All processes that were asked to end have ended: before that, no other is started.
        state.ending = None;
        true
    }

    /// Counts a worker until it ends. Returns false if the queue was removed meanwhile and its
    /// processes are killed.
    fn enlist(self: &Arc<Self>, pid: u32, client: Option<SocketAddr>, end: Exit) -> bool {
        let mut state = self.state.lock();
        state.workers.push(Running {
            pid,
            since: Instant::now(),
            client,
        });
        state.last_used = Some(Instant::now());
        let stopped = state.stopped;
        drop(state);
        if stopped {
            self.kill();
        }
        tokio::spawn(reap(Arc::clone(self), pid, end));
        !stopped
    }

    /// The identity of a process of the service that becomes the user, and accepts by itself.
    ///
    /// # Errors
    /// When PAM refuses, or the account has gone.
    pub async fn identity(&self) -> Result<Arc<Identity>, Refusal> {
        Ok(self.ask_pam(Style::User, false).await?.identity)
    }

    /// Variables set by Usher and the policy take precedence over those of PAM modules.
    fn command(
        &self,
        program: &Program,
        admitted: Admitted,
        from_pam: &[(String, String)],
    ) -> Command {
        let account = &self.account;
        let identity = &admitted.identity;
        let mut environment: Vec<(String, String)> = vec![
            ("HOME".into(), identity.home.display().to_string()),
            ("USER".into(), account.name.to_string()),
            ("LOGNAME".into(), account.name.to_string()),
            ("SHELL".into(), identity.shell.display().to_string()),
            ("PATH".into(), PATH.into()),
            ("USHER_SERVICE".into(), self.service.to_string()),
        ];
        if !self.is_shared {
            environment.push(("USHER_USER".into(), account.name.to_string()));
        }
        environment.extend(program.environment.iter().cloned());
        let mut names: HashSet<String> = environment.iter().map(|(name, _)| name.clone()).collect();
        for (name, value) in from_pam {
            let is_ushers = name.starts_with("LISTEN_") || name.starts_with("USHER_");
            if !is_ushers && names.insert(name.clone()) {
                environment.push((name.clone(), value.clone()));
            }
        }
        Command {
            program: program.path.clone().into(),
            arguments: program.arguments.clone(),
            environment,
            uid: account.uid,
            gid: identity.gid,
            groups: identity.groups.clone(),
            files: program.files.as_ref().map(|rules| {
                let rules = rules.iter();
                rules
                    .map(|rule| (rule.path_for(&identity.home), access(rule.access)))
                    .collect()
            }),
            umask: program.umask,
            setuid: program.setuid,
            pam_session: program.pam_session,
            directory: identity.home.clone(),
            name: self.service.to_string(),
            label: identity.label.as_ref().map(ToString::to_string),
            errors: self.output.stream(&self.service),
            refused: admitted.refused,
            only: admitted.only,
        }
    }
}

/// The server to which a service's connections are passed on.
fn backend(service: &Service) -> Option<&Backend> {
    match &service.served_by {
        ServedBy::Backend(backend) => Some(backend),
        ServedBy::Program(_) | ServedBy::Account(_) => None,
    }
}

fn access(access: FileAccess) -> worker::FileAccess {
    match access {
        FileAccess::Read => worker::FileAccess::Read,
        FileAccess::Write => worker::FileAccess::Write,
    }
}
