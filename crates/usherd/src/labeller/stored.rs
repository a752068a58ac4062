//! The list of loaded modules: for the next boot, and for programs that ask which modules there are.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use usher_daemon::files::write_atomically;
use usher_local::paths;

/// Largest file that is read.
const LARGEST: u64 = 64 << 10;

/// A module that is to be in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// SHA-256 of its file, in hexadecimal digits, when the administrator loaded it; none: it is built in.
    pub(super) digest: Option<String>,
}

/// The modules that are to be loaded after a reboot, in their order; none if none ever was.
pub(super) fn load() -> io::Result<Vec<Wanted>> {
    let path = Path::new(paths::LOADED_MODULES);
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(found) if found.len() > LARGEST => return Err(io::ErrorKind::FileTooLarge.into()),
        Ok(_) => {}
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Keeps the list over a reboot.
pub(super) fn save(modules: &[Wanted]) -> io::Result<()> {
    let text = serde_json::to_vec(modules)?;
    write_atomically(Path::new(paths::LOADED_MODULES), &text, 0o600)
}

/// Shows the modules in force to every program of the host: one name a line.
pub(super) fn show(names: &[String]) -> io::Result<()> {
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    write_atomically(Path::new(paths::SHOWN_MODULES), text.as_bytes(), 0o644)
}

/// Shows that there is no framework.
pub(super) fn forget_shown() -> io::Result<()> {
    match fs::remove_file(paths::SHOWN_MODULES) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
