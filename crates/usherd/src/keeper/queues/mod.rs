//! Queues and the workers that serve them: one listener for each (service, user) that has a session or
//! a worker, or one for all users of a service with `style shared`.
//!
//! A removed queue is *leaving* until none of its processes is left. A revocation waits for that,
//! and so does a new queue of the same user before it starts anything.
//!
//! Room: listeners, control groups, the starter. Sessions and calls use it.

pub mod desk;
pub mod groups;
mod lost_accounts;
mod making;
mod members;
mod orphans;
mod output;
mod pam_session;
mod permits;
pub mod queue;
mod starter;
mod stored;
mod troubles;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use usher_base::{HostName, UserName};
use usher_kernel::KernelError;
use usher_kernel::admission::AdmissionState;
use usher_kernel::cgroup::Group;
use usher_local::checked::Checked;
use usher_local::requests::WorkerView;
use usher_proto::program_end::ProgramEnd;
use usher_proto::refusal::Refusal;

use super::host::Host;
use desk::Desk;
use groups::Groups;
use making::keep_alive;
use members::Members;
use permits::{Permit, Permits};
use queue::Queue;
use starter::StarterProcess;
pub use stored::Stored;
use troubles::Troubles;

/// Limit of connections that may wait in one queue; the kernel's net.core.somaxconn caps it. If the queue is
/// full, the kernel leaves the next SYN unanswered, and the client's TCP repeats it.
pub const BACKLOG: u32 = 1024;

/// The time that an answer waits for killed processes to end. A process that waits in the kernel for a disk
/// or another host ends only when that answers.
const GONE: Duration = Duration::from_secs(10);

/// The key of a queue: service id and user id. For a shared queue, the user is the service's account.
pub type Key = (u32, u32);

/// Limit of unread reports of lost accounts, and of failed connections.
const REPORTS: usize = 64;

/// The queues.
pub struct Queues {
    /// Shared by all queues.
    pub common: Arc<Common>,
    permits: Permits,
    /// The limit of queues.
    most: usize,
}

/// The part that all queues share.
pub struct Common {
    host: Arc<Host>,
    /// The users' control groups.
    pub groups: Groups,
    /// Makes the workers.
    pub starter: StarterProcess,
    /// Queues wait here for processes of services.
    pub desk: Arc<Desk>,
    /// Failures of services.
    pub troubles: Troubles,
    all: Mutex<HashMap<Key, Arc<Queue>>>,
    /// The users of shared queues.
    pub members: Members,
    leaving: Leaving,
    lost: mpsc::Sender<LostAccount>,
    failed: mpsc::Sender<FailedConnection>,
    /// Users whose accounts were missing when they were needed.
    suspects: Mutex<HashSet<UserName>>,
    /// The number of accounts about which the name service does not answer.
    unanswered: AtomicUsize,
}

/// A report that an account is gone or was replaced: everything of these users at their services must end.
pub struct LostAccount {
    /// The account's user at a service; for the account of a shared queue, all of its users.
    pub keys: Vec<Key>,
    pub refusal: Refusal,
}

/// A report that the program for a user's connection has failed at once.
pub struct FailedConnection {
    /// The user at the service.
    pub key: Key,
    /// The client's end of the connection.
    pub client: SocketAddr,
    /// How the program has ended.
    pub end: ProgramEnd,
}

/// The reports of the queues, each to be read for ever.
pub struct Reports {
    pub lost: mpsc::Receiver<LostAccount>,
    pub failed: mpsc::Receiver<FailedConnection>,
}

impl Common {
    /// Reports a failed connection, unless too many reports are unread. The client then does not learn the
    /// reason, and only sees its connection end.
    fn report_failed(&self, key: Key, client: SocketAddr, end: ProgramEnd) {
        let report = FailedConnection { key, client, end };
        if self.failed.try_send(report).is_err() {
            tracing::debug!(%client, "a client does not learn how its program has ended");
        }
    }

    /// Forgets a removed queue that has no processes left. Also removes its group, unless another queue of
    /// the user at the service uses the group.
    fn forget_left(&self, queue: &Arc<Queue>) {
        let mut leaving = self.leaving.queues.lock();
        let left = leaving.entry(queue.key).or_default();
        left.retain(|left| !Arc::ptr_eq(left, queue));
        if !left.is_empty() {
            return;
        }
        leaving.remove(&queue.key);
        if !self.all.lock().contains_key(&queue.key) {
            self.remove_group(&queue.group);
        }
    }

    /// Removes the group of a removed queue, so that the user's next queue gets a new one. A new group has
    /// no process of an earlier keeper. It was never killed, so every kernel can make processes in it
    /// directly (CLONE_INTO_CGROUP).
    fn remove_group(&self, group: &Group) {
        let removed = group.sweep().and_then(|()| {
            let id = group.id()?;
            group.remove().map(|()| id)
        });
        match removed {
            Ok(id) => self.host.destinations.forget(id),
            Err(error) => tracing::debug!(%error, "a group stays for its user's next queue"),
        }
    }

    /// Has the kernel admit a user's connections to a listener.
    fn admit_to(&self, (service, uid): Key, listener: BorrowedFd<'_>) -> Result<(), Refusal> {
        let entered = self.host.admission.add_listener(service, uid, listener);
        entered.map_err(|error| match error {
            KernelError::Full(_) => Refusal::ListenerTableFull,
            error => {
                tracing::error!(%error, uid, "cannot enter a listener");
                Refusal::ListenerFailed
            }
        })
    }

    /// Has the kernel admit no more connections of a user.
    fn shut_out(&self, (service, uid): Key) {
        if let Err(error) = self.host.admission.remove_listener(service, uid) {
            tracing::error!(%error, "cannot take a listener out of the table");
        }
    }

    /// Has the watch of accounts check a user whose account was missing when it was needed.
    fn suspect(&self, user: &UserName) {
        self.suspects.lock().insert(user.clone());
    }

    async fn report_lost(&self, keys: Vec<Key>, refusal: Refusal) {
        let report = LostAccount { keys, refusal };
        if self.lost.send(report).await.is_err() {
            tracing::error!("cannot end the sessions of an account that is gone");
        }
    }
}

/// Removed queues with processes left.
#[derive(Default)]
struct Leaving {
    /// A user has several at one service if the second queue was made and removed before the processes of the
    /// first had ended.
    queues: Mutex<HashMap<Key, Vec<Arc<Queue>>>>,
    changed: Notify,
}

impl Leaving {
    /// Waits until no process is left of this user's removed queues.
    async fn gone(&self, key: Key) {
        self.wait(|queues| queues.contains_key(&key)).await;
    }

    /// Waits until no leaving queue `concerns` the caller.
    async fn wait(&self, concerns: impl Fn(&HashMap<Key, Vec<Arc<Queue>>>) -> bool) {
        loop {
            let changed = self.changed.notified();
            if !concerns(&self.queues.lock()) {
                return;
            }
            changed.await;
        }
    }
}

impl Queues {
    /// No queues yet, and never more than `most`; workers live in `groups`. Also returns their reports.
    pub fn new(host: Arc<Host>, groups: Groups, most: u32) -> (Self, Reports) {
        let (lost, of_lost) = mpsc::channel(REPORTS);
        let (failed, of_failed) = mpsc::channel(REPORTS);
        let reports = Reports {
            lost: of_lost,
            failed: of_failed,
        };
        let common = Common {
            host,
            groups,
            starter: StarterProcess::default(),
            desk: Arc::default(),
            troubles: Troubles::default(),
            all: Mutex::default(),
            members: Members::default(),
            leaving: Leaving::default(),
            lost,
            failed,
            suspects: Mutex::default(),
            unanswered: AtomicUsize::new(0),
        };
        let queues = Self {
            common: Arc::new(common),
            permits: Permits::default(),
            most: most as usize,
        };
        (queues, reports)
    }

    /// Puts a policy in force: ends the orders made under the former one, and sets the limits and keepalive
    /// of all queues.
    pub fn put_in_force(&self, policy: &Checked) {
        self.common.starter.end_orders();
        self.common.groups.put_in_force(&policy.policy);
        for queue in self.list() {
            if let Some(service) = policy.service(queue.key.0)
                && let Err(error) = self.common.groups.limit(&queue.group, service)
            {
                tracing::error!(%error, service = %service.name, user = %queue.account.name,
                    "cannot limit the resources of a user's processes");
            }
            if let Some(service) = policy.service(queue.key.0) {
                keep_alive(&queue.listener, service);
            }
        }
    }

    /// Whether there is a queue for this service and user.
    pub fn has(&self, key: Key) -> bool {
        self.common.all.lock().contains_key(&key) || self.common.members.has(key)
    }

    /// The number of queues and of members of shared queues together.
    pub fn count(&self) -> usize {
        self.common.all.lock().len() + self.common.members.count()
    }

    /// All queues now.
    pub fn list(&self) -> Vec<Arc<Queue>> {
        self.common.all.lock().values().cloned().collect()
    }

    /// All workers, by their processes' numbers.
    pub fn workers(&self) -> Vec<WorkerView> {
        let mut workers: Vec<WorkerView> = self
            .list()
            .iter()
            .flat_map(|queue| {
                queue.workers().into_iter().map(|worker| WorkerView {
                    service: queue.service.clone(),
                    user: queue.account.name.clone(),
                    uid: queue.account.uid,
                    pid: worker.pid,
                    seconds: worker.since.elapsed().as_secs_f64(),
                })
            })
            .collect();
        workers.sort_by_key(|worker| worker.pid);
        workers
    }

    /// Permits a queue that is about to be made.
    ///
    /// # Errors
    /// [`Refusal::ListenerTableFull`] when no place is left and the user has no queue at the service.
    pub fn permit(&self, key: Key) -> Result<Permit, Refusal> {
        self.permits
            .take(key, |key| self.has(key), self.count(), self.most)
    }

    /// Notes that connections of a queue may come from a host. Returns whether the queue exists.
    pub fn note_host(&self, key: Key, host: &HostName) -> bool {
        if self.common.members.has(key) {
            return true;
        }
        let queue = self.common.all.lock().get(&key).cloned();
        queue.is_some_and(|queue| {
            queue.note_host(host);
            true
        })
    }

    /// Removes a queue: it admits no more connections, waiting ones are reset, and its workers are
    /// killed.
    pub fn remove(&self, key: Key) {
        if let Some(queue) = self.close(key) {
            self.dismiss(queue);
        }
    }

    /// The first half of [`Queues::remove`]: no connection is admitted or accepted any more. The caller cuts
    /// connections, so that they do not end by a worker's death, and then must call [`Queues::dismiss`] at
    /// once. Returns no queue for a member of a shared queue, because that queue serves others.
    #[must_use]
    pub fn close(&self, key: Key) -> Option<Arc<Queue>> {
        self.common.shut_out(key);
        self.common.members.remove(key);
        let removed = self.common.all.lock().remove(&key)?;
        for member in self.common.members.of(&removed) {
            self.common.shut_out(member);
            self.common.members.remove(member);
        }
        stored::forget(key);
        let mut leaving = self.common.leaving.queues.lock();
        leaving.entry(key).or_default().push(Arc::clone(&removed));
        drop(leaving);
        removed.close();
        Some(removed)
    }

    /// Kills the processes of a closed queue.
    pub fn dismiss(&self, queue: Arc<Queue>) {
        // At once, not when the task is scheduled.
        queue.kill();
        let common = Arc::clone(&self.common);
        tokio::spawn(async move {
            queue.gone().await;
            common.forget_left(&queue);
            common.leaving.changed.notify_waiters();
        });
    }

    /// Waits up to [`GONE`] until no process is left of any removed queue. Returns the queues that then still
    /// have processes, in words for an administrator.
    pub async fn all_gone(&self) -> Vec<String> {
        let wait = self.common.leaving.wait(|queues| !queues.is_empty());
        if timeout(GONE, wait).await.is_ok() {
            return Vec::new();
        }
        let left = self.common.leaving.queues.lock();
        left.values()
            .filter_map(|of_user| of_user.first())
            .map(|queue| {
                format!(
                    "processes of {} at {} have been killed and are not gone yet (the kernel waits \
                     for a disk or another host): see {}",
                    queue.account.name,
                    queue.service,
                    queue.group.path().display()
                )
            })
            .collect()
    }

    /// Ends workers of style `user` that have had no connection for their service's `idle` time. The queue
    /// stays, so the user's next connection starts a new worker.
    pub fn end_idle(&self) {
        let queues = self.list();
        if queues.iter().all(|queue| !queue.may_end()) {
            return;
        }
        let rows = match self.common.host.admissions() {
            Ok(rows) => rows,
            Err(error) => return tracing::error!(%error, "cannot read the admission table"),
        };
        let mut live: HashMap<Key, usize> = HashMap::new();
        for row in &rows {
            if row.state != AdmissionState::Withdrawn {
                *live.entry((row.service, row.uid)).or_default() += 1;
            }
        }
        let configuration = self.common.host.configuration.get();
        let now = Instant::now();
        for queue in queues {
            let Some(service) = configuration.checked.service(queue.key.0) else {
                continue;
            };
            let connections = if queue.is_shared {
                let users = live.iter().filter(|(key, _)| key.0 == queue.key.0);
                users.map(|(_, connections)| connections).sum()
            } else {
                live.get(&queue.key).copied().unwrap_or(0)
            };
            queue.end_if_idle(service, connections, now);
        }
    }
}
