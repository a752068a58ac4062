//! The layout of a log's directory (C2SP tlog-tiles), the right to append to the log, and the removal of what
//! its checkpoint lacks.

use std::fs::{File, Permissions, TryLockError};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::durable;
use crate::error::{At, Damage, LogError};
use crate::merkle::{HASH_SIZE, TILE_HEIGHT, TILE_WIDTH};
use usher_proto::log_record::RecordError;

/// Paths of one log.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    directory: PathBuf,
}

impl Layout {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.directory.join("checkpoint")
    }

    pub(crate) fn verifier_key(&self) -> PathBuf {
        self.directory.join("verifier-key")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    pub(crate) fn tiles(&self) -> PathBuf {
        self.directory.join("tile")
    }

    /// The entry bundle with the records from 256 × `number` on.
    pub(crate) fn bundle(&self, number: u64) -> PathBuf {
        self.tiles().join("entries").join(path_of(number))
    }

    /// The damage of a record without a valid signature.
    pub(crate) fn forged(&self, index: u64, error: RecordError) -> Damage {
        Damage::Forged {
            index,
            place: self.bundle(index / TILE_WIDTH),
            error,
        }
    }

    /// The hash tile `number` of a level.
    pub(crate) fn tile(&self, level: u32, number: u64) -> PathBuf {
        self.tiles().join(level.to_string()).join(path_of(number))
    }
}

/// A number as path elements of three digits, with an `x` before all but the last.
fn path_of(number: u64) -> PathBuf {
    let mut elements = vec![format!("{:03}", number % 1000)];
    let mut rest = number / 1000;
    while rest > 0 {
        elements.push(format!("x{:03}", rest % 1000));
        rest /= 1000;
    }
    elements.iter().rev().collect()
}

/// The right to append, held by one process at a time.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    pub(crate) fn take(layout: &Layout) -> Result<Self, LogError> {
        let path = layout.lock();
        // Any process that can open this file can lock it, and keep the log from being opened.
        const OWNER: u32 = 0o600;
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(OWNER)
            .open(&path)
            .at(&path)?;
        file.set_permissions(Permissions::from_mode(OWNER))
            .at(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(LogError::Locked(layout.directory().to_owned())),
            Err(TryLockError::Error(error)) => Err(error).at(&path),
        }
    }
}

impl Drop for Lock {
    /// Closing the file is not enough: a child that another thread has forked holds a copy of the
    /// descriptor until it executes its program, and every copy keeps the lock. Unlocking through
    /// one descriptor releases it for all of them. If that fails, closing releases it later.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Removes everything after the records of a tree of `size` leaves.
pub(crate) fn cut_off(layout: &Layout, size: u64, bundle_length: u64) -> Result<(), LogError> {
    cut_bundles(layout, size, bundle_length)?;
    cut_tiles(layout, size)?;
    durable::cut(&durable::prepared(&layout.checkpoint()), 0)?;
    Ok(())
}

pub(crate) fn cut_bundles(layout: &Layout, size: u64, length: u64) -> Result<(), LogError> {
    let mut number = size / TILE_WIDTH;
    durable::cut(&layout.bundle(number), length)?;
    loop {
        number += 1;
        if !durable::cut(&layout.bundle(number), 0)? {
            return Ok(());
        }
    }
}

pub(crate) fn cut_tiles(layout: &Layout, size: u64) -> Result<(), LogError> {
    for level in 0..u64::BITS / TILE_HEIGHT {
        let count = size >> (level * TILE_HEIGHT);
        let mut number = count / TILE_WIDTH;
        let length = count % TILE_WIDTH * HASH_SIZE as u64;
        let mut there = durable::cut(&layout.tile(level, number), length)?;
        while there {
            number += 1;
            there = durable::cut(&layout.tile(level, number), 0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::path_of;
    use std::path::Path;

    #[test]
    fn numbers_are_paths_as_the_specification_has_them() {
        assert_eq!(path_of(0), Path::new("000"));
        assert_eq!(path_of(999), Path::new("999"));
        assert_eq!(path_of(1000), Path::new("x001/000"));
        assert_eq!(path_of(1_234_067), Path::new("x001/x234/067"));
    }
}
