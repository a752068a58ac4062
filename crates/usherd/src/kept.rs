//! Files of JSON in which daemons keep what outlives them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use usher_daemon::files::write_atomically;

/// Reads a file; the default if there is none.
///
/// # Errors
/// The system's error; when the file has more than `limit` bytes, or not what [`save`] writes.
pub fn load<T: DeserializeOwned + Default>(path: impl AsRef<Path>, limit: u64) -> io::Result<T> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    if file.take(limit + 1).read_to_end(&mut bytes)? as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Replaces a file, which no other user can read.
///
/// # Errors
/// The system's error; the former file is untouched then.
pub fn save(path: impl AsRef<Path>, kept: &impl Serialize) -> io::Result<()> {
    write_atomically(path.as_ref(), &serde_json::to_vec(kept)?, 0o600)
}
