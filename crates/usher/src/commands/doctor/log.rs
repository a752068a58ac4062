//! The signed log: whether its file system has room for a record.

use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use usher_local::paths;
use usher_local::roles::OFFERS;

use super::Finding;
use crate::failure::Failure;

/// The room that a record needs at most, in bytes: the longest record, its hashes and the new checkpoint,
/// each in a new file beside the former one.
const ROOM: u64 = 128 << 10;

/// Whether the log's file system has room.
pub fn room() -> Finding {
    let looked = look(Path::new(paths::LOG_DIRECTORY));
    let outcome = (
        looked.is_ok(),
        looked.unwrap_or_else(|error| error.to_string()),
    );
    let needed_for = "sessions, each of which must be recorded";
    Finding {
        duty: Some(OFFERS),
        ..Finding::new("room for the log", needed_for, outcome)
    }
}

/// The next step of a change of the log's key that has been begun.
pub fn next_key() -> Option<Finding> {
    let next = Path::new(paths::NEXT_LOG_KEY);
    if !next.exists() {
        return None;
    }
    let detail = match super::super::log::has_next_key() {
        Ok(true) => {
            "the log has its next key: `usher log forget-key` deletes the former one".to_owned()
        }
        Ok(false) => {
            "the log has not taken its next key yet: `systemctl restart usher-recorder`".to_owned()
        }
        Err(error) => error.to_string(),
    };
    let needed_for = "the log's former key to be of no use to anybody";
    Some(Finding::optional(
        "next key of the log",
        Some(OFFERS),
        needed_for,
        (false, detail),
    ))
}

fn look(folder: &Path) -> Result<String, Failure> {
    let shown = folder.display();
    let no_room = |why: &str| Failure::Refused(format!("the file system of {shown} {why}"));
    let found = match rustix::fs::statvfs(folder) {
        Err(rustix::io::Errno::NOENT) => {
            return Ok(format!("{shown} does not exist yet; the recorder makes it"));
        }
        found => found.map_err(|error| Failure::of_file(folder, error))?,
    };
    let left = found.f_bavail.saturating_mul(found.f_frsize);
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(no_room("is read-only"));
    }
    if left < ROOM {
        return Err(no_room(&format!("is full ({left} bytes left): make room")));
    }
    // Some file systems have no fixed number of files.
    if found.f_files != 0 && found.f_favail == 0 {
        return Err(no_room("has no room for another file: make room"));
    }
    Ok(format!("{} MiB left at {shown}", left >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_has_no_room() {
        let folder = tempfile::tempdir().unwrap();
        assert!(look(folder.path()).unwrap().contains("MiB left at "));
        assert!(look(&folder.path().join("none")).is_ok());
        assert!(look(Path::new("/proc/self/status/none")).is_err());
        // This file system never has room.
        let full = look(Path::new("/proc")).unwrap_err().to_string();
        assert!(full.contains("is full (0 bytes left)"), "{full}");
    }
}
