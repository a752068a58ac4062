//! Files of the configuration, read within a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::{ConfigurationError, MAX_FILE};

/// Turns the error of a missing file into none.
///
/// # Errors
/// All other errors.
pub fn optional<T>(read: Result<T, ConfigurationError>) -> Result<Option<T>, ConfigurationError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(ConfigurationError::File(_, error)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads a text file of at most [`MAX_FILE`] bytes.
///
/// # Errors
/// When it cannot be read, is larger, or is not UTF-8.
pub fn read_bounded(path: &Path) -> Result<String, ConfigurationError> {
    let file = File::open(path).map_err(|error| file_error(path, error))?;
    read_bounded_open(path, &file)
}

/// As [`read_bounded`], for an open file; `path` is for the error.
///
/// # Errors
/// As [`read_bounded`].
pub fn read_bounded_open(path: &Path, file: &File) -> Result<String, ConfigurationError> {
    text_of_file(path, read_open(path, file)?)
}

pub(crate) fn text_of_file(path: &Path, bytes: Vec<u8>) -> Result<String, ConfigurationError> {
    String::from_utf8(bytes).map_err(|_| {
        file_error(
            path,
            io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"),
        )
    })
}

pub(crate) fn read_open(path: &Path, file: &File) -> Result<Vec<u8>, ConfigurationError> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| file_error(path, error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ConfigurationError::TooLarge(path.into()));
    }
    Ok(bytes)
}

pub(crate) fn file_error(path: &Path, error: io::Error) -> ConfigurationError {
    ConfigurationError::File(path.into(), error)
}
