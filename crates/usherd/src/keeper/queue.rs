//! One queue: the listener of one user at one service, and the worker processes that serve it.
//! The keeper holds a duplicate of the listener, so what waits survives the worker's crash.

mod ends;
mod guests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::Interest;
use usher_kernel::cgroup::Group;
use usher_kernel::worker::{self, Command, Input, SpawnError};
use usher_local::packet_async::register;
use usher_policy::{FileAccess, Program, ServedBy, Service, Style};
use usher_proto::name::ServiceName;
use usher_proto::refusal::Refusal;

use super::accounts::{Account, Identity};
use super::identities::Identities;
use super::output::Output;
use super::process::Process;
use super::queues::Key;
use super::starter::Starter;
use super::{Keeper, service_by_id};
use ends::{End, reap};

/// Search path of a worker; `environment` of the service does not change it.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// A worker that ends sooner than this, without having accepted what waits, has failed: the next
/// one waits.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// First and longest pause after a failure; doubled in between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How long an idle worker may take to end when asked.
const GRACE: Duration = Duration::from_secs(5);

/// A queue and its workers.
pub struct Queue {
    /// Service id and user id.
    pub key: Key,
    /// The service's name.
    pub service: ServiceName,
    /// The user.
    pub account: Account,
    listener: Arc<OwnedFd>,
    /// Where the user's processes at this service live.
    pub group: Group,
    starter: Arc<Starter>,
    identities: Arc<Identities>,
    output: Output,
    state: Mutex<State>,
    /// A worker has ended: there may be room for another.
    ended: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    workers: Vec<Running>,
    last_used: Option<Instant>,
    asked_to_end: Option<Instant>,
    task: Option<tokio::task::AbortHandle>,
    stopped: bool,
    /// A worker is being started: it may be in the group already and is not in `workers` yet.
    starting: bool,
}

/// A running worker.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    /// Its process.
    pub pid: u32,
    /// Since when.
    pub since: Instant,
}

/// Why no worker was started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The account is gone, or another by now.
    #[error("looking the user up: {0}")]
    Account(Refusal),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

impl Queue {
    /// Starts serving the queue.
    pub fn start(
        keeper: &Arc<Keeper>,
        key: Key,
        service: ServiceName,
        account: Account,
        listener: OwnedFd,
        group: Group,
        starter: Arc<Starter>,
    ) -> Arc<Self> {
        let queue = Arc::new(Self {
            key,
            service,
            account,
            listener: Arc::new(listener),
            group,
            starter,
            identities: Arc::clone(&keeper.identities),
            output: Output::default(),
            state: Mutex::default(),
            ended: tokio::sync::Notify::new(),
        });
        queue.follow_inherited();
        let task = tokio::spawn(serve(Arc::downgrade(keeper), Arc::clone(&queue)));
        queue.lock().task = Some(task.abort_handle());
        queue
    }

    /// Kills the workers and serves no more.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        if let Some(task) = state.task.take() {
            task.abort();
        }
        drop(state);
        self.kill();
    }

    /// Kills all processes of the user at this service, and what they have started.
    pub fn kill(&self) {
        if let Err(error) = self.group.kill() {
            tracing::error!(%error, service = %self.service, user = %self.account.name, "cannot kill a worker");
        }
    }

    /// The running workers.
    pub fn workers(&self) -> Vec<Running> {
        self.lock().workers.clone()
    }

    /// Whether a worker runs that is counted, as those of an earlier keeper are, too.
    pub fn has_counted(&self) -> bool {
        !self.lock().workers.is_empty()
    }

    /// Whether a worker runs, or something that one has left behind. It asks the kernel, which takes
    /// too long to do for all queues every second.
    pub fn has_worker(&self) -> bool {
        self.has_counted() || self.occupied()
    }

    fn occupied(&self) -> bool {
        self.group.populated().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot look into a worker's cgroup");
            true
        })
    }

    /// Takes down how many connections there are, for [`Queue::end_if_idle`].
    pub fn note_use(&self, connections: usize, now: Instant) {
        let mut state = self.lock();
        if connections > 0 || state.last_used.is_none() {
            state.last_used = Some(now);
        }
    }

    /// Asks a worker by socket activation that is idle to end; kills one that does not.
    pub fn end_if_idle(&self, service: &Service, now: Instant) {
        if service.style != Style::User || !self.has_counted() {
            self.lock().asked_to_end = None;
            return;
        }
        let mut state = self.lock();
        let idle = state
            .last_used
            .is_some_and(|used| now.duration_since(used) >= service.idle);
        match (idle, state.asked_to_end) {
            (false, _) => state.asked_to_end = None,
            (true, None) => {
                state.asked_to_end = Some(now);
                tracing::info!(service = %self.service, user = %self.account.name, "idle worker ends");
                self.ask_to_end();
            }
            (true, Some(asked)) if now.duration_since(asked) >= GRACE => {
                drop(state);
                tracing::warn!(service = %self.service, user = %self.account.name, "an idle worker did not end when asked; killed");
                self.kill();
            }
            (true, Some(_)) => {}
        }
    }

    /// Asks all processes of the user at this service to end.
    fn ask_to_end(&self) {
        let mut groups = self.group.guests().unwrap_or_default();
        groups.extend(Group::open(self.group.path()));
        for group in groups {
            let processes: Vec<Process> = group
                .pids()
                .unwrap_or_default()
                .into_iter()
                .filter_map(|pid| Process::open(pid.cast_signed()).ok())
                .collect();
            // A number that has passed to another process since is not in the group.
            let present = group.pids().unwrap_or_default();
            for process in processes {
                if present.contains(&process.pid.unsigned_abs()) {
                    process.signal(Signal::TERM);
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one worker. Returns when it has executed its program.
    async fn spawn(self: &Arc<Self>, program: Program, style: Style) -> Result<(), StartError> {
        self.lock().starting = true;
        let mut has_begun = false;
        let outcome = self.start_worker(&program, style, &mut has_begun).await;
        if let Err(StartError::Spawn(SpawnError::StarterGone)) = outcome {
            self.follow_strays();
        }
        if !has_begun {
            self.nothing_starts();
        }
        outcome
    }

    async fn start_worker(
        self: &Arc<Self>,
        program: &Program,
        style: Style,
        has_begun: &mut bool,
    ) -> Result<(), StartError> {
        let identity = self.identity().await.map_err(StartError::Account)?;
        let input = match style {
            Style::Connection => Input::AcceptOne(self.listener.as_fd()),
            Style::User => Input::Listener(self.listener.as_fd()),
        };
        let command = self.command(program, &identity);
        let begun = |pid, end| {
            *has_begun = true;
            tracing::info!(service = %self.service, user = %self.account.name,
                uid = self.account.uid, pid, "worker started");
            self.enlist(pid, End::Worker(end));
        };
        let started = self.starter.start(command, input, &self.group, begun);
        Ok(started.await?)
    }

    /// Counts a worker until it ends. False: the queue has been taken away meanwhile, and its
    /// processes are killed.
    fn enlist(self: &Arc<Self>, pid: u32, end: End) -> bool {
        let mut state = self.lock();
        state.starting = false;
        state.workers.push(Running {
            pid,
            since: Instant::now(),
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

    /// What a process of the user is started with.
    ///
    /// # Errors
    /// See [`Account::identity`].
    pub async fn identity(&self) -> Result<Arc<Identity>, Refusal> {
        self.identities.of(&self.account).await
    }

    /// The user's listener.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn command(&self, program: &Program, identity: &Identity) -> Command {
        let account = &self.account;
        let mut environment: Vec<(String, String)> = vec![
            ("HOME".into(), identity.home.display().to_string()),
            ("USER".into(), account.name.to_string()),
            ("LOGNAME".into(), account.name.to_string()),
            ("SHELL".into(), identity.shell.display().to_string()),
            ("PATH".into(), PATH.into()),
            ("USHER_SERVICE".into(), self.service.to_string()),
            ("USHER_USER".into(), account.name.to_string()),
        ];
        environment.extend(program.environment.iter().cloned());
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
            directory: identity.home.clone(),
            name: self.service.to_string(),
            errors: self.output.stream(&self.service),
        }
    }
}

fn access(access: FileAccess) -> worker::FileAccess {
    match access {
        FileAccess::Read => worker::FileAccess::Read,
        FileAccess::Write => worker::FileAccess::Write,
    }
}

/// Waits for connections and starts workers.
async fn serve(keeper: Weak<Keeper>, queue: Arc<Queue>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        if room(&keeper, &queue).await.is_none() {
            return;
        }
        if let Err(error) = queue.connection_waits().await {
            pause = longer(pause);
            tracing::error!(service = %queue.service, user = %queue.account.name, %error, ?pause,
                "cannot wait for connections");
            continue;
        }
        // The policy may have changed in the hours that nobody connected.
        let service = match serving(&keeper, &queue) {
            Some(service) if service.free => service,
            Some(_) => continue,
            None => return,
        };
        let begun = Instant::now();
        let outcome = match service.served_by {
            ServedBy::Program(program) => {
                // A task of its own: it sees the started worker through when this one is ended
                // meanwhile.
                let (queue, style) = (Arc::clone(&queue), service.style);
                tokio::spawn(async move { queue.spawn(program, style).await })
                    .await
                    .unwrap_or_else(|error| Err(SpawnError::Parent(io::Error::other(error)).into()))
            }
            ServedBy::Account(_) => {
                let Some(desk) = keeper.upgrade().map(|keeper| Arc::clone(&keeper.desk)) else {
                    return;
                };
                if !desk.offer(service.id, Arc::clone(&queue)).await {
                    continue;
                }
                Ok(())
            }
        };
        match outcome {
            Ok(()) => {
                if service.style == Style::User {
                    while queue.has_worker() {
                        queue.wait_for_end().await;
                    }
                    // One that has served what waited and ended is as good as one that stays.
                    let failed = begun.elapsed() < TOO_SHORT
                        && usher_kernel::listener::has_waiting(queue.listener.as_fd());
                    pause = if failed {
                        longer(pause)
                    } else {
                        Duration::ZERO
                    };
                    if failed {
                        tracing::warn!(service = %queue.service, user = %queue.account.name, ?pause,
                            "a worker ended at once; the next one waits");
                    }
                } else {
                    pause = Duration::ZERO;
                }
            }
            // Somebody has taken it meanwhile.
            Err(StartError::Spawn(SpawnError::NothingWaiting)) => {}
            Err(error) => {
                pause = longer(pause);
                tracing::error!(service = %queue.service, user = %queue.account.name, %error, ?pause,
                    "cannot start a worker");
            }
        }
    }
}

/// What is needed to start a worker of a service.
struct Serving {
    id: u32,
    style: Style,
    served_by: ServedBy,
    /// Whether another worker may be started.
    free: bool,
}

/// The queue's service as the policy now has it; none when that has it no longer.
fn serving(keeper: &Weak<Keeper>, queue: &Queue) -> Option<Serving> {
    let configuration = keeper.upgrade()?.configuration();
    let service = service_by_id(&configuration.1, queue.key.0)?;
    Some(Serving {
        id: service.id,
        style: service.style,
        served_by: service.served_by.clone(),
        free: match service.style {
            // A worker of an earlier keeper still holds the listener.
            Style::User => !queue.has_worker(),
            Style::Connection => queue.workers().len() < service.connections as usize,
        },
    })
}

/// Waits until another worker may be started; none when the policy has the service no longer.
async fn room(keeper: &Weak<Keeper>, queue: &Queue) -> Option<()> {
    while !serving(keeper, queue)?.free {
        queue.wait_for_end().await;
    }
    Some(())
}

impl Queue {
    /// Waits until a connection is in the queue. Nothing is registered when nobody waits: a worker
    /// that accepts by itself must not wake the keeper with each of its connections.
    async fn connection_waits(&self) -> io::Result<()> {
        let listener = register(Arc::clone(&self.listener), Interest::READABLE)?;
        loop {
            let mut ready = listener.readable().await?;
            if usher_kernel::listener::has_waiting(self.listener.as_fd()) {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(PAUSE.0, PAUSE.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut pause = longer(Duration::ZERO);
        assert_eq!(pause, PAUSE.0);
        for _ in 0..20 {
            let next = longer(pause);
            assert!(next >= pause);
            pause = next;
        }
        assert_eq!(pause, PAUSE.1);
    }
}
