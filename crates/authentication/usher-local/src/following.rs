//! A daemon follows the stored configuration by its own clock.
//!
//! The command that stores a configuration asks every daemon to take it. A daemon that is stopped, waits for
//! memory or has just begun to start misses that request, and another one may never come. So each daemon
//! compares the configuration that it has in force with the stored one, every two seconds, and takes it if
//! they differ. After a stall it compares before it serves anything, so the former configuration decides
//! nothing that has waited in its sockets meanwhile ([`Following::after_stall`]).
//!
//! Files are compared by inode and times: [`Applied::store`](crate::applied::Applied::store) makes a new
//! file each time.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use usher_daemon::events;

use crate::configuration::{Configuration, Stamp};
use crate::error::ConfigurationError;
use crate::paths;
use crate::reading::file_error;

/// The interval at which the stored configuration is compared with that in force.
const LOOKING: Duration = Duration::from_secs(2);

/// A daemon that has not compared for so long has stalled.
const STALL: Duration = Duration::from_secs(3);

/// The time after which a configuration that could not be put in force is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// A daemon that has a configuration in force.
pub trait Follower: Send + Sync {
    /// The stamp of the configuration in force; none while something that it forbids may go on.
    fn in_force(&self) -> Option<Stamp>;

    /// Puts the stored configuration in force.
    ///
    /// # Errors
    /// The reason that it is not in force, for people.
    fn take(&self, stored: Configuration) -> Result<(), String>;
}

/// Compares what is in force with what is stored.
pub struct Following {
    path: PathBuf,
    follower: OnceLock<Arc<dyn Follower>>,
    failed: Mutex<Option<Failed>>,
    begun: Instant,
    /// When the configurations were compared last, in milliseconds since `begun`.
    looked: AtomicU64,
}

/// A stored configuration that is not in force.
struct Failed {
    stored: Option<Stamp>,
    at: Instant,
    reason: String,
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Following {
    /// Compares nothing until [`Following::begin`].
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::of(Path::new(paths::APPLIED))
    }

    fn of(path: &Path) -> Arc<Self> {
        Arc::new(Self {
            path: path.into(),
            follower: OnceLock::new(),
            failed: Mutex::default(),
            begun: Instant::now(),
            looked: AtomicU64::new(0),
        })
    }

    /// From now on this daemon takes what is stored. A second call changes nothing.
    pub fn begin(&self, follower: Arc<dyn Follower>) {
        self.looked.store(self.now(), Ordering::Relaxed);
        // A process has only one daemon.
        let _ = self.follower.set(follower);
    }

    /// Compares at intervals, for ever.
    pub async fn keep(&self) {
        let mut now = tokio::time::interval(LOOKING);
        now.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            now.tick().await;
            self.look();
        }
    }

    /// Compares the configurations if that is overdue because this process has stalled. A thread of the
    /// daemon calls this when it wakes and holds no lock.
    pub fn after_stall(&self) {
        let looked = self.looked.load(Ordering::Relaxed);
        if u128::from(self.now().saturating_sub(looked)) >= STALL.as_millis() {
            self.look();
        }
    }

    /// The reason that the stored configuration is not in force, for people.
    pub fn trouble(&self) -> Option<String> {
        self.look();
        let failed = self.failed.lock();
        failed.as_ref().map(|Failed { reason, .. }| {
            format!("the stored configuration is not in force here: {reason}; put it right, then run `usher policy apply`")
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn look(&self) {
        let Some(follower) = self.follower.get() else {
            return;
        };
        // One thread compares at a time: another one waits until the newer configuration is in force.
        let mut failed = self.failed.lock();
        self.compare(follower.as_ref(), &mut failed);
        // Set only now: until then other threads find the comparison overdue, too, and wait for the lock.
        self.looked.store(self.now(), Ordering::Relaxed);
    }

    fn compare(&self, follower: &dyn Follower, failed: &mut Option<Failed>) {
        let stored = match Stamp::of(&self.path) {
            Ok(stored) => stored,
            Err(error) => return self.note(failed, None, error.to_string()),
        };
        if follower.in_force() == Some(stored) {
            *failed = None;
            return;
        }
        if stored == Stamp::default() {
            // A file that is being restored, or was removed by mistake, takes away no one's rights. What is
            // in force stays so until the next start.
            let gone = format!("{} is gone", self.path.display());
            return self.note(failed, Some(stored), gone);
        }
        if let Some(before) = failed.as_ref()
            && before.stored == Some(stored)
            && before.at.elapsed() < AGAIN
        {
            return;
        }
        let taken = Configuration::load_from(&self.path)
            .map_err(|error| error.to_string())
            .and_then(|fresh| {
                let generation = fresh.generation();
                follower.take(fresh).map(|()| generation)
            });
        match taken {
            Ok(generation) => {
                *failed = None;
                tracing::warn!(
                    generation,
                    "a configuration was stored that this daemon had not taken: it is in force now"
                );
            }
            Err(reason) => self.note(failed, Some(stored), reason),
        }
    }

    /// Notes a failure, and reports it unless it is the same as the last one.
    fn note(&self, failed: &mut Option<Failed>, stored: Option<Stamp>, reason: String) {
        if failed.as_ref().is_none_or(|last| last.reason != reason) {
            tracing::error!(name: events::CONFIGURATION_REFUSED, %reason, path = %self.path.display(),
                "the stored configuration is not in force here");
        }
        let at = Instant::now();
        *failed = Some(Failed { stored, at, reason });
    }
}

impl Stamp {
    /// The stamp of a file; the default if there is none.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn of(path: &Path) -> Result<Self, ConfigurationError> {
        match std::fs::metadata(path) {
            Ok(file) => Ok(Self::from(&file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(file_error(path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::applied::Applied;

    /// A daemon that takes every configuration unless `fails` is set. `taken` has each attempt.
    struct Daemon {
        in_force: Mutex<Stamp>,
        taken: Mutex<Vec<u64>>,
        fails: Mutex<bool>,
        is_unsettled: Mutex<bool>,
    }

    impl Follower for Daemon {
        fn in_force(&self) -> Option<Stamp> {
            let is_settled = !*self.is_unsettled.lock();
            is_settled.then_some(*self.in_force.lock())
        }

        fn take(&self, stored: Configuration) -> Result<(), String> {
            self.taken.lock().push(stored.generation());
            if *self.fails.lock() {
                return Err("no room".into());
            }
            *self.in_force.lock() = stored.stamp();
            Ok(())
        }
    }

    fn followed(folder: &Path) -> (Arc<Following>, Arc<Daemon>) {
        let daemon = Arc::new(Daemon {
            in_force: Mutex::default(),
            taken: Mutex::default(),
            fails: Mutex::new(false),
            is_unsettled: Mutex::new(false),
        });
        let following = Following::of(&folder.join("applied.json"));
        following.begin(Arc::clone(&daemon) as Arc<dyn Follower>);
        (following, daemon)
    }

    fn store(folder: &Path, generation: u64) {
        let applied = Applied {
            generation,
            ..Applied::default()
        };
        let previous = folder.join("previous.json");
        applied
            .store(&folder.join("applied.json"), &previous)
            .unwrap();
    }

    #[test]
    fn what_is_stored_is_taken_once_and_what_is_in_force_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (following, daemon) = followed(folder.path());
        following.look();
        assert_eq!(*daemon.taken.lock(), [0; 0]);
        for generation in 1..4 {
            store(folder.path(), generation);
            following.look();
            following.look();
        }
        assert_eq!(*daemon.taken.lock(), [1, 2, 3]);
        assert_eq!(following.trouble(), None);
    }

    #[test]
    fn only_a_process_that_has_stalled_compares_before_it_serves() {
        let folder = tempfile::tempdir().unwrap();
        let (following, daemon) = followed(folder.path());
        store(folder.path(), 1);
        let begun = following.now();
        following.after_stall();
        // If the machine has just stalled, this process may have stalled as well.
        if following.now() - begun < 1000 {
            assert_eq!(*daemon.taken.lock(), [0; 0]);
        }
        let mut following = following;
        let past = following.begun.checked_sub(STALL).unwrap();
        Arc::get_mut(&mut following).unwrap().begun = past;
        following.after_stall();
        assert_eq!(*daemon.taken.lock(), [1]);
    }

    #[test]
    fn a_failure_is_a_trouble_until_the_next_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let (following, daemon) = followed(folder.path());
        *daemon.fails.lock() = true;
        store(folder.path(), 1);
        let trouble = following.trouble().unwrap();
        assert!(trouble.contains("no room"), "{trouble}");
        // The daemon does not try again at once.
        assert_eq!(following.trouble(), Some(trouble));
        assert_eq!(*daemon.taken.lock(), [1]);
        *daemon.fails.lock() = false;
        store(folder.path(), 2);
        assert_eq!(following.trouble(), None);
        assert_eq!(*daemon.taken.lock(), [1, 2]);
    }

    #[test]
    fn what_a_configuration_forbids_is_ended_until_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let (following, daemon) = followed(folder.path());
        store(folder.path(), 1);
        following.look();
        *daemon.is_unsettled.lock() = true;
        *daemon.fails.lock() = true;
        for _ in 0..2 {
            assert!(following.trouble().unwrap().contains("no room"));
        }
        // The daemon has tried again at once, and does not do so again before its time.
        assert_eq!(*daemon.taken.lock(), [1, 1]);
        let past = Instant::now().checked_sub(AGAIN).unwrap();
        following.failed.lock().as_mut().unwrap().at = past;
        *daemon.fails.lock() = false;
        following.look();
        *daemon.is_unsettled.lock() = false;
        assert_eq!(following.trouble(), None);
        assert_eq!(*daemon.taken.lock(), [1, 1, 1]);
    }

    #[test]
    fn a_file_that_is_gone_or_damaged_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (following, daemon) = followed(folder.path());
        store(folder.path(), 1);
        following.look();
        let in_force = daemon.in_force();
        let path = folder.path().join("applied.json");
        std::fs::remove_file(&path).unwrap();
        assert!(following.trouble().unwrap().contains("is gone"));
        std::fs::write(&path, "{").unwrap();
        let damaged = following.trouble().unwrap();
        assert!(
            damaged.contains("not an applied configuration"),
            "{damaged}"
        );
        assert_eq!(daemon.in_force(), in_force);
        assert_eq!(*daemon.taken.lock(), [1]);
    }
}
