//! The labeller: keeps the modules of mandatory access control in force (`usher-mac`), with the settings
//! that the `mac` blocks of the policy have.
//!
//! All that is in force is in the kernel. When this process ends, or hangs, the modules go on deciding; the
//! next labeller adopts them. After a reboot the labeller loads the modules that were loaded before. While
//! there is no module, it loads nothing into the kernel.
//!
//! The keeper loads the guard, which knows only daemons that were executed later. So a labeller that was
//! executed before the guard came ends when it finds the guard. The service manager starts it again, and the
//! guard then knows it as the owner of its objects.
//!
//! The labeller writes to the journal what modules refuse, and which processes they lower (`journal`).
//!
//! One thread for each file system writes the labels of new files into their attributes (`new_files`).
//!
//! Room: the BPF objects of `bpf/mac`, its folder, and labels of files on the file systems that the policy
//! calls multilabel. Only root's requests reach it.

mod answers;
mod declaring;
mod error;
mod file_systems;
mod files;
mod filing;
mod force;
mod journal;
mod labels;
mod loading;
mod makers;
mod new_files;
mod patience;
mod resolving;
mod state;
mod stored;
mod tree;
mod view;
mod wanted;

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::mpsc::error::TrySendError;
use usher_bpf::guard;
use usher_daemon::events;
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_local::configuration::Configuration;
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_local::roles;
use usher_mac::Framework;
use usher_system::privileges;

use crate::start::{self, Attempt, Start, StartError};
use file_systems::FileSystems;
use force::Force;
use new_files::LabelWriters;

/// How often modules that could not be put in force are tried again.
const TRYING: Duration = Duration::from_secs(5);
/// How often to look whether a file system has ended that is unmounted at its path.
const LIVING_ON: Duration = Duration::from_secs(1);

/// Runs the labeller until the process ends.
///
/// # Errors
/// When it cannot start, or cannot adopt what is in force, which stays so.
pub fn run() -> Result<(), StartError> {
    let start = Start::<roles::Labeller>::begin()?;
    let configuration = Configuration::load()?;
    privileges::raise_descriptor_limit()?;
    // This refuses to run beside a living labeller.
    let control = start.control()?;
    privileges::keep_only(roles::Labeller::ROLE.capabilities)?;
    privileges::no_new_privileges()?;
    privileges::no_core_dumps()?;
    // Make the folder now: Landlock's rules leave out paths that do not exist.
    let made = DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(paths::LABELLER_DIRECTORY);
    made.attempt(format!("cannot make {}", paths::LABELLER_DIRECTORY))?;
    let mounts = File::open(paths::MOUNTS).attempt(format!("cannot open {}", paths::MOUNTS))?;
    // A second open file description: each notes by itself which changes it has reported.
    let changes = File::open(paths::MOUNTS).attempt(format!("cannot open {}", paths::MOUNTS))?;
    let writers =
        LabelWriters::start().attempt("cannot start the thread for labels of new files")?;
    start.confine()?;
    let had_guard = guard::runs()?;
    let following = Following::new();
    start::runtime_following(&following)?.block_on(async {
        let file_systems = FileSystems::new(mounts);
        let force = Force::adopt(file_systems, writers, Arc::clone(&following))?;
        let force = Arc::new(force);
        force.begin(configuration);
        following.begin(Arc::clone(&force) as Arc<dyn Follower>);
        let control = control.serve(Arc::clone(&force));
        start::ready("usher-labeller");
        tracing::info!(name: events::DAEMON_READY, "labeller ready");
        tokio::select! {
            result = control => result.attempt("the control socket failed"),
            result = look(&force, had_guard) => result,
            () = read_events(&force) => Ok(()),
            () = following.keep() => Ok(()),
            result = follow_mounts(&force, changes) => result.attempt("mounts cannot be watched"),
            () = watchdog() => Ok(()),
        }
    })
}

/// Tries again what could not be put in force. Returns when a guard has come, which does not know this
/// process as a daemon.
async fn look(force: &Force, had_guard: bool) -> Result<(), StartError> {
    let mut now = tokio::time::interval(TRYING);
    now.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        now.tick().await;
        usher_daemon::messages::summarize();
        force.try_again();
        let writers = force.require_writers();
        writers.attempt("cannot write labels of new files")?;
        if !had_guard && guard::runs()? {
            tracing::info!("the guard runs now: exiting, to start again under its protection");
            return Ok(());
        }
    }
}

/// Follows file systems that are mounted or unmounted, as long as this process runs. The kernel reports a
/// change as an exceptional condition of mountinfo (proc_pid_mountinfo(5)), for which a thread waits.
async fn follow_mounts(force: &Force, changes: File) -> std::io::Result<()> {
    // One waiting message stands for all changes since.
    let (tell, mut told) = tokio::sync::mpsc::channel::<std::io::Result<()>>(1);
    let waiting = std::thread::Builder::new().name("mounts".to_owned());
    waiting.spawn(move || {
        let mut ended = false;
        while !ended && !tell.is_closed() {
            let mut changed = [PollFd::new(&changes, PollFlags::PRI)];
            let outcome = match poll(&mut changed, None) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(errno.into()),
            };
            ended = outcome.is_err();
            if ended {
                // If this fails, the receiver has ended, too.
                drop(tell.blocking_send(outcome));
            } else if let Err(TrySendError::Closed(_)) = tell.try_send(outcome) {
                return;
            }
        }
    })?;
    loop {
        let next = if force.has_elsewhere() {
            tokio::time::timeout(LIVING_ON, told.recv()).await
        } else {
            Ok(told.recv().await)
        };
        match next {
            Ok(Some(outcome)) => outcome?,
            Ok(None) => return Err(std::io::Error::other("its thread has ended")),
            Err(_) => {}
        }
        force.follow_mounts();
    }
}

/// Reads the events of modules, as long as this process runs.
async fn read_events(force: &Force) {
    let mut now = tokio::time::interval(journal::READING);
    now.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        now.tick().await;
        force.read_events();
    }
}

/// Unloads all modules that a labeller which has ended left in force. Returns their names.
///
/// # Errors
/// The kernel's; some modules may be in force then. [`KernelError::InUse`](usher_bpf::KernelError::InUse)
/// while a labeller runs.
pub fn release() -> Result<Vec<String>, usher_mac::Error> {
    let pins = Path::new(paths::LABELLER_PIN_DIRECTORY);
    if !usher_bpf::exists(pins)? {
        return Ok(Vec::new());
    }
    let framework = Framework::open(pins)?;
    let modules = framework.modules()?;
    labels::hide()?;
    framework.close()?;
    stored::forget_shown()
        .map_err(|error| usher_bpf::KernelError::system("remove the list of modules")(error))?;
    Ok(modules.into_iter().map(|module| module.name).collect())
}
