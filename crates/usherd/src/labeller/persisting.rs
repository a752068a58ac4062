//! The thread that keeps labels of new files persistent, on all file systems that the policy calls
//! multilabel. Loading a module takes seconds, in which new files must not wait.
//!
//! The thread lists directories anywhere and opens no file otherwise, by rules of Landlock of its own; the
//! labeller's other threads list none of these. It reads and sets attributes through descriptors of O_PATH.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use usher_mac::NewFileLabels;
use usher_system::{SystemError, sandbox};

use super::error::MacError;
use super::file_systems::{FileSystems, mount_at};
use super::filing::Filing;
use super::persist::{Counts, Persister};

/// How long the thread may work on a turn's files before it counts as stuck.
const STUCK: Duration = Duration::from_secs(10);

/// A file system that the policy calls multilabel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Multilabel {
    /// Its mount point.
    pub(super) path: String,
    /// The number of the mount, which no later mount has before the next reboot.
    mount: u64,
    /// Its device: major and minor number.
    pub(super) device: (u32, u32),
}

/// The state of one file system, for an administrator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) counts: Counts,
    pub(super) is_walking: bool,
    /// The reason that it is not watched.
    pub(super) unwatched: Option<String>,
}

/// The thread, for the rest of the labeller.
#[derive(Debug)]
pub(super) struct Persisting {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// The source of labels, the file systems, and the specification.
type WantedFiles = (Option<NewFileLabels>, Vec<Multilabel>, Option<Arc<Filing>>);

#[derive(Debug)]
struct Shared {
    /// The source of labels and the file systems that are to replace the former ones, until the thread takes them
    /// over.
    wanted: Mutex<Option<WantedFiles>>,
    watched: Mutex<BTreeMap<String, Watched>>,
    looks_again: AtomicBool,
    /// Since when the thread works on at most so many files; `None`: it waits for new ones.
    busy: Mutex<Option<Instant>>,
    wake: File,
}

impl Multilabel {
    /// The file system that is mounted at a path.
    ///
    /// # Errors
    /// Nothing is mounted there, so that the path would mean the file system around it.
    pub(super) fn at(path: &str, file_systems: &FileSystems) -> io::Result<Self> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        // A user who owns a folder on the way cannot send the labeller elsewhere.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = openat2(CWD, path, flags, Mode::empty(), resolve)?;
        let found = statx(&root, c"", AtFlags::EMPTY_PATH, mask)?;
        Ok(Self {
            path: path.to_owned(),
            mount: mount_at(&found)?,
            device: file_systems.device(path)?,
        })
    }

    fn watch(&self) -> io::Result<Persister> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(flags.bits().cast_signed());
        let root = OwnedFd::from(options.open(&self.path)?);
        let found = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        if found.stx_mnt_id != self.mount {
            return Err(io::Error::other("another file system is mounted there now"));
        }
        Persister::watch(root).map_err(|error| match error.raw_os_error() {
            Some(errno) if errno == Errno::OPNOTSUPP.raw_os_error() => io::Error::other(
                "it has no file handles; for an overlay, name the file system of its upper directory",
            ),
            _ => error,
        })
    }
}

impl Persisting {
    /// Starts the thread, which watches nothing yet. Call it before this process is confined: the thread
    /// confines itself otherwise.
    ///
    /// # Errors
    /// When the kernel makes no thread or no descriptor, or refuses the rules of Landlock.
    pub(super) fn start() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            wanted: Mutex::default(),
            watched: Mutex::default(),
            looks_again: AtomicBool::default(),
            busy: Mutex::default(),
            wake: File::from(wake),
        });
        let thread = thread::Builder::new().name("persisting".to_owned());
        let (confined, outcome) = sync_channel(1);
        let thread = thread.spawn({
            let shared = Arc::clone(&shared);
            move || begin(&shared, &confined)
        })?;
        let outcome = outcome.recv().map_err(io::Error::other)?;
        outcome.map_err(io::Error::other)?;
        Ok(Self { shared, thread })
    }

    /// Replaces the file systems, the source of their labels, without which there are none, and the specification.
    ///
    /// # Errors
    /// The thread cannot be woken.
    pub(super) fn set(
        &self,
        labels: Option<NewFileLabels>,
        file_systems: Vec<Multilabel>,
        filing: Option<Arc<Filing>>,
    ) -> io::Result<()> {
        *self.shared.wanted.lock() = Some((labels, file_systems, filing));
        self.wake()
    }

    /// Has all files of what is watched looked at again.
    ///
    /// # Errors
    /// The thread cannot be woken.
    pub(super) fn look_again(&self) -> io::Result<()> {
        self.shared.looks_again.store(true, Ordering::Relaxed);
        self.wake()
    }

    /// How long the last walks over all files took, one for each file system.
    pub(super) fn walked(&self) -> Duration {
        let watched = self.shared.watched.lock();
        watched.values().map(|state| state.counts.walked).sum()
    }

    fn wake(&self) -> io::Result<()> {
        (&self.shared.wake).write_all(&1_u64.to_ne_bytes())
    }

    /// The file systems that are watched, or should be, by their mount points.
    pub(super) fn watched(&self) -> BTreeMap<String, Watched> {
        self.shared.watched.lock().clone()
    }

    /// The first file system that should be watched and is not, with the reason.
    pub(super) fn unwatched(&self) -> Option<MacError> {
        let watched = self.shared.watched.lock();
        let (path, reason) = watched
            .iter()
            .find_map(|(path, state)| Some((path, state.unwatched.as_ref()?)))?;
        Some(MacError::NotWatched {
            path: path.clone(),
            reason: reason.clone(),
        })
    }

    /// The reason that nothing gets a label: a file system that does not answer holds the thread up.
    pub(super) fn stuck(&self) -> Option<MacError> {
        let since = (*self.shared.busy.lock())?;
        let seconds = since.elapsed().as_secs();
        (seconds >= STUCK.as_secs()).then_some(MacError::Stuck(seconds))
    }

    /// True when the thread has ended, which it never does by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

fn begin(shared: &Shared, confined: &SyncSender<Result<(), SystemError>>) {
    let outcome = sandbox::landlock_lists(&[Path::new("/")]);
    let is_confined = outcome.is_ok();
    // The starter waits for it.
    if confined.send(outcome).is_ok() && is_confined {
        run(shared);
    }
}

fn run(shared: &Shared) {
    let mut labels = None;
    let mut at_work: Vec<(Multilabel, Persister)> = Vec::new();
    loop {
        *shared.busy.lock() = Some(Instant::now());
        // Before new ones come, which look at all files anyway.
        if shared.looks_again.swap(false, Ordering::Relaxed) {
            let all = at_work.iter_mut();
            all.for_each(|(_, persister)| persister.look_again());
        }
        if let Some((fresh, wanted, filing)) = shared.wanted.lock().take() {
            labels = fresh;
            at_work = exchange(at_work, wanted, &shared.watched);
            for (_, persister) in &mut at_work {
                persister.specify(filing.clone());
            }
        }
        let mut more = false;
        if let Some(labels) = &labels {
            for (_, persister) in &mut at_work {
                more |= persister.turn(&|file| labels.of(file).map_err(io::Error::other));
            }
        }
        show(&at_work, &shared.watched);
        if !more {
            *shared.busy.lock() = None;
            wait(&at_work, &shared.wake);
        }
    }
}

/// Watches what is wanted; what was watched already goes on.
fn exchange(
    mut at_work: Vec<(Multilabel, Persister)>,
    wanted: Vec<Multilabel>,
    watched: &Mutex<BTreeMap<String, Watched>>,
) -> Vec<(Multilabel, Persister)> {
    let mut unwatched = BTreeMap::new();
    let mut next = Vec::new();
    for file_system in wanted {
        let known = at_work.iter().position(|(known, _)| *known == file_system);
        if let Some(known) = known {
            next.push(at_work.swap_remove(known));
            continue;
        }
        match file_system.watch() {
            Ok(persister) => next.push((file_system, persister)),
            Err(error) => {
                let state = Watched {
                    unwatched: Some(error.to_string()),
                    ..Watched::default()
                };
                unwatched.insert(file_system.path, state);
            }
        }
    }
    *watched.lock() = unwatched;
    next
}

fn show(at_work: &[(Multilabel, Persister)], watched: &Mutex<BTreeMap<String, Watched>>) {
    let mut watched = watched.lock();
    for (file_system, persister) in at_work {
        let state = Watched {
            counts: persister.counts().clone(),
            is_walking: persister.is_walking(),
            unwatched: None,
        };
        watched.insert(file_system.path.clone(), state);
    }
}

/// Waits for new files, or for a change of what is wanted.
fn wait(at_work: &[(Multilabel, Persister)], mut wake: &File) {
    let persisters = at_work
        .iter()
        .filter_map(|(_, persister)| persister.events());
    let mut descriptors: Vec<_> = persisters
        .chain([wake.as_fd()])
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        .collect();
    let retries = at_work
        .iter()
        .filter_map(|(_, persister)| persister.retry());
    let wait = retries.min().map(|retry| {
        let wait = retry.saturating_duration_since(Instant::now());
        Timespec::try_from(wait).unwrap_or_default()
    });
    // An interruption is as good as an event: the caller looks for itself.
    let _interrupted = poll(&mut descriptors, wait.as_ref());
    // As many changes as there are: all are taken at once.
    let _none = wake.read(&mut [0; 8]);
}
