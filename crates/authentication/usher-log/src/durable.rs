//! Durable writes: whatever these functions report as written survives a power failure.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{At, LogError};

/// Records name users and hosts, so only the log's account and its group may read them.
const FILE_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;

/// Makes a directory and its parents.
pub(crate) fn make_directory(path: &Path) -> Result<(), LogError> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .at(path)
}

/// A written file that is not durable yet.
pub(crate) struct Written {
    path: PathBuf,
    file: File,
    /// Directories up to here must be made durable as well.
    new_below: Option<PathBuf>,
}

/// Writes at an offset; makes the file and its directories up to `top` if they are missing.
pub(crate) fn write_at(
    path: PathBuf,
    offset: u64,
    bytes: &[u8],
    top: &Path,
) -> Result<Written, LogError> {
    let mut options = OpenOptions::new();
    options.write(true).mode(FILE_MODE);
    let (file, new_below) = match options.open(&path) {
        Ok(file) => (file, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                make_directory(parent)?;
            }
            let file = options.create(true).open(&path).at(&path)?;
            (file, Some(top.to_owned()))
        }
        Err(error) => return Err(error).at(&path),
    };
    file.write_all_at(bytes, offset).at(&path)?;
    Ok(Written {
        path,
        file,
        new_below,
    })
}

impl Written {
    /// Also makes the names of the file and its folders durable, which an earlier write may not have done.
    pub(crate) fn with_names(mut self, top: &Path) -> Self {
        self.new_below = Some(top.to_owned());
        self
    }

    /// An existing file that may not be durable.
    pub(crate) fn existing(path: PathBuf, top: &Path) -> Result<Self, LogError> {
        let file = OpenOptions::new().write(true).open(&path).at(&path)?;
        Ok(Self {
            path,
            file,
            new_below: Some(top.to_owned()),
        })
    }

    /// Returns when the bytes, and the names that lead to them, are on disk.
    pub(crate) fn sync(&self) -> Result<(), LogError> {
        self.file.sync_data().at(&self.path)?;
        if let Some(top) = &self.new_below {
            for directory in self.path.ancestors().skip(1) {
                sync_directory(directory)?;
                if directory == top {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Returns when the names in a directory are on disk.
pub(crate) fn sync_directory(path: &Path) -> Result<(), LogError> {
    File::open(path).and_then(|file| file.sync_all()).at(path)
}

/// The path to which [`prepare`] writes.
pub(crate) fn prepared(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Writes a file's next content beside it, durably. [`publish`] then replaces the file.
pub(crate) fn prepare(path: &Path, bytes: &[u8]) -> Result<(), LogError> {
    let beside = prepared(path);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(&beside)?;
        file.write_all(bytes)?;
        file.sync_data()
    };
    write().at(&beside)
}

/// Replaces the file by the one that [`prepare`] wrote. After a power failure the old or the new
/// content is there, whole.
pub(crate) fn publish(path: &Path) -> Result<(), LogError> {
    fs::rename(prepared(path), path).at(path)
}

/// Cuts a file to a length, or removes it if that is 0. Returns whether the file existed.
pub(crate) fn cut(path: &Path, length: u64) -> Result<bool, LogError> {
    let result = if length == 0 {
        fs::remove_file(path)
    } else {
        OpenOptions::new().write(true).open(path).and_then(|file| {
            if file.metadata()?.len() > length {
                file.set_len(length)?;
            }
            Ok(())
        })
    };
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).at(path),
    }
}
