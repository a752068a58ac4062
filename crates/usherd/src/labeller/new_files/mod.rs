//! The threads that keep labels of new files persistent, one for each multilabel file system. New files must
//! not wait while the labeller loads a module, which takes seconds, and a file system that does not answer
//! must hold up its own thread only (ADR 101).
//!
//! The first thread starts the others, and asks no file system. By their own rules of Landlock all of them
//! may list directories anywhere and open no other file; the labeller's other threads may list none of these
//! directories. They read and set attributes through descriptors of O_PATH.

mod walk;
mod writing;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use usher_mac::NewFileLabels;
use usher_system::{SystemError, sandbox};

use super::error::MacError;
use super::file_systems::{FileSystems, QUIETLY};
use super::filing::Filing;
pub(super) use walk::DEEPEST;
use writing::{Counts, LabelWriter};

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

/// The handle by which the rest of the labeller uses the threads.
#[derive(Debug)]
pub(super) struct LabelWriters {
    shared: Arc<Shared>,
    /// The first thread, which starts the others.
    thread: JoinHandle<()>,
}

/// The means of a thread: the source of labels, and the specification.
#[derive(Debug, Clone)]
struct Means {
    labels: Arc<NewFileLabels>,
    filing: Option<Arc<Filing>>,
}

#[derive(Debug)]
struct Shared {
    /// The file systems that are to replace the former ones, until the first thread takes them over.
    wanted: Mutex<Option<(Option<Means>, Vec<Multilabel>)>>,
    /// The file systems at work, by their mount points.
    lanes: Mutex<BTreeMap<String, Arc<Lane>>>,
    wake: Wake,
}

/// The state of one file system's thread, which other threads share.
#[derive(Debug)]
struct Lane {
    file_system: Multilabel,
    /// The new means, until the thread takes them over.
    fresh: Mutex<Option<Means>>,
    state: Mutex<Watched>,
    looks_again: AtomicBool,
    /// The thread is to end.
    is_over: AtomicBool,
    /// Since when the thread has worked on the files of a turn; `None`: it waits for new files.
    busy: Mutex<Option<Instant>>,
    thread: OnceLock<JoinHandle<()>>,
    wake: Wake,
}

/// Wakes a thread that waits for files.
#[derive(Debug)]
struct Wake(File);

impl Multilabel {
    /// The file system that is mounted at a path.
    ///
    /// # Errors
    /// Nothing is mounted there, so that the path would mean the file system around it.
    pub(super) fn at(path: &str, file_systems: &FileSystems) -> io::Result<Self> {
        let (mount, device) = file_systems.mounted(path, |path| {
            let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
            // Follow no links, by which a user who owns a folder on the way could misdirect the labeller.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let root = openat2(CWD, path, flags, Mode::empty(), resolve)?;
            Ok(statx(&root, c"", AtFlags::EMPTY_PATH | QUIETLY, mask)?)
        })?;
        Ok(Self {
            path: path.to_owned(),
            mount,
            device,
        })
    }

    fn watch(&self) -> io::Result<LabelWriter> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(flags.bits().cast_signed());
        let root = OwnedFd::from(options.open(&self.path)?);
        let found = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        if found.stx_mnt_id != self.mount {
            return Err(io::Error::other("another file system is mounted there now"));
        }
        LabelWriter::watch(root).map_err(|error| match error.raw_os_error() {
            Some(errno) if errno == Errno::OPNOTSUPP.raw_os_error() => io::Error::other(
                "it has no file handles; for an overlay, name the file system of its upper directory",
            ),
            _ => error,
        })
    }
}

impl LabelWriters {
    /// Starts the first thread, which watches nothing yet. Call it before this process is confined: the
    /// thread has Landlock rules of its own.
    ///
    /// # Errors
    /// When the kernel makes no thread or no descriptor, or refuses the rules of Landlock.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            wanted: Mutex::default(),
            lanes: Mutex::default(),
            wake: Wake::new()?,
        });
        let thread = thread::Builder::new().name("new files".to_owned());
        let (confined, outcome) = sync_channel(1);
        let thread = thread.spawn({
            let shared = Arc::clone(&shared);
            move || start_writers(&shared, &confined)
        })?;
        let outcome = outcome.recv().map_err(io::Error::other)?;
        outcome.map_err(io::Error::other)?;
        Ok(Self { shared, thread })
    }

    /// Replaces the file systems, the source of labels (`None`: no file gets one), and the specification.
    ///
    /// # Errors
    /// The thread cannot be woken.
    pub(super) fn set(
        &self,
        labels: Option<NewFileLabels>,
        file_systems: Vec<Multilabel>,
        filing: Option<Arc<Filing>>,
    ) -> io::Result<()> {
        let means = labels.map(|labels| Means {
            labels: Arc::new(labels),
            filing,
        });
        *self.shared.wanted.lock() = Some((means, file_systems));
        self.shared.wake.wake()
    }

    /// Has all files of the watched file systems looked at again.
    ///
    /// # Errors
    /// A thread cannot be woken.
    pub(super) fn look_again(&self) -> io::Result<()> {
        for lane in self.shared.lanes.lock().values() {
            lane.looks_again.store(true, Ordering::Relaxed);
            lane.wake.wake()?;
        }
        Ok(())
    }

    /// How long the last walks over all files took: the sum over all file systems.
    pub(super) fn walked(&self) -> Duration {
        let lanes = self.shared.lanes.lock();
        let walked = lanes.values().map(|lane| lane.state.lock().counts.walked);
        walked.sum()
    }

    /// The file systems that are watched, or should be, by their mount points.
    pub(super) fn watched(&self) -> BTreeMap<String, Watched> {
        let lanes = self.shared.lanes.lock();
        let states = lanes.iter().map(|(path, lane)| {
            let mut state = lane.state.lock().clone();
            if let Some(stuck) = lane.stuck() {
                state.unwatched = Some(stuck.to_string());
            }
            (path.clone(), state)
        });
        states.collect()
    }

    /// The first file system that should be watched and is not, with the reason.
    pub(super) fn unwatched(&self) -> Option<MacError> {
        let lanes = self.shared.lanes.lock();
        lanes.iter().find_map(|(path, lane)| {
            let reason = lane.state.lock().unwatched.clone()?;
            Some(MacError::NotWatched {
                path: path.clone(),
                reason,
            })
        })
    }

    /// The first file system that does not answer, so that its new files get no label.
    pub(super) fn stuck(&self) -> Option<MacError> {
        self.shared
            .lanes
            .lock()
            .values()
            .find_map(|lane| lane.stuck())
    }

    /// Whether a thread has ended that should still run.
    pub(super) fn has_ended(&self) -> bool {
        let lanes = self.shared.lanes.lock();
        self.thread.is_finished() || lanes.values().any(|lane| lane.has_failed())
    }
}

impl Lane {
    /// Starts a thread for a file system.
    fn start(file_system: Multilabel, means: Means) -> io::Result<Arc<Self>> {
        let lane = Arc::new(Self {
            file_system,
            fresh: Mutex::new(Some(means)),
            state: Mutex::default(),
            looks_again: AtomicBool::default(),
            is_over: AtomicBool::default(),
            busy: Mutex::new(Some(Instant::now())),
            thread: OnceLock::new(),
            wake: Wake::new()?,
        });
        let thread = thread::Builder::new().name("file system".to_owned());
        let of_thread = Arc::clone(&lane);
        let thread = thread.spawn(move || of_thread.run())?;
        // `thread` is set only here, so this cannot fail.
        drop(lane.thread.set(thread));
        Ok(lane)
    }

    /// Keeps labels persistent until the thread is to end, or the file system cannot be watched.
    fn run(&self) {
        let mut persister = match self.file_system.watch() {
            Ok(persister) => persister,
            Err(error) => {
                self.state.lock().unwatched = Some(error.to_string());
                *self.busy.lock() = None;
                return;
            }
        };
        let mut means = None;
        while !self.is_over.load(Ordering::Relaxed) {
            *self.busy.lock() = Some(Instant::now());
            if self.looks_again.swap(false, Ordering::Relaxed) {
                persister.look_again();
            }
            if let Some(fresh) = self.fresh.lock().take() {
                persister.specify(fresh.filing.clone());
                means = Some(fresh);
            }
            let more = means.as_ref().is_some_and(|Means { labels, .. }| {
                persister.turn(&|file| labels.of(file).map_err(io::Error::other))
            });
            *self.state.lock() = Watched {
                counts: persister.counts().clone(),
                is_walking: persister.is_walking(),
                unwatched: None,
            };
            if !more {
                *self.busy.lock() = None;
                self.wake.wait(persister.events(), persister.retry());
            }
        }
    }

    /// The trouble that the file system does not answer, when the thread has worked on a turn for [`STUCK`].
    fn stuck(&self) -> Option<MacError> {
        let since = (*self.busy.lock())?.elapsed();
        (since >= STUCK).then(|| MacError::Stuck {
            path: self.file_system.path.clone(),
        })
    }

    /// Whether its thread has ended without a noted reason.
    fn has_failed(&self) -> bool {
        let has_ended = self.thread.get().is_none_or(JoinHandle::is_finished);
        has_ended && self.state.lock().unwatched.is_none()
    }

    fn end(&self) -> io::Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.wake.wake()
    }
}

impl Wake {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(File::from(wake)))
    }

    fn wake(&self) -> io::Result<()> {
        (&self.0).write_all(&1_u64.to_ne_bytes())
    }

    /// Waits until the thread is woken, new files arrive, or `until` is reached.
    fn wait(&self, files: Option<BorrowedFd<'_>>, until: Option<Instant>) {
        let mut descriptors: Vec<_> = files
            .into_iter()
            .chain([self.0.as_fd()])
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let wait = until.map(|until| {
            let wait = until.saturating_duration_since(Instant::now());
            Timespec::try_from(wait).unwrap_or_default()
        });
        // An interruption is as good as an event: the caller looks for itself.
        let _interrupted = poll(&mut descriptors, wait.as_ref());
        // One read takes all wake-ups that have come.
        let _none = (&self.0).read(&mut [0; 8]);
    }
}

fn start_writers(shared: &Shared, confined: &SyncSender<Result<(), SystemError>>) {
    let outcome = sandbox::landlock_lists(&[Path::new("/")]);
    let is_confined = outcome.is_ok();
    // `LabelWriters::start` waits for the outcome.
    if confined.send(outcome).is_ok() && is_confined {
        run(shared);
    }
}

/// Starts and ends the threads of file systems, which inherit this thread's Landlock rules. Returns when a
/// thread cannot be started or ended.
fn run(shared: &Shared) {
    loop {
        shared.wake.wait(None, None);
        let Some((means, wanted)) = shared.wanted.lock().take() else {
            continue;
        };
        if let Err(error) = exchange(&mut shared.lanes.lock(), means, wanted) {
            tracing::error!(%error, "labels of new files cannot be written");
            return;
        }
    }
}

/// Watches the wanted file systems; those that are watched already continue. The thread of an unwanted one
/// ends as soon as its file system answers.
fn exchange(
    lanes: &mut BTreeMap<String, Arc<Lane>>,
    means: Option<Means>,
    wanted: Vec<Multilabel>,
) -> io::Result<()> {
    let mut former = std::mem::take(lanes);
    if let Some(means) = means {
        for file_system in wanted {
            let is_known = former.get(&file_system.path).is_some_and(|lane| {
                lane.file_system == file_system && lane.state.lock().unwatched.is_none()
            });
            let path = file_system.path.clone();
            let known = is_known.then(|| former.remove(&path)).flatten();
            let lane = match known {
                Some(lane) => {
                    *lane.fresh.lock() = Some(means.clone());
                    lane.wake.wake()?;
                    lane
                }
                None => Lane::start(file_system, means.clone())?,
            };
            lanes.insert(path, lane);
        }
    }
    former.values().try_for_each(|lane| lane.end())
}
