//! `usherd release` frees the ports of services after the keeper has stopped for good.

use std::path::Path;

use usher_kernel::KernelError;
use usher_kernel::release::release;
use usher_local::paths;

use crate::start::{self, StartError};

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
    /// Some interfaces keep the filter.
    #[error("the filter stays on {0}")]
    Filters(String),
}

/// Removes everything that a stopped keeper has left in the kernel, and reports what was removed and
/// what stays.
///
/// # Errors
/// [`ReleaseError`]; the caller may try again.
pub fn run(json: bool) -> Result<(), ReleaseError> {
    start::require_root("release")?;
    let ownership = Path::new(paths::OWNERSHIP_PIN_DIRECTORY);
    let released = release(
        Path::new(paths::PIN_DIRECTORY),
        Path::new(paths::DESTINATIONS_PIN_DIRECTORY),
        Path::new(paths::SIGNER_PIN_DIRECTORY),
    )
    .map_err(|error| match error {
        KernelError::InUse { .. } => ReleaseError::KeeperRuns,
        other => ReleaseError::Kernel(other),
    })?;
    let ownership_stays = ownership.exists();
    if json {
        let told = serde_json::json!({
            "pins": released.pins,
            "interfaces": released.interfaces,
            "ownership_stays": ownership_stays,
            "signer_runs": released.signer_runs,
        });
        println!("{told}");
    } else {
        let done = match (released.pins, released.interfaces.as_slice()) {
            (0, []) => "nothing to release".to_owned(),
            (pins, interfaces) => format!(
                "released: {pins} pinned tables and links, the filter on {} interfaces; the \
                 services' ports are free",
                interfaces.len()
            ),
        };
        println!("{done}");
        if released.signer_runs {
            println!("the signer runs, and its gates stay: stop it and release again");
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
