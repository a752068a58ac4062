//! The file with the progress of a run of setfsmac, from which a later run goes on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Longest file that is read.
const MAXIMUM: u64 = 1024 * 1024;

/// How far a run has come. The files up to this place have their labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The version of this format: 1.
    version: u32,
    /// SHA-256 of specifications, paths and options, in hexadecimal digits.
    run: String,
    /// Index of the path of the command line.
    pub root: usize,
    /// The file that was labelled last, as bytes.
    pub path: Vec<u8>,
}

/// A file that cannot be used. Displays as an explanation.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system's answer.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The file is no checkpoint.
    #[error("{0} is not a checkpoint; remove it, or name another file")]
    Malformed(PathBuf),
    /// The checkpoint is of a run with other specifications, paths or options.
    #[error("{0} is of a run with other specifications, paths or options; remove it to begin anew")]
    OtherRun(PathBuf),
}

/// The file of one run.
#[derive(Debug)]
pub struct Checkpoint {
    file: PathBuf,
    run: String,
}

impl Checkpoint {
    /// Opens the file for a run; returns where an earlier one stopped.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read, or belongs to another run.
    pub fn open(file: &Path, run: String) -> Result<(Self, Option<Position>), CheckpointError> {
        let path = || file.to_owned();
        let this = Self { file: path(), run };
        let length = match fs::metadata(file) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((this, None)),
            Err(error) => return Err(CheckpointError::Io(path(), error)),
        };
        if length > MAXIMUM {
            return Err(CheckpointError::Malformed(path()));
        }
        let bytes = fs::read(file).map_err(|error| CheckpointError::Io(path(), error))?;
        match serde_json::from_slice::<Position>(&bytes) {
            Ok(position) if position.version != 1 => Err(CheckpointError::Malformed(path())),
            Ok(position) if position.run != this.run => Err(CheckpointError::OtherRun(path())),
            Ok(position) => Ok((this, Some(position))),
            Err(_) => Err(CheckpointError::Malformed(path())),
        }
    }

    /// Writes how far the run has come. The file is whole at every moment.
    ///
    /// # Errors
    ///
    /// The file system's answer; the file is as before.
    pub fn write(&self, root: usize, path: &[u8]) -> Result<(), CheckpointError> {
        let position = Position {
            version: 1,
            run: self.run.clone(),
            root,
            path: path.to_vec(),
        };
        let mut next = self.file.clone().into_os_string();
        next.push(".new");
        let next = PathBuf::from(next);
        let write = || {
            match fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file: File = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&next)?;
            file.write_all(&serde_json::to_vec(&position)?)?;
            file.sync_data()?;
            fs::rename(&next, &self.file)
        };
        write().map_err(|error| CheckpointError::Io(self.file.clone(), error))
    }

    /// Removes the file after a complete run.
    ///
    /// # Errors
    ///
    /// The file system's answer.
    pub fn remove(&self) -> Result<(), CheckpointError> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CheckpointError::Io(self.file.clone(), error))
            }
            _ => Ok(()),
        }
    }
}
