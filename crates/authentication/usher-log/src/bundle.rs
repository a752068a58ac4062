//! Entry bundles: up to 256 entries, each a `be16` length and that many bytes (C2SP tlog-tiles).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::merkle::TILE_WIDTH;
use usher_proto::log_record::MAX_LOG_RECORD;

/// Bytes of an entry's length.
const LENGTH_SIZE: usize = 2;

/// Largest bundle that the log writes. The reader never reads more of a file.
const MAX_BUNDLE: u64 = TILE_WIDTH * (LENGTH_SIZE + MAX_LOG_RECORD) as u64;

/// Appends an entry of at most [`MAX_LOG_RECORD`] bytes to the bytes of a bundle.
pub(crate) fn put_entry(bundle: &mut Vec<u8>, entry: &[u8]) {
    const { assert!(MAX_LOG_RECORD <= u16::MAX as usize) };
    let length = u16::try_from(entry.len()).expect("records are checked before they are put");
    bundle.extend_from_slice(&length.to_be_bytes());
    bundle.extend_from_slice(entry);
}

/// Reads the bytes of a bundle; a missing file is an empty one. Reads one byte above the limit, so
/// that a longer file does not look like a full one.
pub(crate) fn read_bundle(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, MAX_BUNDLE + 1)
}

/// Reads a file up to a limit in bytes; a missing file is an empty one.
pub(crate) fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(limit).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(bytes)
}

/// The entries of a bundle, one after another, up to the end of the bytes or to the first entry that
/// is cut off or longer than a record may be.
pub(crate) struct Entries<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes up to the end of the last entry taken.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes[self.offset..].split_first_chunk::<LENGTH_SIZE>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let entry = rest.get(..length).filter(|_| length <= MAX_LOG_RECORD)?;
        self.offset += LENGTH_SIZE + length;
        Some(entry)
    }
}
