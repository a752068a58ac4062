//! The ends of workers: idle ones, and the left-over processes of ended ones.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::Interest;
use usher_daemon::events;
use usher_daemon::packet_async::register;
use usher_kernel::cgroup::Group;
use usher_kernel::worker::Ended;
use usher_policy::{Service, Style};
use usher_proto::program_end::ProgramEnd;

use super::{GRACE, Queue, State};
use crate::keeper::host::process::Process;
use crate::keeper::queues::starter::WorkersEnd;

/// A worker that ends with a failure within this time has not served its connection.
const AT_ONCE: Duration = Duration::from_secs(2);
/// The time that left-over processes of an ended one may take to exit after SIGTERM.
const GRACE_OF_REST: Duration = Duration::from_secs(5);
/// Limit of searches for processes in the group that have no SIGTERM yet. A process with a
/// pending signal does not fork before it has handled it (copy_process), so a second search nearly
/// always finds nothing new.
const LOOKS: usize = 16;

/// How the keeper learns of a worker's exit.
pub(super) enum Exit {
    /// This keeper's starter made the worker, and reports its end.
    Worker(WorkersEnd),
    /// Another process made the worker, and gets its exit status. This pidfd shows only that it has ended.
    Other(OwnedFd),
}

impl Exit {
    /// Waits for the exit; returns the status, if there is one.
    async fn wait(self, queue: &Queue, pid: u32) -> io::Result<Option<Ended>> {
        let pidfd = match self {
            Self::Worker(end) => match end.await {
                Ok(ended) => return Ok(Some(ended)),
                // The starter has ended, and the worker continues.
                Err(_) => match Process::open(pid.cast_signed()) {
                    Ok(process) if queue.holds(pid) => process.pidfd,
                    Ok(_) => return Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(error),
                },
            },
            Self::Other(pidfd) => pidfd,
        };
        let _ended = register(pidfd, Interest::READABLE)?.readable().await?;
        Ok(None)
    }
}

impl Queue {
    /// Waits until a worker has ended. Workers of an earlier keeper are not our children, so they are
    /// checked once a second.
    pub(super) async fn wait_for_end(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.ended.notified()).await;
    }

    /// Whether a process with this id is in the user's group. The id may have been reused.
    fn holds(&self, pid: u32) -> bool {
        self.group.pids().is_ok_and(|pids| pids.contains(&pid))
    }

    /// Sends SIGTERM to the processes of a worker of style `user` that is idle. Kills processes that were
    /// asked to end, also those that an ended worker has left behind, if they have not ended in time. The
    /// user has `connections` connections to the service `now`.
    pub fn end_if_idle(&self, service: &Service, connections: usize, now: Instant) {
        let mut state = self.state.lock();
        if connections > 0 || state.last_used.is_none() {
            state.last_used = Some(now);
        }
        if let Some(until) = state.ending {
            if now < until {
                return;
            }
            // A worker that has accepted connections that came meanwhile keeps serving.
            let is_in_use = state.last_used == Some(now) && !self.has_waiting();
            state.ending = None;
            if !state.workers.is_empty() && is_in_use {
                return;
            }
            drop(state);
            if self.occupied() {
                tracing::warn!(service = %self.service, user = %self.account.name,
                    "processes that did not end when asked are killed");
                self.kill();
            }
            return;
        }
        let idle = service.style == Style::User
            && !state.workers.is_empty()
            && state
                .last_used
                .is_some_and(|used| now.duration_since(used) >= service.idle);
        if idle {
            state.ending = Some(now + GRACE);
            tracing::info!(service = %self.service, user = %self.account.name, "idle worker ends");
            self.ask_to_end();
        }
    }

    /// Sends SIGTERM to all processes of the user at this service, including newly forked ones.
    fn ask_to_end(&self) {
        let mut asked = HashSet::new();
        for _ in 0..LOOKS {
            let before = asked.len();
            let mut groups = self.group.below().unwrap_or_default();
            groups.extend(Group::open(self.group.path()));
            for group in groups {
                let (found, unread) = processes(&group);
                if let Some(error) = unread {
                    tracing::error!(%error, service = %self.service, user = %self.account.name,
                        "cannot ask all processes to end; the others are killed later");
                }
                for process in found {
                    if asked.insert(process.pid) {
                        process.signal(Signal::TERM);
                    }
                }
            }
            if asked.len() == before {
                return;
            }
        }
    }

    /// Kills all processes, including those just being started, and returns when none is left. The queue
    /// is already closed.
    pub(in crate::keeper) async fn gone(&self) {
        let mut pause = Duration::from_millis(1);
        loop {
            // Read `starting` before looking into the group: a process that has been started is in the group
            // before `starting` drops to zero.
            let starting = self.state.lock().starting;
            self.kill();
            if starting == 0 && !self.occupied() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Notes that an order is over, or that a guest has not become the user.
    pub(super) fn nothing_starts(&self) {
        let mut state = self.state.lock();
        state.starting = state.starting.saturating_sub(1);
        self.end_left(&mut state);
    }

    /// Ends the left-over processes of ended workers, if these were the user's last: they must not keep
    /// the listener or the user's presence.
    pub(super) fn end_left(&self, state: &mut State) {
        // The next worker is in the group before it is known here. It must not be killed, nor its own
        // group be removed before it has entered. A removed queue kills by itself.
        if state.starting > 0 || state.stopped {
            return;
        }
        if let Err(error) = self.group.sweep() {
            tracing::error!(%error, "cannot sweep a user's cgroup");
        }
        if !state.workers.is_empty() || state.ending.is_some() || !self.occupied() {
            return;
        }
        // In style `connection` the next worker may enter the group at any time, so kill the left-over
        // processes now. If one process serves the whole queue, no other starts before they have ended.
        if state.one_for_all {
            state.ending = Some(Instant::now() + GRACE_OF_REST);
            self.ask_to_end();
        } else {
            self.kill();
        }
    }
}

/// How a program has failed, by its status or signal; none: it has not.
pub(super) fn failure(end: Ended) -> Option<ProgramEnd> {
    ProgramEnd::failure(end.code, end.signal)
}

/// Waits for a worker's end, and ends its left-over processes if it was the user's last.
pub(super) async fn reap(queue: Arc<Queue>, pid: u32, end: Exit) {
    let ended = end.wait(&queue, pid).await;
    match &ended {
        Ok(status) => {
            let (code, signal) = status.map_or((None, None), |ended| (ended.code, ended.signal));
            tracing::info!(name: events::WORKER_ENDED, service = %queue.service, user = %queue.account.name,
                pid, code, signal,
                "worker ended");
        }
        Err(error) => tracing::error!(%error, pid, "cannot wait for a worker"),
    }
    let mut state = queue.state.lock();
    let running = state.workers.iter().find(|running| running.pid == pid);
    let ran = running.map(|running| running.since.elapsed());
    let client = running.and_then(|running| running.client);
    state.last_end = ended.ok().flatten();
    // `serve` judges a process for the whole queue, by the connections that it leaves waiting.
    let is_judged_here = !state.one_for_all && !state.stopped;
    let end = state.last_end.filter(|_| is_judged_here);
    state.workers.retain(|running| running.pid != pid);
    queue.end_left(&mut state);
    drop(state);
    if ran.is_some_and(|ran| ran < AT_ONCE)
        && let Some(how) = end.and_then(failure)
    {
        let reason = format!("the service's program ended at once {how}");
        tracing::warn!(name: events::WORKER_FAILED, service = %queue.service, user = %queue.account.name, reason,
            "a connection was not served");
        queue.common.troubles.failed(&queue, &reason);
        if let Some(client) = client {
            queue.common.report_failed(queue.key, client, how);
        }
    }
    queue.ended.notify_waiters();
}

/// The processes of a group, without those in groups below it; and an error, if the group or some of its
/// processes cannot be looked at.
pub(super) fn processes(group: &Group) -> (Vec<Process>, Option<io::Error>) {
    let (mut processes, mut unread) = (Vec::new(), None);
    let mut listed = || {
        let pids = group.pids().map_err(io::Error::other);
        pids.map_err(|error| unread = Some(error))
            .unwrap_or_default()
    };
    let found = listed();
    // A pid that another process got before it was opened is no longer in the group.
    let opened: Vec<_> = found
        .into_iter()
        .map(|pid| (pid, Process::open(pid.cast_signed())))
        .collect();
    let present = listed();
    for (_, process) in opened.into_iter().filter(|(pid, _)| present.contains(pid)) {
        match process {
            Ok(process) => processes.push(process),
            // It has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => unread = Some(error),
        }
    }
    (processes, unread)
}
