//! The signed log: whether there is room for a record.

use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use usher_local::paths;
use usher_local::roles::Side;

use super::Finding;

/// The least room, in bytes, with which a record can be kept: the longest one, its hashes and the new
/// checkpoint, each in a file that is written beside the former one.
const ROOM: u64 = 128 << 10;

/// Whether there is room where the log is.
pub fn room() -> Finding {
    let (works, detail) = match look(Path::new(paths::LOG_DIRECTORY)) {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    Finding {
        name: "room for the log".into(),
        works,
        required: true,
        side: Some(Side::Server),
        detail,
        needed_for: "sessions: none is opened without a record of it".into(),
        ..Finding::default()
    }
}

fn look(folder: &Path) -> Result<String, String> {
    let shown = folder.display();
    let found = match rustix::fs::statvfs(folder) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT) => {
            return Ok(format!("{shown} is not there yet; the recorder makes it"));
        }
        Err(error) => return Err(format!("{shown}: {error}")),
    };
    let left = found.f_bavail.saturating_mul(found.f_frsize);
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(format!("the file system of {shown} is read-only"));
    }
    if left < ROOM {
        return Err(format!(
            "the file system of {shown} is full ({left} bytes left): make room"
        ));
    }
    // Some file systems have no fixed number of files.
    if found.f_files != 0 && found.f_favail == 0 {
        return Err(format!(
            "the file system of {shown} has no room for another file: make room"
        ));
    }
    Ok(format!("{} MiB left at {shown}", left >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_room_or_is_not_there_and_one_that_cannot_be_written_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(look(folder.path()).unwrap().contains("MiB left at "));
        assert!(look(&folder.path().join("none")).is_ok());
        assert!(look(Path::new("/proc/self/status/none")).is_err());
        // Nothing is left on it, ever.
        let full = look(Path::new("/proc")).unwrap_err();
        assert!(full.contains("is full (0 bytes left)"), "{full}");
    }
}
