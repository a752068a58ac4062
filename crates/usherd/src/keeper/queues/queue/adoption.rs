//! Adopted processes of a queue, which this keeper has not started: a service's own, which become the
//! user, and those of an earlier keeper.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_daemon::events;
use usher_kernel::KernelError;
use usher_kernel::cgroup::{Group, Guest};
use usher_proto::refusal::Refusal;

use super::exits::{Exit, processes, reap};
use super::{Queue, Running};
use crate::keeper::host::process::Process;

/// The interval and the time limit of checks whether a child of an ended starter has become the
/// user or has ended. A worker's set-user-ID program never becomes the user.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(5));

impl Queue {
    /// Moves a process of the service that is about to become the user into a group of its own below the
    /// user's, so that anything that ends the user's workers also ends it and its children. The caller must
    /// then call [`Queue::take_in`] or [`Queue::expel`]. The move runs off the reactor's thread, because the
    /// kernel may take milliseconds.
    ///
    /// # Errors
    /// [`Refusal::SessionEnded`] when the queue has been removed meanwhile,
    /// [`Refusal::KeeperUnavailable`] when the kernel does not move it.
    pub async fn admit(self: &Arc<Self>, process: &Process) -> Result<Guest, Refusal> {
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, service = %self.service, user = %self.account.name,
                pid = process.pid, "cannot take a process into its user's cgroup");
            Refusal::KeeperUnavailable
        };
        let pidfd = process.pidfd.try_clone().map_err(|error| failed(&error))?;
        let pid = process.pid.unsigned_abs();
        if !self.begin() {
            return Err(Refusal::SessionEnded);
        }
        let queue = Arc::clone(self);
        let moved = tokio::task::spawn_blocking(move || queue.group.take_in(pid, pidfd)).await;
        let guest = moved
            .map_err(io::Error::other)
            .and_then(|moved| moved.map_err(io::Error::other))
            .map_err(|error| {
                self.nothing_starts();
                failed(&error)
            })?;
        // A queue that is removed after this check kills the user's group, and this process with it.
        if self.state.lock().stopped {
            self.expel(guest, true).await;
            return Err(Refusal::SessionEnded);
        }
        Ok(guest)
    }

    /// Handles an admitted process that has not become the user: with `back` it returns to its former
    /// group, else it is killed; its children are killed in any case.
    pub async fn expel(&self, guest: Guest, back: bool) {
        let left = tokio::task::spawn_blocking(move || guest.leave(back)).await;
        if !matches!(left, Ok(Ok(()))) {
            tracing::error!(?left, service = %self.service, user = %self.account.name,
                "cannot expel a process that has not become its user");
        }
        self.nothing_starts();
    }

    /// Counts an admitted process that has become the user as a worker.
    ///
    /// # Errors
    /// [`Refusal::SessionEnded`] when the queue has been removed meanwhile; the process is then killed.
    pub fn take_in(self: &Arc<Self>, pid: u32, pidfd: OwnedFd) -> Result<(), Refusal> {
        tracing::info!(name: events::WORKER_STARTED, service = %self.service, user = %self.account.name,
            uid = self.account.uid, pid, "process has become the user");
        let is_worker = self.enlist(pid, None, Exit::Other(pidfd));
        let mut state = self.state.lock();
        state.starting = state.starting.saturating_sub(1);
        if is_worker {
            Ok(())
        } else {
            Err(Refusal::SessionEnded)
        }
    }

    /// Adopts the workers that an earlier keeper has started: they keep serving, and count.
    pub(super) fn follow_inherited(self: &Arc<Self>) {
        let failed = |error: KernelError| {
            tracing::error!(%error, service = %self.service, user = %self.account.name,
                "cannot look into a worker's cgroup");
        };
        let mut groups = self.group.below().map_err(failed).unwrap_or_default();
        groups.extend(Group::open(self.group.path()).map_err(failed));
        for group in groups {
            if self.follow_workers(&group) {
                continue;
            }
            // The group has a process of the service that is not the user yet. Its grant no longer counts,
            // and its former group is unknown.
            tracing::warn!(service = %self.service, user = %self.account.name, pid = ?group.guest_pid(),
                "a process that had not become its user when the former keeper ended is killed");
            let killed = group.kill();
            killed.unwrap_or_else(failed);
        }
        // The last worker may have ended with the former keeper.
        self.end_left(&mut self.state.lock());
    }

    /// Adopts workers that an ended starter has made and not reported. A process that is not the user yet
    /// ends with the starter, or becomes the user in a moment.
    pub(super) async fn follow_strays(self: &Arc<Self>) {
        let begun = Instant::now();
        while !self.follow_workers(&self.group) && begun.elapsed() < LOOKS.1 {
            tokio::time::sleep(LOOKS.0).await;
        }
    }

    /// Follows the workers in a group that are not counted yet. Returns whether every process there is known
    /// to have all four user ids of the user.
    fn follow_workers(self: &Arc<Self>, group: &Group) -> bool {
        let (processes, unread) = processes(group);
        if let Some(error) = &unread {
            tracing::error!(%error, service = %self.service, user = %self.account.name,
                "cannot look at all processes of an earlier keeper or starter");
        }
        let pids: Vec<i32> = processes.iter().map(|process| process.pid).collect();
        let (users, others): (Vec<_>, Vec<_>) = processes
            .into_iter()
            .partition(|process| process.users == [self.account.uid; 4]);
        for process in users {
            let pid = process.pid.unsigned_abs();
            let is_known = self.workers().iter().any(|worker| worker.pid == pid);
            if !is_known && is_worker(&process, group, &pids) {
                tracing::info!(service = %self.service, user = %self.account.name, pid,
                    "worker of an earlier starter goes on");
                // A worker of an earlier keeper has run for longer than this keeper.
                let since = process.since();
                self.state.lock().workers.push(Running {
                    pid,
                    since,
                    client: None,
                });
                tokio::spawn(reap(Arc::clone(self), pid, Exit::Other(process.pidfd)));
            }
        }
        unread.is_none() && others.is_empty()
    }
}

/// Whether a process in a group is a worker, and not a helper that a worker has made. A starter's child
/// begins a session before it becomes the user; a service's own process has a group of its own.
fn is_worker(process: &Process, group: &Group, pids: &[i32]) -> bool {
    match group.guest_pid() {
        Some(pid) => pid == process.pid.unsigned_abs(),
        None => process.leads_session && !pids.contains(&process.parent),
    }
}
