//! The devices of mounted file systems.

use std::fs::File;
use std::io::{self, Read, Seek};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags, statx};

use super::patience::Patience;

/// Nothing is mounted for the question, and no server is asked for a state that is known.
pub(super) const QUIETLY: AtFlags = AtFlags::NO_AUTOMOUNT.union(AtFlags::STATX_DONT_SYNC);

/// What is mounted at a path now.
const HERE: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(QUIETLY);

/// No file system has this device: the kernel's numbers begin with 0:1.
pub(super) const NOWHERE: (u32, u32) = (0, 0);

/// The mounted file systems, as the kernel lists them. A path leads over file systems that may not answer, such as a
/// user's own (FUSE): those are given up.
#[derive(Debug)]
pub(super) struct FileSystems {
    mounts: Mutex<File>,
    patience: Patience<io::Result<Statx>>,
}

impl FileSystems {
    /// Those of an opened mountinfo file (proc_pid_mountinfo(5)).
    pub(super) fn new(mounts: File) -> Self {
        Self {
            mounts: Mutex::new(mounts),
            patience: Patience::default(),
        }
    }

    /// The device of the file system that is mounted at a path, as its superblock has it. The device in
    /// stat(2) is another one where a file system has several trees (btrfs).
    ///
    /// # Errors
    /// Nothing is mounted there: the path would mean the whole file system around it. [`io::ErrorKind::TimedOut`]
    /// when a file system on the way does not answer.
    pub(super) fn device(&self, path: &str) -> io::Result<(u32, u32)> {
        let found = self.mounted(path, |path| Ok(statx(CWD, path, HERE, StatxFlags::MNT_ID)?));
        found.map(|(_, device)| device)
    }

    /// The number of the mount at a path, and the device of its file system, by what a function finds of the path.
    ///
    /// # Errors
    /// As [`Self::device`].
    pub(super) fn mounted(
        &self,
        path: &str,
        look: fn(&str) -> io::Result<Statx>,
    ) -> io::Result<(u64, (u32, u32))> {
        let found = self.patience.ask(path, {
            let path = path.to_owned();
            move || look(&path)
        })??;
        let mount = mount_at(&found)?;
        let mut text = String::new();
        let mut mounts = self.mounts.lock();
        mounts.rewind()?;
        mounts.read_to_string(&mut text)?;
        let device = device_of(&text, mount).ok_or(io::ErrorKind::NotFound)?;
        Ok((mount, device))
    }
}

/// The number of the mount at a path, by what statx(2) says of the path with its mount's number.
///
/// # Errors
/// Nothing is mounted there.
fn mount_at(found: &Statx) -> io::Result<u64> {
    let mount_root = StatxAttributes::MOUNT_ROOT;
    let has_number = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if !found.stx_attributes_mask.contains(mount_root) || !has_number {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if !found.stx_attributes.contains(mount_root) {
        let text = "no file system is mounted there, so the whole one around it would be meant; mount one, \
                    or name a mount point (findmnt lists them)";
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(found.stx_mnt_id)
}

/// The device of a mount in the text of mountinfo: `ID PARENT MAJOR:MINOR ...`.
fn device_of(mounts: &str, mount: u64) -> Option<(u32, u32)> {
    let mut fields = mounts.lines().map(|line| line.split(' '));
    let mut fields = fields.find_map(|mut fields| {
        let is_wanted = fields.next()?.parse() == Ok(mount);
        is_wanted.then_some(fields)
    })?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn file_systems_are_known_by_their_device() {
        let device = std::fs::metadata("/proc").unwrap().dev();
        let mounted = FileSystems::new(File::open("/proc/self/mountinfo").unwrap());
        let (major, minor) = mounted.device("/proc").unwrap();
        let expected = (rustix::fs::major(device), rustix::fs::minor(device));
        assert_eq!((major, minor), expected);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let refused = mounted.device(path).unwrap_err().to_string();
        assert!(refused.contains("is mounted there"), "{refused}");
        let text = "25 1 8:17 / / rw - ext4 /dev/a rw\n36 25 0:30 /x /y rw - btrfs b rw\n";
        assert_eq!(device_of(text, 36), Some((0, 30)));
        assert_eq!(device_of(text, 3), None);
    }
}
