//! The protector: puts the `application` blocks of the policy in force. It owns the programs that mark
//! and check packets, Usher's entries of the SPD (`usher-ipsec`), and the way to charon (`usher-ike`).
//! The only key that it holds is the IKE key, which it hands to charon.
//!
//! All that is in force is in the kernel. When this process ends, or hangs, protection stays as it is; only
//! changes of the policy, of programs' files and of the SPD are not followed meanwhile. Without an
//! `application` block the protector loads nothing, and speaks to charon only to remove what an earlier
//! policy left there.
//!
//! The keeper, which starts after the network, loads the guard, which knows only daemons that were executed
//! later. So a protector that was executed before the guard came ends when it finds the guard. The service
//! manager starts it again, and the guard then knows it as the owner of its objects.
//!
//! The resolver, a process without privileges, looks up names in `network` statements. It sends addresses and
//! reasons of failures, both of bounded size. The last answers stay in force while there are no others.
//!
//! Room: the BPF objects of `bpf/ipsec`, the SPD, the sockets and the IKE key of charon, the last answers for
//! names. Only root's requests and the resolver's answers reach it.

mod addresses;
mod answers;
mod contest;
mod error;
mod finding;
mod force;
mod last_answers;
mod names;
mod negotiated;
mod negotiation;
mod own_sad;
mod refusals;
mod sockets;
mod state;
mod view;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use usher_bpf::guard;
use usher_daemon::events;
use usher_daemon::packet_async::register;
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_ike::{Acquire, Ike, Notice};
use usher_ipsec::{Event, Sad, Watcher};
use usher_local::configuration::Configuration;
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_local::roles;
use usher_system::privileges;

use crate::start::{self, Attempt, Start, StartError};
use addresses::OwnAddresses;
use contest::Pace;
use force::{Force, Settings};
use own_sad::OwnSad;
pub use state::release;

/// How often the files of programs, their sockets, this host's addresses and the sysctls are looked at.
const LOOKING: Duration = Duration::from_secs(5);

/// Limit of notices of SAs that are handled together: the file is written, and sockets are sought, once for
/// all of them.
const MOST_GATHERED: usize = 1_024;

/// How often the SPD is compared without a report of a change.
const COMPARING: Duration = Duration::from_secs(60);

/// The pause after a call that could not take all reports of the kernel.
const BREATH: Duration = Duration::from_millis(20);

/// Runs the protector until the process ends.
///
/// # Errors
/// When it cannot start. Protection that an earlier protector has put in force stays.
pub fn run(cgroup: Option<PathBuf>, vici: Option<PathBuf>, lsm: bool) -> Result<(), StartError> {
    let start = Start::<roles::Protector>::begin()?;
    let host_key = start::public_host_key()?;
    let configuration = Configuration::load()?;
    let cgroup = cgroup.map_or_else(usher_kernel::cgroup::mount, Ok)?;
    privileges::raise_descriptor_limit()?;
    // This refuses to run beside a living protector.
    let control = start.control()?;
    privileges::keep_only(roles::Protector::ROLE.capabilities)?;
    privileges::no_new_privileges()?;
    privileges::no_core_dumps()?;
    // Keep the folder open: Landlock knows it by its inode, which the kernel may otherwise make anew.
    let sysctls = File::open(paths::NETWORK_SYSCTLS);
    let _sysctls = sysctls.attempt(format!("cannot open {}", paths::NETWORK_SYSCTLS))?;
    // Landlock leaves out paths that do not exist.
    let made = DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(paths::PROTECTOR_DIRECTORY);
    made.attempt(format!("cannot make {}", paths::PROTECTOR_DIRECTORY))?;
    // Make this folder for the same reason: a key that is put there later can then be read.
    match DirBuilder::new().mode(0o755).create(paths::IKE_DIRECTORY) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).attempt(format!("cannot make {}", paths::IKE_DIRECTORY))?;
        }
        _ => {}
    }
    let addresses = OwnAddresses::open().attempt("cannot open the list of own addresses")?;
    start.confine()?;
    let settings = Settings {
        cgroup,
        lsm,
        host_key,
        addresses,
    };
    let had_guard = guard::runs()?;
    let following = Following::new();
    start::runtime_following(&following)?.block_on(async {
        let vici = vici.unwrap_or_else(|| PathBuf::from(paths::CHARON));
        let (ike, notices) = Ike::start(vici, OwnSad(Sad::open()?));
        let force = Arc::new(Force::new(settings, ike, Arc::clone(&following)));
        // Open the watcher first, so that it misses no acquire and no change of the SPD.
        let watcher = Watcher::open()?;
        force.put_in_force(configuration)?;
        following.begin(Arc::clone(&force) as Arc<dyn Follower>);
        let control = control.serve(Arc::clone(&force));
        start::ready("usher-protector");
        tracing::info!(name: events::DAEMON_READY, "protector ready");
        tokio::select! {
            result = control => result.attempt("the control socket failed"),
            result = watch(&force, watcher) => result,
            () = announce(&force, notices) => Ok(()),
            result = look(&force, had_guard) => result,
            () = find_sockets(&force) => Ok(()),
            () = names::follow(&force) => Ok(()),
            () = following.keep() => Ok(()),
            () = watchdog() => Ok(()),
        }
    })
}

/// Follows the kernel's messages: packets that need SAs, and changes of the SPD.
async fn watch(force: &Force, watcher: Watcher) -> Result<(), StartError> {
    let readable = readable(&watcher).attempt("cannot wait for the kernel's IPsec")?;
    let mut pace = Pace::default();
    // When the SPD is to be compared. Further changes do not put it off.
    let mut due = Instant::now() + COMPARING;
    loop {
        tokio::select! {
            ready = readable.readable() => {
                let mut ready = ready.attempt("cannot wait for the kernel's IPsec")?;
                let taken = watcher.take_of_others(force.ours().as_ref())?;
                for event in taken.events {
                    match event {
                        Event::Acquire { source, peer, reqid } => {
                            force.acquire(Acquire { source, peer, reqid });
                        }
                        Event::SpdChanged | Event::Lost => {
                            due = due.min(pace.next(Instant::now()));
                        }
                    }
                }
                if taken.is_all {
                    ready.clear_ready();
                } else {
                    tokio::time::sleep(BREATH).await;
                }
            }
            () = tokio::time::sleep_until(due.into()) => {
                let begun = Instant::now();
                report("the SPD cannot be put back", force.put_back());
                let ended = Instant::now();
                pace.note(ended, ended - begun);
                due = ended + COMPARING;
            }
        }
    }
}

fn readable(watcher: &Watcher) -> io::Result<AsyncFd<OwnedFd>> {
    let duplicate = watcher.as_fd().try_clone_to_owned()?;
    register(duplicate, Interest::READABLE)
}

/// Tells the kernel of SAs that have come.
async fn announce(force: &Force, mut notices: mpsc::Receiver<Notice>) {
    let mut gathered = Vec::new();
    while notices.recv_many(&mut gathered, MOST_GATHERED).await > 0 {
        force.announce(&gathered);
        gathered.clear();
    }
    // The daemon ends as well, and the service manager starts it again.
    tracing::error!("the task that negotiates has ended");
}

/// Finds older sockets, for ever: at intervals, and after a change whose sockets were not all found at once.
async fn find_sockets(force: &Force) {
    loop {
        while force.adopt_some() {
            tokio::time::sleep(finding::REST).await;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOKING) => {}
            () = force.unfound() => {}
        }
    }
}

/// Follows the files of programs and this host's addresses, looks at the sysctls, logs refusals, and keeps
/// the answers for names. Returns when a guard has come that does not know this
/// process as a daemon.
async fn look(force: &Force, had_guard: bool) -> Result<(), StartError> {
    let mut now = tokio::time::interval(LOOKING);
    now.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        now.tick().await;
        usher_daemon::messages::summarize();
        report(
            "cannot follow the files of programs",
            force.follow_programs(),
        );
        report(
            "cannot put back the programs that drop plaintext of services: it may pass",
            force.mend_services(),
        );
        force.follow_addresses();
        report("the sysctls cannot be read", force.look_at_sysctls());
        report("the counters cannot be read", force.tell_refusals());
        report(
            "cannot save the addresses of the policy's host names; a protector that starts again begins with \
             those saved before",
            force.save_answers(),
        );
        if !had_guard && guard::runs()? {
            tracing::info!("the guard runs now: exiting, to start again under its protection");
            return Ok(());
        }
    }
}

fn report<E: std::fmt::Display>(what: &str, outcome: Result<(), E>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "{what}");
    }
}
