//! The file systems that rules and labels follow by their paths, for as long as they live: one that is unmounted at its
//! path may be mounted elsewhere, in another namespace, or have open files.

use std::collections::{BTreeMap, BTreeSet};

use usher_bpf::{KernelError, Object, Table};

use crate::devices::{Device, device_number, device_of};
use crate::{Error, Framework};

/// The table of their devices.
pub(crate) const TABLE: &str = "followed";

/// The hook at which the kernel says that a file system has ended.
pub(crate) const HOOK: &str = "sb_delete";

/// The table. The kernel removes the entries of a file system that ends.
pub(crate) struct Followed(Table<u64, u32>);

impl Followed {
    pub(crate) fn of(object: &Object) -> Result<Self, KernelError> {
        Ok(Self(object.table(TABLE)?))
    }
}

impl Framework {
    /// Notes which file system is mounted at each of these paths now, and forgets all other paths but those
    /// in `kept`. Returns the paths whose file system is new. Look at these file systems again: a file system
    /// that has ended meanwhile stays noted until [`Self::unfollow`].
    ///
    /// # Errors
    /// The kernel's error, also for more than 320 paths: some may be noted then.
    pub fn follow(
        &mut self,
        mounted: &BTreeMap<String, Device>,
        kept: &[String],
    ) -> Result<Vec<String>, Error> {
        if !mounted.is_empty() {
            self.require_dispatchers(&[HOOK].into())?;
            self.attach(HOOK)?;
        }
        let wanted: BTreeSet<u64> = mounted.keys().chain(kept).map(number_of).collect();
        for (path, _) in self.followed.0.entries()? {
            if !wanted.contains(&path) {
                self.followed.0.remove(&path)?;
            }
        }
        let mut news = Vec::new();
        for (path, device) in mounted {
            if self.followed(path)? != Some(*device) {
                self.followed
                    .0
                    .set(&number_of(path), &device_number(*device)?)?;
                news.push(path.clone());
            }
        }
        Ok(news)
    }

    /// Forgets the file system of a path.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unfollow(&self, path: &str) -> Result<(), Error> {
        self.followed.0.remove(&number_of(path))?;
        Ok(())
    }

    /// The device of the file system that was mounted at a path last, as long as it lives.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn followed(&self, path: &str) -> Result<Option<Device>, Error> {
        let found = self.followed.0.get(&number_of(path))?;
        Ok(found.map(device_of))
    }
}

/// A number of a path, the same in every process and version: FNV-1a. The paths are the administrator's.
fn number_of(path: impl AsRef<str>) -> u64 {
    path.as_ref()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |number, byte| {
            (number ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_same_number_in_every_version() {
        // The offset basis, and a published value of the function.
        assert_eq!(number_of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(number_of("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
