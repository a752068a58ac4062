//! Serves a queue: waits for connections, starts processes for them, and refuses connections that
//! no process will take. A client is served or reset within seconds and never waits indefinitely.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::time::timeout;
use usher_daemon::events;
use usher_daemon::packet_async::register;
use usher_kernel::listener;
use usher_kernel::worker::SpawnError;
use usher_policy::{Backend, DEFAULT_UMASK, Program, ServedBy, Service, Style};
use usher_proto::program_end::ProgramEnd;
use usher_proto::refusal::Refusal;

use super::exits::failure;
use super::{Queue, StartError};
use crate::keeper::host::installed_beside;
use crate::keeper::queues::BACKLOG;
use crate::keeper::queues::desk::Outcome;

/// The time that connections wait for a process; then all waiting ones are refused. It starts anew
/// whenever a process of the user ends and takes the next connection.
const WAITING: Duration = Duration::from_secs(15);
/// Number of consecutive failed starts after which connections are refused.
const ATTEMPTS: u32 = 4;
/// First and longest pause after a failure; doubled in between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The interval at which connections that come during a pause are refused.
const LOOK: Duration = Duration::from_millis(500);

/// Consecutive failed starts.
#[derive(Default)]
struct Failures {
    count: u32,
    reason: String,
    /// How the program ended, if the last failure was its end.
    end: Option<ProgramEnd>,
}

impl Failures {
    fn add(&mut self, reason: String, end: Option<ProgramEnd>) {
        self.count = self.count.saturating_add(1);
        self.reason = reason;
        self.end = end;
    }

    /// The time until the next attempt.
    fn pause(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => (PAUSE.0 * 2_u32.saturating_pow(count - 1)).min(PAUSE.1),
        }
    }

    /// Whether connections are refused instead of kept for the next attempt.
    fn refuse(&self) -> bool {
        self.count >= ATTEMPTS
    }
}

/// Waits for connections and starts workers.
pub(super) async fn serve(queue: Arc<Queue>) {
    // The group is free once the processes of the user's former queue have ended.
    while timeout(WAITING, queue.common.leaving.gone(queue.key))
        .await
        .is_err()
    {
        if queue.has_waiting() {
            let reason = "processes of the former worker have not ended, though killed: do they wait for \
                a file system?";
            queue.common.troubles.failed(&queue, reason);
            queue.refuse_waiting(reason);
        }
    }
    let mut failures = Failures::default();
    // The time since which starters have ended without serving. Connections wait for the next starter.
    let mut starterless: Option<Instant> = None;
    loop {
        rest(&queue, &failures).await;
        if room(&queue).await.is_none() {
            return;
        }
        if let Err(error) = queue.connection_waits().await {
            failures.add(format!("cannot wait for connections: {error}"), None);
            tracing::error!(service = %queue.service, user = %queue.account.name, %error,
                "cannot wait for connections");
            continue;
        }
        // The policy may have changed in the hours without a connection.
        let epoch = queue.common.starter.epoch();
        let (service, free) = match serving(&queue) {
            Some((_, 0)) => continue,
            Some(free) => free,
            None => return,
        };
        let before = queue.waiting();
        let begun = Instant::now();
        let program = match &service.served_by {
            ServedBy::Program(program) => Some(Ok(program.clone())),
            ServedBy::Backend(backend) => Some(passing_on(backend)),
            ServedBy::Account(_) => None,
        };
        let outcome = match program {
            Some(Err(error)) => Err(SpawnError::Parent(error).into()),
            Some(Ok(program)) => {
                let order = Arc::clone(&queue).spawn(program, service.style, free, epoch);
                // A separate task, which completes the order even if this one is ended meanwhile.
                tokio::spawn(order)
                    .await
                    .unwrap_or_else(|error| Err(SpawnError::Parent(io::Error::other(error)).into()))
            }
            None => {
                let desk = &queue.common.desk;
                match desk.offer(service.id, Arc::clone(&queue), WAITING).await {
                    Outcome::Served => Ok(()),
                    Outcome::Lapsed => Err(StartError::Lapsed),
                    Outcome::Untaken => {
                        if queue.has_waiting() {
                            let reason = "no process of the service takes its users: does it run?";
                            queue.common.troubles.failed(&queue, reason);
                            queue.refuse_waiting(reason);
                        }
                        continue;
                    }
                }
            }
        };
        let mut end = None;
        let failed = match outcome {
            Ok(()) if service.style.serves_queue() => {
                queue.see_through(&mut failures).await;
                // A worker that served the waiting connections and ended counts as success.
                if queue.has_accepted(before, begun) {
                    None
                } else {
                    end = queue.state.lock().last_end.and_then(failure);
                    let how = end.map_or_else(String::new, |how| format!(" {how}"));
                    Some(format!(
                        "it ends{how} without accepting the connections that wait"
                    ))
                }
            }
            Ok(()) => None,
            // Another process has accepted the connection meanwhile, or a new policy has ended the order.
            Err(StartError::Spawn(SpawnError::NothingWaiting)) => {
                starterless = None;
                continue;
            }
            // The administrator may reopen the account or repair the modules at any moment, so
            // there is no pause.
            Err(error @ (StartError::Account(_) | StartError::Session(_))) => {
                let reason = match error {
                    StartError::Account(refusal) => {
                        if let Refusal::NoLocalAccount | Refusal::PrivilegedAccount = refusal {
                            queue.common.suspect(&queue.account.name);
                        }
                        if queue.is_shared {
                            format!("the service's account {}: {refusal}", queue.account.name)
                        } else {
                            refusal.to_string()
                        }
                    }
                    error => error.to_string(),
                };
                queue.common.troubles.failed(&queue, &reason);
                queue.refuse_waiting(&reason);
                continue;
            }
            Err(StartError::Stopped) => return,
            Err(StartError::Spawn(SpawnError::StarterGone))
                if queue.outlasts_starter(before, begun, &mut starterless) =>
            {
                tokio::time::sleep(PAUSE.0).await;
                continue;
            }
            Err(error) => Some(error.to_string()),
        };
        match failed {
            None => {
                starterless = None;
                failures = Failures::default();
                queue.common.troubles.over(queue.key.0);
            }
            Some(reason) => {
                queue.common.troubles.failed(&queue, &reason);
                failures.add(reason, end);
                let pause = failures.pause();
                tracing::error!(name: events::WORKER_FAILED, service = %queue.service, user = %queue.account.name,
                    error = failures.reason, ?pause, "cannot start a worker");
            }
        }
    }
}

/// The program usher-identify, which passes connections on to the service's server.
fn passing_on(backend: &Backend) -> io::Result<Program> {
    let path = installed_beside("usher-identify")?;
    let mut arguments = vec![backend.identification.to_string(), backend.socket.clone()];
    if let Some(header) = &backend.header {
        arguments.extend(["--header".to_owned(), header.clone()]);
    }
    Ok(Program {
        path: path.display().to_string(),
        arguments,
        account: Some(backend.account.clone()),
        environment: Vec::new(),
        files: None,
        umask: DEFAULT_UMASK,
        setuid: false,
        pam_session: false,
    })
}

/// The queue's service in the present policy, and how many more processes may be started. None if the policy
/// no longer has the service, or no longer serves it by this queue.
fn serving(queue: &Queue) -> Option<(Service, usize)> {
    let configuration = queue.common.host.configuration.get();
    let service = configuration.checked.service(queue.key.0)?;
    if !queue.belongs_to(service) {
        return None;
    }
    queue.state.lock().one_for_all = service.style.serves_queue();
    let free = match service.style {
        // One process serves the whole queue. It may be one that an earlier keeper has started.
        Style::User | Style::Shared => usize::from(!queue.has_worker()),
        Style::Connection => (service.connections as usize).saturating_sub(queue.running()),
    };
    Some((service.clone(), free))
}

/// Waits until another worker may be started. None if the policy no longer serves the service by this queue.
async fn room(queue: &Queue) -> Option<()> {
    let mut since: Option<Instant> = None;
    loop {
        let (service, free) = serving(queue)?;
        if free > 0 {
            return Some(());
        }
        // A process that serves the whole queue accepts in its own time.
        let accepts = service.style.serves_queue() && queue.running() > 0;
        if accepts || !queue.has_waiting() {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= WAITING {
            let reason = match service.style {
                Style::Connection => format!(
                    "all {} processes that policy lets the user have (`connections`) are busy",
                    service.connections
                ),
                Style::User => "what the user's last process has left has not ended".into(),
                Style::Shared => "what the service's last process has left has not ended".into(),
            };
            queue.refuse_waiting(&reason);
            since = None;
        }
        queue.wait_for_end().await;
    }
}

/// Pauses after failures. After many, refuses the connections that come meanwhile.
async fn rest(queue: &Queue, failures: &Failures) {
    let until = Instant::now() + failures.pause();
    loop {
        if failures.refuse() && queue.has_waiting() {
            if let Some(end) = failures.end {
                queue.report_waiting(end);
            }
            queue.refuse_waiting(&failures.reason);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

impl Queue {
    /// Waits until a connection is in the queue. The listener is registered only meanwhile: a
    /// worker that accepts by itself must not wake the keeper for each connection.
    async fn connection_waits(&self) -> io::Result<()> {
        let listener = register(Arc::clone(&self.listener), Interest::READABLE)?;
        loop {
            let mut ready = listener.readable().await?;
            if self.has_waiting() {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    /// Whether a connection is waiting.
    pub(super) fn has_waiting(&self) -> bool {
        listener::has_waiting(self.listener.as_fd())
    }

    /// The number of waiting connections.
    pub(super) fn waiting(&self) -> usize {
        listener::waiting(self.listener.as_fd()).map_or_else(
            |error| {
                tracing::error!(%error, "cannot look into a queue");
                0
            },
            |count| count as usize,
        )
    }

    /// Waits until the process that serves the whole queue has ended with all its descendants.
    async fn see_through(&self, failures: &mut Failures) {
        let mut has_served = false;
        while self.has_worker() {
            // The process has accepted the connections that it was started for.
            if !has_served && !self.has_waiting() {
                *failures = Failures::default();
                self.common.troubles.over(self.key.0);
                has_served = true;
            }
            self.wait_for_end().await;
        }
    }

    /// Whether a connection was accepted since the queue had `before` connections at the time
    /// `begun`, or none is waiting.
    fn has_accepted(&self, before: usize, begun: Instant) -> bool {
        let waiting = self.waiting();
        if waiting == 0 {
            return true;
        }
        let elapsed = begun.elapsed();
        let rows = match self.common.host.admissions() {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, "cannot read the admission table");
                return false;
            }
        };
        let come = rows
            .iter()
            .filter(|row| self.has(row) && row.established.is_some_and(|age| age <= elapsed));
        before + come.count() > waiting
    }

    /// Whether connections wait for the next starter, after one has ended during an order: at most
    /// [`WAITING`] from the first starter that ended without having served.
    fn outlasts_starter(&self, before: usize, begun: Instant, since: &mut Option<Instant>) -> bool {
        if self.has_accepted(before, begun) {
            *since = None;
            return true;
        }
        since.get_or_insert_with(Instant::now).elapsed() < WAITING
    }

    /// Reports to the clients of the waiting connections how the program failed that should have served them.
    fn report_waiting(&self, end: ProgramEnd) {
        for row in self.waiting_connections() {
            let user = (row.service, row.uid);
            self.common.report_failed(user, row.connection.client, end);
        }
    }

    /// Resets all connections that wait.
    fn refuse_waiting(&self, reason: &str) {
        let connections = self.waiting();
        tracing::warn!(service = %self.service, user = %self.account.name, connections, reason,
            "connections that wait are refused");
        if let Err(error) = listener::refuse_waiting(self.listener.as_fd(), BACKLOG) {
            tracing::error!(%error, service = %self.service, user = %self.account.name,
                "cannot refuse connections that wait");
        }
        self.common
            .troubles
            .refused(self, connections as u64, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_then_connections_are_refused() {
        let mut failures = Failures::default();
        assert_eq!(failures.pause(), Duration::ZERO);
        let mut waited = Duration::ZERO;
        while !failures.refuse() {
            waited += failures.pause();
            failures.add(String::new(), None);
        }
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        for _ in 0..40 {
            let before = failures.pause();
            failures.add(String::new(), None);
            assert!(failures.pause() >= before);
        }
        assert_eq!(failures.pause(), PAUSE.1);
    }
}
