//! Taking away what a keeper leaves in the kernel on purpose when it stops: the programs that
//! decide on SYNs and on where services connect, their tables, and the filters at interfaces.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::KernelError;
use crate::admission::programs::{exists, lock, pins_error};
use crate::admission::{Unattached, detach_filters};

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
/// takes the filters from the interfaces of the caller's network namespace. What is pinned in other folders stays. Established connections go on. May be
/// called again and again.
///
/// # Errors
/// [`KernelError::InUse`] while a keeper runs, before anything has changed;
/// [`KernelError::Protected`] when the ownership programs keep the caller from it; what else the
/// kernel says: some is gone then, and the next call goes on.
pub fn release(pins: &Path, destinations: &Path, guards: &Path) -> Result<Released, KernelError> {
    let mut locks = Vec::new();
    let mut found = Vec::new();
    for folder in [destinations, pins] {
        if exists(folder)? {
            locks.push(lock(folder)?);
            found.push(folder);
        }
    }
    let mut signer_runs = false;
    if exists(guards)? {
        match lock(guards) {
            Ok(lock) => {
                locks.push(lock);
                found.push(guards);
            }
            Err(KernelError::InUse { .. }) => signer_runs = true,
            Err(error) => return Err(error),
        }
    }
    // Links first: a program that is still attached must not miss its tables.
    let mut files = Vec::new();
    for folder in &found {
        files.extend(pinned(folder)?);
    }
    files.sort_by_key(|path| !is_link(path));
    for path in &files {
        fs::remove_file(path).map_err(pins_error("removing", path))?;
    }
    let (interfaces, unreleased) = detach_filters()?;
    drop(locks);
    for folder in found {
        match fs::remove_dir(folder) {
            // What the ownership programs have pinned is in one of its own below.
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                return Err(pins_error("removing", folder)(error));
            }
            _ => {}
        }
    }
    Ok(Released {
        pins: files.len(),
        interfaces,
        unreleased,
        signer_runs,
    })
}

fn is_link(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes);
    name.is_some_and(|name| name.starts_with(b"link_"))
}

fn pinned(folder: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let failed = pins_error("reading", folder);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if !entry.file_type().map_err(&failed)?.is_dir() {
            files.push(entry.path());
        }
    }
    Ok(files)
}
