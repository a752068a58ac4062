//! JSON files in which daemons keep state across restarts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use usher_daemon::files::write_atomically;

/// Reads a file, or returns the default if there is none.
///
/// # Errors
/// The system's error; also when the file has more than `limit` bytes, or is no JSON of a `T`.
pub fn load_kept<T: DeserializeOwned + Default>(
    path: impl AsRef<Path>,
    limit: u64,
) -> io::Result<T> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Kept = BTreeMap<String, u32>;

    #[test]
    fn what_was_kept_is_read_and_a_missing_file_is_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        assert_eq!(load_kept::<Kept>(&path, 64).unwrap(), Kept::new());
        let kept = Kept::from([("one".to_owned(), 1)]);
        save(&path, &kept).unwrap();
        assert_eq!(load_kept::<Kept>(&path, 64).unwrap(), kept);
        let length = std::fs::metadata(&path).unwrap().len();
        assert_eq!(load_kept::<Kept>(&path, length).unwrap(), kept);
    }

    #[test]
    fn a_file_that_is_too_large_or_cut_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        save(&path, &Kept::from([("one".to_owned(), 1)])).unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        let refused = |limit| load_kept::<Kept>(&path, limit).unwrap_err().kind();
        assert_eq!(refused(length - 1), io::ErrorKind::FileTooLarge);
        std::fs::write(&path, "{\"one\":").unwrap();
        assert_eq!(refused(64), io::ErrorKind::UnexpectedEof);
        std::fs::write(&path, "[]").unwrap();
        assert_eq!(refused(64), io::ErrorKind::InvalidData);
    }
}
