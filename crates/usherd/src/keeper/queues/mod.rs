//! All queues: one listener for each (service, user) that has a session or a worker.
//!
//! A removed queue is *leaving* until none of its processes is left. A revocation waits for that,
//! and so does a new queue of the same user before it starts anything.

pub mod desk;
pub mod groups;
mod output;
mod pam_session;
pub mod queue;
mod starter;
pub mod troubles;
pub mod vanished;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use usher_kernel::KernelError;
use usher_kernel::admission::AdmissionState;
use usher_local::checked::Checked;
use usher_local::clock::unix_time;
use usher_policy::{ServedBy, Service, Style};
use usher_proto::refusal::Refusal;

use super::Keeper;
use super::host::accounts::Account;
use super::sessions::{agenda, teardown};
use groups::Groups;
use queue::Queue;
use starter::Starter;

/// Most connections that may wait in one queue; the kernel's net.core.somaxconn caps it.
pub const BACKLOG: u32 = 1024;

/// The time that an answer waits for killed processes to be gone. Processes that wait in the kernel
/// for a disk or another host die when it answers.
const GONE: Duration = Duration::from_secs(10);

/// The key of a queue: service id and user id.
pub type Key = (u32, u32);

/// The queues.
pub struct Queues {
    groups: Arc<Groups>,
    starter: Arc<Starter>,
    all: Mutex<HashMap<Key, Arc<Queue>>>,
    leaving: Arc<Leaving>,
    seats: Arc<Mutex<HashMap<Key, usize>>>,
    /// The limit of queues.
    most: usize,
}

/// Removed queues with processes left.
#[derive(Default)]
struct Leaving {
    queues: Mutex<HashMap<Key, Arc<Queue>>>,
    changed: Notify,
}

impl Leaving {
    /// Waits until no leaving queue `concerns` the caller.
    async fn wait(&self, concerns: impl Fn(&HashMap<Key, Arc<Queue>>) -> bool) {
        loop {
            let changed = self.changed.notified();
            if !concerns(&self.queues.lock()) {
                return;
            }
            changed.await;
        }
    }
}

/// A reserved place for the queue of a session being opened.
pub struct Seat {
    seats: Arc<Mutex<HashMap<Key, usize>>>,
    key: Key,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.seats.lock();
        if let Some(count) = seats.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                seats.remove(&self.key);
            }
        }
    }
}

impl Queues {
    /// No queues yet, and never more than `most`; workers live in `groups`.
    pub fn new(groups: Groups, most: u32) -> Self {
        Self {
            groups: Arc::new(groups),
            starter: Arc::default(),
            all: Mutex::default(),
            leaving: Arc::default(),
            seats: Arc::default(),
            most: most as usize,
        }
    }

    /// The starter of the workers.
    pub fn starter(&self) -> Arc<Starter> {
        Arc::clone(&self.starter)
    }

    /// The control groups.
    pub fn groups(&self) -> Arc<Groups> {
        Arc::clone(&self.groups)
    }

    /// Updates the limits of the users' groups by a policy.
    pub fn limit(&self, policy: &Checked) {
        self.groups.put_in_force(&policy.policy);
        for queue in self.list() {
            if let Some(service) = policy.service(queue.key.0)
                && let Err(error) = self.groups.limit(&queue.group, service)
            {
                tracing::error!(%error, service = %service.name, user = %queue.account.name,
                    "cannot limit what a user's processes take");
            }
        }
    }

    /// The number of limits in force that cannot be enforced here: processes, memory, processor
    /// time.
    pub fn limits_not_kept(&self) -> usize {
        self.groups.missing().len()
    }

    /// Whether there is a queue for this service and user.
    pub fn has(&self, service: u32, uid: u32) -> bool {
        self.all.lock().contains_key(&(service, uid))
    }

    /// All queues now.
    pub fn list(&self) -> Vec<Arc<Queue>> {
        self.all.lock().values().cloned().collect()
    }

    /// Reserves a place for a queue that is about to be made.
    ///
    /// # Errors
    /// [`Refusal::ListenerTableFull`] when there is none and the user has no queue at the service.
    pub fn seat(&self, key: Key) -> Result<Seat, Refusal> {
        let all = self.all.lock();
        let mut seats = self.seats.lock();
        if !all.contains_key(&key) && !seats.contains_key(&key) {
            let coming = seats.keys().filter(|key| !all.contains_key(key)).count();
            if all.len() + coming >= self.most {
                return Err(Refusal::ListenerTableFull);
            }
        }
        *seats.entry(key).or_default() += 1;
        Ok(Seat {
            seats: Arc::clone(&self.seats),
            key,
        })
    }

    /// Makes sure that the user's connections to the service have a queue.
    ///
    /// # Errors
    /// [`Refusal::ListenerFailed`] when the port is taken or the worker's group cannot be made,
    /// [`Refusal::ListenerTableFull`].
    pub fn ensure(
        &self,
        keeper: &Arc<Keeper>,
        service: &Service,
        account: &Account,
    ) -> Result<(), Refusal> {
        if self.has(service.id, account.uid) {
            return Ok(());
        }
        let listener =
            usher_kernel::listener::create(service.id, account.uid, port(service), BACKLOG)
                .map_err(|error| {
                    tracing::error!(service = %service.name, user = %account.name, %error,
                        "cannot make a listener");
                    Refusal::ListenerFailed
                })?;
        store_descriptor(&listener, (service.id, account.uid));
        self.adopt(keeper, service, account, listener)
    }

    /// Ends processes of an earlier keeper that serve a whole queue whose listener is lost: they
    /// would wait at it for ever, and none would be started in their place.
    fn end_orphans(&self, service: &Service, account: &Account) {
        if service.style != Style::User {
            return;
        }
        let ended = self.groups.at(service, account.uid).and_then(|group| {
            if !group.populated()? {
                return Ok(());
            }
            tracing::warn!(service = %service.name, user = %account.name,
                "the listener of an earlier keeper's workers is lost: they are ended");
            Ok(group.kill()?)
        });
        if let Err(error) = ended {
            tracing::error!(%error, "cannot end workers whose listener is lost");
        }
    }

    /// Makes a queue with this listener.
    fn adopt(
        &self,
        keeper: &Arc<Keeper>,
        service: &Service,
        account: &Account,
        listener: OwnedFd,
    ) -> Result<(), Refusal> {
        let key = (service.id, account.uid);
        let group = self.groups.at(service, account.uid).map_err(|error| {
            tracing::error!(%error, user = %account.name, "cannot make a worker's cgroup");
            forget_descriptor(key);
            Refusal::ListenerFailed
        })?;
        keeper
            .host
            .destinations
            .govern(&group, key.0)
            .inspect_err(|_| forget_descriptor(key))?;
        keeper
            .host
            .fence
            .own_listener(listener.as_fd(), account.uid)
            .map_err(|error| {
                tracing::error!(%error, "cannot make a listener its user's own");
                forget_descriptor(key);
                Refusal::ListenerFailed
            })?;
        keeper
            .admission
            .add_listener(key.0, key.1, listener.as_fd())
            .map_err(|error| {
                forget_descriptor(key);
                match error {
                    KernelError::Full { .. } => Refusal::ListenerTableFull,
                    error => {
                        tracing::error!(%error, "cannot enter a listener");
                        Refusal::ListenerFailed
                    }
                }
            })?;
        let left = self.leaving.queues.lock().contains_key(&key);
        let queue = Queue::start(keeper, service, account.clone(), listener, group, left);
        self.all.lock().insert(key, queue);
        Ok(())
    }

    /// Removes a queue: it admits no more connections, waiting ones are reset, and its workers are
    /// killed.
    pub fn remove(&self, keeper: &Keeper, key: Key) {
        if let Some(queue) = self.close(keeper, key) {
            self.dismiss(queue);
        }
    }

    /// The first half of [`Queues::remove`]: no connection is admitted or accepted any more.
    /// [`Queues::dismiss`] must follow at once. Connections are cut in between, so that they do not
    /// end by a worker's death.
    #[must_use]
    pub fn close(&self, keeper: &Keeper, key: Key) -> Option<Arc<Queue>> {
        if let Err(error) = keeper.admission.remove_listener(key.0, key.1) {
            tracing::error!(%error, "cannot take a listener out of the table");
        }
        forget_descriptor(key);
        let removed = self.all.lock().remove(&key)?;
        self.leaving.queues.lock().insert(key, Arc::clone(&removed));
        removed.close();
        Some(removed)
    }

    /// Kills the processes of a closed queue.
    pub fn dismiss(&self, queue: Arc<Queue>) {
        // At once, not when the task is scheduled.
        queue.kill();
        let leaving = Arc::clone(&self.leaving);
        tokio::spawn(async move {
            queue.gone().await;
            let mut queues = leaving.queues.lock();
            if queues
                .get(&queue.key)
                .is_some_and(|last| Arc::ptr_eq(last, &queue))
            {
                queues.remove(&queue.key);
            }
            drop(queues);
            leaving.changed.notify_waiters();
        });
    }

    /// Waits until no process is left of this user's removed queues.
    pub async fn gone(&self, key: Key) {
        self.leaving.wait(|queues| queues.contains_key(&key)).await;
    }

    /// Waits up to [`GONE`] until no process is left of any removed queue. Returns what is left
    /// then, in words for an administrator.
    pub async fn all_gone(&self) -> Vec<String> {
        let wait = self.leaving.wait(|queues| !queues.is_empty());
        if timeout(GONE, wait).await.is_ok() {
            return Vec::new();
        }
        let left = self.leaving.queues.lock();
        left.values()
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

    /// Ends workers by socket activation that have had no connection for their service's `idle`
    /// time. Their queue stays, so the next connection starts a new one.
    pub fn end_idle(&self, keeper: &Keeper) {
        let queues = self.list();
        if queues.iter().all(|queue| !queue.may_end()) {
            return;
        }
        let rows = match keeper.admission.admissions() {
            Ok(rows) => rows,
            Err(error) => return tracing::error!(%error, "reading the admission table"),
        };
        let mut live: HashMap<Key, usize> = HashMap::new();
        for row in &rows {
            if row.state != AdmissionState::Withdrawn {
                *live.entry((row.service, row.uid)).or_default() += 1;
            }
        }
        let configuration = keeper.configuration.get();
        let now = Instant::now();
        for queue in queues {
            let Some(service) = configuration.checked.service(queue.key.0) else {
                continue;
            };
            queue.note_use(live.get(&queue.key).copied().unwrap_or(0), now);
            queue.end_if_idle(service, now);
        }
    }
}

/// Adopts what an earlier keeper left: listeners with their waiting connections from the service
/// manager's file descriptor store (sd_pid_notify_with_fds(3)), and sessions from the pinned table.
pub fn restore(keeper: &Arc<Keeper>, mut stored: HashMap<Key, OwnedFd>) {
    let mut sessions = match keeper.admission.sessions() {
        Ok(sessions) => sessions,
        Err(error) => return tracing::error!(%error, "reading the session table"),
    };
    sessions.sort_by_key(|(_, record)| record.ended.map_or(record.opened, |ended| ended.at));
    let configuration = keeper.configuration.get();
    for (session, record) in sessions {
        let key = (record.service, record.uid);
        keeper.shares.keep(&record);
        if let Some(ended) = record.ended {
            keeper.shares.authenticated(&record, unix_time());
            keeper.recent.enter(session, &record, ended);
            keeper.agenda.enter(ended.at, session);
            if !ended.recorded {
                keeper.ends.enter(session, ended);
            }
            continue;
        }
        // The time of the user's last authentication is lost with the former keeper, so it counts
        // from now.
        keeper.shares.enter(session, &record, unix_time());
        agenda::enter(keeper, session, &record);
        if keeper.queues.has(key.0, key.1) {
            continue;
        }
        let restored = match (configuration.checked.service(key.0), stored.remove(&key)) {
            (None, _) => Err(Refusal::UnknownService),
            // The account is looked up when a process of the user is started: here, all users would
            // wait for one look-up after the other.
            (Some(service), listener) => {
                let account = Account {
                    name: record.user.clone(),
                    uid: record.uid,
                };
                match listener {
                    Some(listener) => {
                        // The former keeper may have ended while it was refusing waiting
                        // connections.
                        if let Err(error) =
                            usher_kernel::listener::reopen(listener.as_fd(), BACKLOG)
                        {
                            tracing::error!(%error, "a stored listener does not listen");
                        }
                        keeper.queues.adopt(keeper, service, &account, listener)
                    }
                    None => {
                        keeper.queues.end_orphans(service, &account);
                        keeper.queues.ensure(keeper, service, &account)
                    }
                }
            }
        };
        match restored {
            Ok(()) => tracing::info!(user = %record.user, "queue taken up again"),
            Err(refusal) => {
                tracing::warn!(user = %record.user, reason = refusal.name(), "a session of an earlier keeper is ended: {refusal}");
                teardown::end(keeper, &session, record, refusal);
            }
        }
    }
    for key in stored.into_keys() {
        forget_descriptor(key);
    }
    if let Err(error) = teardown::end_forbidden(keeper, &configuration.checked) {
        tracing::error!(%error, "looking through the sessions of an earlier keeper");
    }
}

/// The listeners that the service manager kept for the keeper. Call this first.
///
/// # Errors
/// When the service manager's data is malformed.
pub fn stored_descriptors() -> io::Result<HashMap<Key, OwnedFd>> {
    let stored = usher_kernel::descriptor_store::take()?;
    Ok(stored
        .into_iter()
        .filter_map(|(name, descriptor)| {
            let (service, uid) = name.strip_prefix("queue-")?.split_once('-')?;
            Some(((service.parse().ok()?, uid.parse().ok()?), descriptor))
        })
        .collect())
}

/// The port that listeners of a service are bound to. A service's own process binds the service's
/// port itself, for all addresses, so nothing else can be bound to it.
fn port(service: &Service) -> u16 {
    match service.served_by {
        ServedBy::Program(_) => service.listen,
        ServedBy::Account(_) => 0,
    }
}

fn descriptor_name((service, uid): Key) -> String {
    format!("queue-{service}-{uid}")
}

/// Stores a duplicate with the service manager, so that the queue outlives the keeper. Without a
/// service manager the waiting connections are lost with the keeper, which the log says once.
fn store_descriptor(listener: &OwnedFd, key: Key) {
    use sd_notify::NotifyState;
    let name = descriptor_name(key);
    // A listener that is closed to refuse waiting connections hangs up for a moment, but must stay
    // stored.
    let state = [
        NotifyState::FdStore,
        NotifyState::FdName(&name),
        NotifyState::Custom("FDPOLL=0"),
    ];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[listener.as_fd()]) {
        tracing::warn!(%error, "cannot store a listener with the service manager");
    }
}

fn forget_descriptor(key: Key) {
    use sd_notify::NotifyState;
    let name = descriptor_name(key);
    let state = [NotifyState::FdStoreRemove, NotifyState::FdName(&name)];
    if let Err(error) = sd_notify::notify(&state) {
        tracing::warn!(%error, "cannot take a listener back from the service manager");
    }
}
