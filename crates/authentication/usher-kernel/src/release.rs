//! Removes the objects that a stopped keeper deliberately leaves in the kernel: the programs that
//! decide on SYNs, on destinations of services and on packets to protected ones, their tables, and the
//! filters at interfaces.

use std::path::Path;

use usher_bpf::{Pins, Unattached, exists};

use crate::KernelError;
use crate::admission::FILTER;

/// The result of a release.
#[derive(Debug)]
pub struct Released {
    /// The number of removed tables and links.
    pub pins: usize,
    /// Interfaces that no longer have the filter.
    pub interfaces: Vec<String>,
    /// Interfaces that still have the filter.
    pub unreleased: Vec<Unattached>,
    /// Whether a signer runs, whose gates stay.
    pub signer_runs: bool,
}

/// Unpins, and so ends, the admission programs and tables below `pins`, those in the folders of `others`
/// below it, and the gates below `gates` of a signer that has stopped. Removes the filters from the
/// interfaces of the caller's network namespace. Pins in other folders stay. Established connections
/// continue. May be called repeatedly.
///
/// # Errors
/// [`KernelError::InUse`] while a keeper runs, before anything has changed;
/// [`KernelError::Guarded`] when the ownership programs refuse the caller; other errors of the kernel:
/// some objects are then gone, and the next call continues.
pub fn release(pins: &Path, others: &[&Path], gates: &Path) -> Result<Released, KernelError> {
    let mut held = Vec::new();
    for folder in others.iter().copied().chain([pins]) {
        if exists(folder)? {
            held.push(Pins::lock(folder)?);
        }
    }
    let mut signer_runs = false;
    if exists(gates)? {
        match Pins::lock(gates) {
            Ok(pins) => held.push(pins),
            Err(KernelError::InUse(_)) => signer_runs = true,
            Err(error) => return Err(error),
        }
    }
    let removed: Result<Vec<usize>, _> = held.iter().map(Pins::remove).collect();
    let pins = removed?.into_iter().sum();
    let (interfaces, unreleased) = FILTER.detach()?;
    // The pins of the ownership programs are in a folder of their own below.
    held.into_iter().try_for_each(Pins::remove_folder)?;
    Ok(Released {
        pins,
        interfaces,
        unreleased,
        signer_runs,
    })
}
