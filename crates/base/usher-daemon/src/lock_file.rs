//! Files for locks. A process that can open such a file can lock it (flock(2) needs no more) and keep root
//! from the lock for ever, so only its owner may open it.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Opens the file of a lock, or makes it.
///
/// # Errors
/// As open(2) and fchmod(2).
pub fn open_lock_file(path: impl AsRef<Path>) -> io::Result<File> {
    const OWNER: u32 = 0o600;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(OWNER)
        .open(path)?;
    // Earlier versions made the file readable for all.
    file.set_permissions(Permissions::from_mode(OWNER))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_can_open_it_whoever_has_made_it() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = folder.path().join("fresh");
        let former = folder.path().join("former");
        std::fs::write(&former, "").unwrap();
        std::fs::set_permissions(&former, Permissions::from_mode(0o644)).unwrap();
        for path in [fresh, former] {
            let mode = open_lock_file(&path)
                .unwrap()
                .metadata()
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
    }
}
