//! Taking away what a keeper leaves in the kernel on purpose when it stops: the programs that
//! decide on SYNs and on where services connect, their tables, and the filters at interfaces.

use std::path::Path;

use usher_bpf::{Pins, Unattached, exists};

use crate::KernelError;
use crate::admission::FILTER;

/// What was taken away, and what was not.
#[derive(Debug)]
pub struct Released {
    /// Pinned tables and links that are gone.
    pub pins: usize,
    /// Interfaces that no longer have the filter.
    pub interfaces: Vec<String>,
    /// Interfaces that still have it.
    pub unreleased: Vec<Unattached>,
    /// Whether a signer runs, whose guards stay.
    pub signer_runs: bool,
}

/// Unpins the admission programs and tables below `pins`, those for destinations below
/// `destinations` and the guards of a signer that has stopped below `guards`, which ends them, and
/// takes the filters from the interfaces of the caller's network namespace. What is pinned in other
/// folders stays. Established connections go on. May be called again and again.
///
/// # Errors
/// [`KernelError::InUse`] while a keeper runs, before anything has changed;
/// [`KernelError::Protected`] when the ownership programs keep the caller from it; what else the
/// kernel says: some is gone then, and the next call goes on.
pub fn release(pins: &Path, destinations: &Path, guards: &Path) -> Result<Released, KernelError> {
    let mut held = Vec::new();
    for folder in [destinations, pins] {
        if exists(folder)? {
            held.push(Pins::lock(folder)?);
        }
    }
    let mut signer_runs = false;
    if exists(guards)? {
        match Pins::lock(guards) {
            Ok(pins) => held.push(pins),
            Err(KernelError::InUse { .. }) => signer_runs = true,
            Err(error) => return Err(error),
        }
    }
    let removed: Result<Vec<usize>, _> = held.iter().map(Pins::remove).collect();
    let pins = removed?.into_iter().sum();
    let (interfaces, unreleased) = FILTER.detach()?;
    // What the ownership programs have pinned is in a folder of its own below.
    held.into_iter().try_for_each(Pins::remove_folder)?;
    Ok(Released {
        pins,
        interfaces,
        unreleased,
        signer_runs,
    })
}
