//! The protector: puts the `application` blocks of the policy in force. It owns the programs that mark
//! and check packets, Usher's entries of the SPD (`usher-ipsec`), and the way to charon (`usher-ike`).
//! The only key that it holds is the IKE key, which it hands to charon.
//!
//! All that is in force is the kernel's. When this process ends, or hangs, nothing of it changes; only
//! changes of the policy, of programs' files and of the SPD are not followed meanwhile. Without an
//! `application` block it loads nothing and does not speak to charon.
//!
//! Room: the BPF objects of `bpf/ipsec`, the SPD, the sockets and the IKE key of charon. Only root's
//! requests reach it.

mod answers;
mod force;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use usher_daemon::packet_async::register;
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_ike::{Acquire, Ike, Notice};
use usher_ipsec::{Event, IpsecError, Watcher};
use usher_local::configuration::Configuration;
use usher_local::paths;
use usher_local::roles;
use usher_system::privileges;

use crate::start::{self, Attempt, Start, StartError};
pub use force::ProtectionError;
use force::{Force, Settings};

/// How often the files of programs, their sockets and the sysctls are looked at.
const LOOKING: Duration = Duration::from_secs(5);

/// How long changes of the SPD are gathered before they are looked at.
const GATHERING: Duration = Duration::from_millis(200);

/// Runs the protector until the process ends.
///
/// # Errors
/// When it cannot start. What an earlier protector left in force stays so.
pub fn run(cgroup: Option<PathBuf>, vici: Option<PathBuf>) -> Result<(), StartError> {
    let start = Start::<roles::Protector>::begin()?;
    let host_key = start::public_host_key()?;
    let configuration = Configuration::load()?;
    let cgroup = cgroup.map_or_else(usher_kernel::cgroup::mount, Ok)?;
    privileges::raise_descriptor_limit()?;
    // Only now: this refuses to run beside a living protector.
    let control = start.control()?;
    privileges::keep_only(roles::Protector::ROLE.capabilities)?;
    privileges::no_new_privileges()?;
    privileges::no_core_dumps()?;
    let settings = Settings { cgroup, host_key };
    start::runtime()?.block_on(async {
        let vici = vici.unwrap_or_else(|| PathBuf::from(paths::CHARON));
        let (ike, notices) = Ike::start(vici);
        let force = Arc::new(Force::new(settings, ike));
        // First, so that no acquire and no change of the SPD comes between.
        let watcher = Watcher::open()?;
        force.put_in_force(configuration)?;
        let control = control.serve(Arc::clone(&force));
        start::ready();
        tracing::info!("protector ready");
        tokio::select! {
            result = control => result.attempt("the control socket failed"),
            result = watch(&force, watcher) => result,
            () = announce(&force, notices) => Ok(()),
            () = look(&force) => Ok(()),
            () = watchdog() => Ok(()),
        }
    })
}

/// Follows what the kernel says: packets that need SAs, and changes of the SPD.
async fn watch(force: &Force, watcher: Watcher) -> Result<(), StartError> {
    let readable = readable(&watcher).attempt("cannot wait for the kernel's IPsec")?;
    let mut changed = false;
    loop {
        tokio::select! {
            ready = readable.readable() => {
                let mut ready = ready.attempt("cannot wait for the kernel's IPsec")?;
                for event in watcher.take()? {
                    match event {
                        Event::Acquire { peer, reqid } => force.ike().acquire(Acquire { peer, reqid }),
                        Event::SpdChanged | Event::Lost => changed = true,
                    }
                }
                ready.clear_ready();
            }
            () = tokio::time::sleep(GATHERING), if changed => {
                changed = false;
                report("the SPD cannot be put back", force.put_back());
            }
        }
    }
}

fn readable(watcher: &Watcher) -> std::io::Result<AsyncFd<OwnedFd>> {
    let duplicate = watcher.as_fd().try_clone_to_owned()?;
    register(duplicate, Interest::READABLE)
}

/// Tells the kernel of SAs that have come.
async fn announce(force: &Force, mut notices: mpsc::Receiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        report("new SAs cannot be announced", force.announce(notice));
    }
    // The daemon ends as well, and the service manager starts it again.
    tracing::error!("the task that negotiates has ended");
}

/// Follows the files of programs, finds their older sockets, and looks at the sysctls.
async fn look(force: &Force) {
    let mut now = tokio::time::interval(LOOKING);
    now.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        now.tick().await;
        usher_daemon::messages::summarize();
        report("the programs cannot be followed", force.follow_programs());
        force.adopt_sockets();
        report("the sysctls cannot be read", force.look_at_sysctls());
    }
}

fn report(what: &str, outcome: Result<(), IpsecError>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "{what}");
    }
}
