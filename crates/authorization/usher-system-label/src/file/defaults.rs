//! The file mac.conf.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use usher_label::Defaults;
use usher_language::{Diagnostic, MAXIMUM_SOURCE_BYTES, Source};

/// The elements of labels that programs ask for: see mac.conf(5). The path is fixed, so that no caller of a
/// program can choose them.
///
/// Owner: root. Made by: the administrator. Backup: yes. Lost: label tools do not know which elements to
/// show.
pub const MAC_CONF: &str = "/etc/usher/mac.conf";

/// A file that cannot be read. Displays as an explanation.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system's answer.
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    /// The file has mistakes; here is the first one.
    #[error("{}; {}", .0, .0.remedy())]
    Mistake(Box<Diagnostic>),
}

/// Reads mac.conf.
///
/// # Errors
///
/// The file is missing, or has a mistake: then none of its lines counts.
pub fn read_defaults(path: &Path) -> Result<Defaults, ReadError> {
    let source = read_source(path)?;
    Defaults::parse(source).map_err(first_of)
}

/// Reads a text of at most a mebibyte.
///
/// # Errors
///
/// The file cannot be read, or is not UTF-8.
pub fn read_source(path: &Path) -> Result<Source, ReadError> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let limit = MAXIMUM_SOURCE_BYTES as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    match read {
        // One byte too many: parsers refuse a text of this length.
        Ok(_) => Source::from_utf8(name, bytes).map_err(ReadError::Mistake),
        Err(error) => Err(ReadError::Io(name, error)),
    }
}

/// The first mistake of a file, of which there is at least one.
pub fn first_of(found: Vec<Diagnostic>) -> ReadError {
    match found.into_iter().next() {
        Some(first) => ReadError::Mistake(Box::new(first)),
        None => ReadError::Io(String::new(), io::ErrorKind::InvalidData.into()),
    }
}
