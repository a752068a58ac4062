//! The ends of the workers that this keeper has started. They are its children: a child's number is
//! nobody else's until it has been waited for, so none needs a descriptor, of which ten thousand
//! workers would take as many.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// How a child has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status.
    pub code: Option<i32>,
    /// The signal that has killed it.
    pub signal: Option<i32>,
}

/// Children that are followed.
#[derive(Default)]
pub struct Children(Mutex<HashMap<i32, oneshot::Sender<Ended>>>);

impl Children {
    /// Tells how a child has ended, once it has; the caller is the only one who waits for it. When
    /// it is no child, or no longer, the sender is dropped.
    pub fn follow(&self, pid: u32) -> oneshot::Receiver<Ended> {
        let (sender, ended) = oneshot::channel();
        let pid = pid.cast_signed();
        self.lock().insert(pid, sender);
        // It may have ended before it was entered.
        self.reap(pid);
        ended
    }

    /// Has the kernel tell when a child ends. Called before there are any.
    ///
    /// # Errors
    /// When the reactor cannot take the signal.
    pub fn signals() -> io::Result<Signal> {
        signal(SignalKind::child())
    }

    /// Waits for children that end, for ever.
    pub async fn watch(&self, mut signals: Signal) {
        while signals.recv().await.is_some() {
            self.look();
        }
    }

    /// Looks for children that have ended: one signal may stand for many.
    fn look(&self) {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            let ended = match nix::sys::wait::waitid(Id::All, peek) {
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(status) => status.pid().map(nix::unistd::Pid::as_raw),
                // Of one that a real-time signal has killed nix says EINVAL, and not which it is.
                Err(error) => {
                    tracing::debug!(%error, "workers that have ended are asked for one by one");
                    None
                }
            };
            match ended {
                Some(pid) if self.lock().contains_key(&pid) => self.reap(pid),
                // One that is waited for where it was made, or is about to be followed. It stands
                // before others, which are asked for one by one.
                _ => break,
            }
        }
        let followed: Vec<i32> = self.lock().keys().copied().collect();
        for pid in followed {
            self.reap(pid);
        }
    }

    /// Waits for a child if it has ended.
    fn reap(&self, pid: i32) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let outcome = match Pid::from_raw(pid) {
            Some(pid) => rustix::process::waitid(WaitId::Pid(pid), options),
            None => Err(rustix::io::Errno::CHILD),
        };
        let ended = match outcome {
            Ok(None) => return,
            Ok(Some(status)) => Ok(Ended {
                code: status.exit_status(),
                signal: status.terminating_signal(),
            }),
            Err(error) => Err(error),
        };
        let follower = self.lock().remove(&pid);
        match (ended, follower) {
            // Who does not listen any more need not know.
            (Ok(ended), Some(follower)) => drop(follower.send(ended)),
            (Ok(_), None) => {}
            (Err(error), _) => tracing::error!(%error, pid, "waiting for a worker"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i32, oneshot::Sender<Ended>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;

    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Waits until a child has ended, and leaves it to be waited for.
    fn ended(child: &Child) {
        let pid = Pid::from_child(child);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(pid), options).unwrap();
    }

    /// One test, as the process has one set of children.
    #[tokio::test]
    #[expect(
        clippy::zombie_processes,
        reason = "who waits for them is what is tested"
    )]
    async fn each_end_is_told_to_its_follower_also_behind_one_that_nobody_follows() {
        let children = Arc::new(Children::default());
        let signals = Children::signals().unwrap();
        let watching = tokio::spawn({
            let children = Arc::clone(&children);
            async move { children.watch(signals).await }
        });

        // Ended before it is followed.
        let early = shell("exit 3");
        ended(&early);
        let status = children.follow(early.id()).await.unwrap();
        let exited = |code| Ended {
            code: Some(code),
            signal: None,
        };
        assert_eq!(status, exited(3));

        // Killed by a real-time signal, and then another one ends by itself.
        let killed = shell("kill -34 $$");
        let mut behind = shell("read line; exit 7");
        let (end_of_killed, end_of_behind) =
            (children.follow(killed.id()), children.follow(behind.id()));
        let by_signal = Ended {
            code: None,
            signal: Some(34),
        };
        assert_eq!(end_of_killed.await, Ok(by_signal));
        drop(behind.stdin.take());
        assert_eq!(end_of_behind.await, Ok(exited(7)));

        // The same while nobody follows the one that was killed.
        let mut stays = shell("kill -34 $$");
        ended(&stays);
        let mut behind = shell("read line; exit 8");
        let end_of_behind = children.follow(behind.id());
        drop(behind.stdin.take());
        assert_eq!(end_of_behind.await, Ok(exited(8)));

        // Nobody follows this one, which has ended and stays so.
        let mut unfollowed = shell("exit 4");
        ended(&unfollowed);
        let mut many = Vec::new();
        for code in 5..9 {
            let child = shell(&format!("read line; exit {code}"));
            let ended = children.follow(child.id());
            many.push((code, child, ended));
        }
        for (code, mut child, ended) in many {
            // It has read what it waited for.
            drop(child.stdin.take());
            assert_eq!(ended.await, Ok(exited(code)));
        }
        assert_eq!(unfollowed.wait().unwrap().code(), Some(4));
        assert_eq!(stays.wait().unwrap().code(), None);

        // What is no child is not waited for.
        assert!(children.follow(1).await.is_err());
        watching.abort();
    }
}
