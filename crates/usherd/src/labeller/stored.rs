//! The list of loaded modules: for the next boot, and for programs that ask which modules there are.

use std::fs;
use std::io;
use std::path::Path;

use usher_daemon::files::write_atomically;
use usher_local::paths;

/// Largest file that is read.
const LARGEST: u64 = 64 << 10;

/// The modules that are to be loaded after a reboot, in their order; none if none ever was.
pub(super) fn load() -> io::Result<Vec<String>> {
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
pub(super) fn save(names: &[String]) -> io::Result<()> {
    let text = serde_json::to_vec(names)?;
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
