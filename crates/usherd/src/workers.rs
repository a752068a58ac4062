//! `usherd workers`: holds the control group of the users' processes, and does nothing else. A
//! service manager takes a group away that has no process; this one keeps it between the keeper's
//! starts, and while no user is served.

use usher_kernel::cgroup::{self, Group};
use usher_system::privileges;

use usher_local::roles::{self, HasRole};

use crate::start::{self, StartError};

/// Its own leaf: processes live in leaves only (cgroups(7), "no internal processes"), and the group
/// above hands controllers down.
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
    start::ready();
    tracing::info!("the workers' control group is held");
    loop {
        // SIGTERM ends the process.
        std::thread::park();
    }
}
