//! The devices of mounted file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags, statx};
use usher_mac::Framework;

use super::patience::Patience;

/// With these flags, statx(2) triggers no automount, and asks no server for cached attributes.
pub(super) const QUIETLY: AtFlags = AtFlags::NO_AUTOMOUNT.union(AtFlags::STATX_DONT_SYNC);

/// The flags with which statx(2) says what is mounted at a path now.
const HERE: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(QUIETLY);

/// No file system has this device: the kernel's numbers begin with 0:1.
pub(super) const NOWHERE: (u32, u32) = (0, 0);

/// The mounted file systems, as the kernel lists them. A path may lead over file systems that do not answer,
/// such as a user's own (FUSE). A question about such a path times out.
#[derive(Debug)]
pub(super) struct FileSystems {
    mounts: Mutex<File>,
    patience: Patience<io::Result<Statx>>,
    /// File systems that are no longer mounted at their path of the policy but are in use: in another mount
    /// namespace, at another mount point, or by open files. Mounted ones that do not answer may be among
    /// them.
    elsewhere: Mutex<BTreeMap<String, (u32, u32)>>,
}

impl FileSystems {
    /// The file systems of an opened mountinfo file (proc_pid_mountinfo(5)).
    pub(super) fn new(mounts: File) -> Self {
        Self {
            mounts: Mutex::new(mounts),
            patience: Patience::default(),
            elsewhere: Mutex::default(),
        }
    }

    /// Has the kernel note the file systems that are mounted at these paths, and asks it which unmounted ones
    /// are in use. Returns whether the kernel has noted a new one.
    ///
    /// # Errors
    /// The kernel's error; what it has noted before stays.
    pub(super) fn follow(
        &self,
        framework: &mut Framework,
        paths: &BTreeSet<String>,
    ) -> Result<bool, usher_mac::Error> {
        let (mut mounted, mut others) = (BTreeMap::new(), Vec::new());
        for path in paths {
            match self.device(path) {
                Ok(device) => drop(mounted.insert(path.clone(), device)),
                Err(_) => others.push(path.clone()),
            }
        }
        let news = framework.follow(&mounted, &others)?;
        for path in &news {
            // The file system may have ended before the kernel noted its device, which another one may have
            // by now.
            match self.device(path) {
                Ok(device) if mounted.get(path) == Some(&device) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                _ => framework.unfollow(path)?,
            }
        }
        let mut elsewhere = BTreeMap::new();
        for path in others {
            if let Some(device) = framework.followed(&path)? {
                elsewhere.insert(path, device);
            }
        }
        *self.elsewhere.lock() = elsewhere;
        Ok(!news.is_empty())
    }

    /// Forgets the unmounted file systems, when no module is in force.
    pub(super) fn forget(&self) {
        self.elsewhere.lock().clear();
    }

    /// The device of a file system that was mounted at a path, and lives on elsewhere.
    pub(super) fn elsewhere(&self, path: &str) -> Option<(u32, u32)> {
        self.elsewhere.lock().get(path).copied()
    }

    /// Whether any file system lives on elsewhere.
    pub(super) fn has_elsewhere(&self) -> bool {
        !self.elsewhere.lock().is_empty()
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

    /// The number of the mount at a path, and the device of its file system. `look` calls statx(2).
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

/// The number of the mount at a path, from the answer of statx(2) about the path.
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
