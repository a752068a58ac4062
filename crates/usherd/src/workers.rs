//! `usherd workers` holds the control group of the users' processes, and does nothing else. A service
//! manager removes a group without a process; this process keeps it between the keeper's starts, and
//! while no user is served.

use usher_daemon::events;
use usher_kernel::cgroup::{self, Group};
use usher_system::privileges;

use usher_daemon::role::HasRole;
use usher_local::roles;

use crate::start::{self, StartError};

/// The leaf for this process: processes live only in leaves (cgroups(7), "no internal processes"), and
/// the group above enables controllers for its children.
const LEAF: &str = "holder";

/// Holds the group that this process was started in until the process ends.
///
/// # Errors
/// When there is no hierarchy of version 2, or the kernel refuses.
pub fn run() -> Result<(), StartError> {
    let role = roles::Workers::ROLE;
    start::require_root(role.name)?;
    let own = cgroup::own()?;
    if !own.ends_with(LEAF) {
        Group::create(&own, LEAF)?.move_self()?;
    }
    privileges::keep_only(role.capabilities)?;
    privileges::no_new_privileges()?;
    start::ready("usher-workers");
    tracing::info!(name: events::DAEMON_READY, "the workers' control group is held");
    loop {
        // SIGTERM ends this process.
        std::thread::park();
    }
}
