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
    /// SHA-256 of its file, in hexadecimal digits, when the administrator loaded it; none: it is built in.
    pub(super) digest: Option<String>,
    /// The same of the file that was loaded after a reboot, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replaced: Option<String>,
}

/// The modules that are to be loaded after a reboot, in their order; none if none ever was.
pub(super) fn load_stored() -> io::Result<Vec<Wanted>> {
    kept::load_kept(paths::LOADED_MODULES, LARGEST)
}

/// Keeps the list over a reboot.
pub(super) fn save(modules: &[Wanted]) -> io::Result<()> {
    kept::save(paths::LOADED_MODULES, &modules)
}

/// Limit of trials of one module: see [`begin_trial`].
pub(super) const MOST_TRIALS: u32 = 3;

/// How often the labeller has begun to load each module from a file, and ended before it had loaded it.
fn trials() -> io::Result<BTreeMap<String, u32>> {
    kept::load_kept(paths::MODULE_TRIALS, LARGEST)
}

/// Notes that a module from a file is going to be loaded. libbpf reads the file, which may end the labeller;
/// the next ones must not try for ever. Returns false after [`MOST_TRIALS`] trials without an end.
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

/// Notes that a trial has ended, whichever way.
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

/// Shows that there is no framework.
pub(super) fn forget_shown() -> io::Result<()> {
    remove_if_there(paths::SHOWN_MODULES)
}
