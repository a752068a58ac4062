//! `usherd release` frees the ports of services after the keeper has stopped for good, and ends the
//! protection and the modules that a stopped protector and a stopped labeller have left.

use std::path::Path;

use usher_ipsec::{IpsecError, Released};
use usher_kernel::KernelError;
use usher_kernel::release::release;
use usher_local::paths;

use crate::start::{self, StartError};
use crate::{labeller, protector};

/// Reasons for an incomplete release.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// Releasing needs root.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A running keeper would immediately restore everything.
    #[error("the keeper runs: stop it first (systemctl disable --now usher-keeper)")]
    KeeperRuns,
    /// The kernel's error.
    #[error(transparent)]
    Kernel(KernelError),
    /// Protection stays, at least in part.
    #[error(transparent)]
    Protection(#[from] IpsecError),
    /// Modules stay in force, at least some.
    #[error(transparent)]
    Modules(#[from] usher_mac::Error),
    /// Some interfaces keep the filter.
    #[error("cannot remove the filter from {0}")]
    Filters(String),
}

/// Removes everything that stopped daemons have left in the kernel, and reports what was removed and what
/// stays.
///
/// # Errors
/// [`ReleaseError`]; the caller may try again.
pub fn run(json: bool) -> Result<(), ReleaseError> {
    start::require_root("release")?;
    let ownership = Path::new(paths::OWNERSHIP_PIN_DIRECTORY);
    let released = release(
        Path::new(paths::PIN_DIRECTORY),
        &[
            Path::new(paths::DESTINATIONS_PIN_DIRECTORY),
            Path::new(paths::PROTECTED_PIN_DIRECTORY),
        ],
        Path::new(paths::SIGNER_PIN_DIRECTORY),
    )
    .map_err(|error| match error {
        KernelError::InUse(_) => ReleaseError::KeeperRuns,
        other => ReleaseError::Kernel(other),
    })?;
    let ownership_stays = ownership.exists();
    let protection = match protector::release() {
        Ok(released) => Some(released),
        Err(IpsecError::Kernel(KernelError::InUse(_))) => None,
        Err(error) => return Err(error.into()),
    };
    let modules = match labeller::release() {
        Ok(modules) => Some(modules),
        Err(usher_mac::Error::Kernel(KernelError::InUse(_))) => None,
        Err(error) => return Err(error.into()),
    };
    if json {
        // JSON of `usherd release`:
        //   pins: The number of tables and links that were removed.
        //   interfaces: List of texts: the interfaces that have lost the filter (before 6.6).
        //   ownership_stays: True if section OWNERSHIP of usherd(8) stays until the next boot.
        //   signer_runs: True if a signer runs, whose objects stay.
        //   protection: What of protection was removed, a [`released_protection`]; null if a protector has protection in force.
        //   protector_runs: True in that case.
        //   modules: List of texts: the modules that were unloaded; null if a labeller runs.
        //   labeller_runs: True in that case.
        let told = serde_json::json!({
            "pins": released.pins,
            "interfaces": released.interfaces,
            "ownership_stays": ownership_stays,
            "signer_runs": released.signer_runs,
            // JSON object [`released_protection`]:
            //   pins: The number of tables and links.
            //   spd_entries: The number of entries of the SPD.
            //   sysctls: True if sysctls have got their former values back.
            "protection": protection.map(|protection| serde_json::json!({
                "pins": protection.pins,
                "spd_entries": protection.spd_entries,
                "sysctls": protection.sysctls,
            })),
            "protector_runs": protection.is_none(),
            "modules": modules,
            "labeller_runs": modules.is_none(),
        });
        println!("{told}");
    } else {
        let keepers = (released.pins, released.interfaces.len());
        let ended = protection.filter(|protection| *protection != Released::default());
        let unloaded = modules.as_ref().filter(|modules| !modules.is_empty());
        if keepers == (0, 0) && ended.is_none() && unloaded.is_none() {
            println!("nothing to release");
        }
        if keepers != (0, 0) {
            let (pins, interfaces) = keepers;
            println!(
                "released: {pins} pinned tables and links, the filter on {interfaces} interfaces; the \
                 services' ports are free"
            );
        }
        if let Some(Released {
            pins, spd_entries, ..
        }) = ended
        {
            println!(
                "released: {pins} pinned tables and links of protection, {spd_entries} entries of the \
                 SPD; the traffic of programs is no longer protected"
            );
        }
        if let Some(modules) = unloaded {
            println!(
                "released: the modules {}, which no longer refuse anything",
                modules.join(", ")
            );
        }
        if modules.is_none() {
            println!("the labeller runs, and its modules stay: stop it and release again");
        }
        if released.signer_runs {
            println!("the signer runs, and its gates stay: stop it and release again");
        }
        if protection.is_none() {
            println!("the protector runs, and its protection stays: stop it and release again");
        }
        if ownership_stays {
            println!(
                "the ownership programs stay until the next boot: accounts of services stay fenced, \
                 users' connections their own"
            );
        }
    }
    if released.unreleased.is_empty() {
        return Ok(());
    }
    let left = released.unreleased.iter();
    let left: Vec<String> = left
        .map(|left| format!("{} ({})", left.interface, left.error))
        .collect();
    Err(ReleaseError::Filters(left.join(", ")))
}
