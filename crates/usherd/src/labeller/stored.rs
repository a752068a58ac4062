//! The list of loaded modules: for the next boot, and for programs that ask which modules there are.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use usher_daemon::files::{remove_if_there, write_atomically};
use usher_local::paths;

use crate::kept;

/// Largest file that is read.
const LARGEST: u64 = 64 << 10;

/// A module that is to be in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// The SHA-256, in hexadecimal digits, that the module's file had when the administrator loaded it.
    /// `None`: it is built in.
    pub(super) digest: Option<String>,
    /// The SHA-256 of the file that was loaded after a reboot, if the file had changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replaced: Option<String>,
}

/// The modules that are to be loaded after a reboot, in their order. Empty if there is no list.
pub(super) fn load_stored() -> io::Result<Vec<Wanted>> {
    kept::load_kept(paths::LOADED_MODULES, LARGEST)
}

/// Writes the list of modules that are to be loaded after a reboot.
pub(super) fn save(modules: &[Wanted]) -> io::Result<()> {
    kept::save(paths::LOADED_MODULES, &modules)
}

/// Limit of trials of one module: see [`begin_trial`].
pub(super) const MOST_TRIALS: u32 = 3;

/// For each module from a file, how often the labeller has begun to load it and ended before that was done.
fn trials() -> io::Result<BTreeMap<String, u32>> {
    kept::load_kept(paths::MODULE_TRIALS, LARGEST)
}

/// Notes that a module from a file is going to be loaded. Loading it in libbpf may end the labeller, and the
/// next labellers must not try for ever. Returns false after [`MOST_TRIALS`] trials that ended the labeller.
pub(super) fn begin_trial(name: &str) -> io::Result<bool> {
    let mut trials = trials()?;
    let times = trials.entry(name.to_owned()).or_default();
    if *times >= MOST_TRIALS {
        return Ok(false);
    }
    *times += 1;
    kept::save(paths::MODULE_TRIALS, &trials)?;
    Ok(true)
}

/// Notes that the labeller has outlived a trial, whether the module was loaded or refused.
pub(super) fn end_trial(name: &str) -> io::Result<()> {
    let mut trials = trials()?;
    match trials.remove(name) {
        Some(_) => kept::save(paths::MODULE_TRIALS, &trials),
        None => Ok(()),
    }
}

/// Shows the modules in force to every program of the host: one name a line.
pub(super) fn show(names: &[String]) -> io::Result<()> {
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    write_atomically(Path::new(paths::SHOWN_MODULES), text.as_bytes(), 0o644)
}

/// Removes the list of modules in force, because there is no framework.
pub(super) fn forget_shown() -> io::Result<()> {
    remove_if_there(paths::SHOWN_MODULES)
}
