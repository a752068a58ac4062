//! The ends of workers, and what they leave behind.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use usher_kernel::worker::Ended;
use usher_local::packet_async::register;

use super::super::process::Process;
use super::super::starter::WorkersEnd;
use super::{Queue, State};

/// What tells of a worker's end.
pub(super) enum End {
    /// One that a starter of this keeper has started, which tells.
    Worker(WorkersEnd),
    /// Another, whose status is its parent's.
    Other(OwnedFd),
}

impl End {
    /// Waits for it; gives the status where there is one.
    async fn wait(self, queue: &Queue, pid: u32) -> io::Result<Option<Ended>> {
        let pidfd = match self {
            Self::Worker(end) => match end.await {
                Ok(ended) => return Ok(Some(ended)),
                // The starter has ended, and the worker goes on.
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
    /// Waits until a worker has ended. Workers of an earlier keeper are not our children: they
    /// are looked for once a second.
    pub(super) async fn wait_for_end(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.ended.notified()).await;
    }

    /// Whether a process is in the user's group, and not another that has its number by now.
    fn holds(&self, pid: u32) -> bool {
        self.group.pids().is_ok_and(|pids| pids.contains(&pid))
    }

    /// What was to be a worker is none.
    pub(super) fn nothing_starts(&self) {
        let mut state = self.lock();
        state.starting = false;
        self.end_left(&state);
    }

    /// Ends what workers that have ended left behind, when they were the user's last.
    fn end_left(&self, state: &State) {
        // The next worker is in the group before it is known here: it must not be killed, nor its
        // own group be taken away before it is in it.
        if state.starting {
            return;
        }
        if let Err(error) = self.group.sweep() {
            tracing::error!(%error, "cannot sweep a user's cgroup");
        }
        if state.workers.is_empty() && self.occupied() {
            // What a worker forked and left must not keep the listener or the user's presence.
            self.kill();
        }
    }
}

/// Waits for a worker's end, and ends what it has left behind when it was the user's last.
pub(super) async fn reap(queue: Arc<Queue>, pid: u32, end: End) {
    match end.wait(&queue, pid).await {
        Ok(status) => {
            let (code, signal) = status.map_or((None, None), |ended| (ended.code, ended.signal));
            tracing::info!(service = %queue.service, user = %queue.account.name, pid, code, signal,
                "worker ended");
        }
        Err(error) => tracing::error!(%error, pid, "cannot wait for a worker"),
    }
    let mut state = queue.lock();
    state.workers.retain(|running| running.pid != pid);
    queue.end_left(&state);
    drop(state);
    queue.ended.notify_waiters();
}
