//! Finds the file at a path, and the accounts that can put another file there.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

/// The most links on the way, as for the kernel.
const MOST_LINKS: usize = 40;
const ROOT: u32 = 0;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_ALL: u32 = 0o002;

/// The accounts that can change to which file a path leads: they own a folder on the way, or may
/// write to it. Folders behind links are on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masters {
    Root,
    /// This account, and root.
    Account(u32),
    /// More than one account beside root, perhaps all.
    Several,
}

impl Masters {
    /// A folder that is sticky is no better: whoever comes first makes the entry.
    fn of(folder: &Stat) -> Self {
        let by_group = folder.st_mode & WRITABLE_BY_GROUP != 0 && folder.st_gid != ROOT;
        if by_group || folder.st_mode & WRITABLE_BY_ALL != 0 {
            Self::Several
        } else if folder.st_uid == ROOT {
            Self::Root
        } else {
            Self::Account(folder.st_uid)
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Root, one) | (one, Self::Root) => one,
            (Self::Account(one), Self::Account(other)) if one == other => self,
            _ => Self::Several,
        }
    }

    /// Whether they can have a file of this owner count: no account can with another's.
    pub fn may_name(self, owner: u32) -> bool {
        match self {
            Self::Root => true,
            Self::Account(account) => account == owner,
            Self::Several => false,
        }
    }
}

/// What is at a path.
#[derive(Debug)]
pub(crate) struct Found {
    /// Opened as O_PATH.
    pub file: OwnedFd,
    pub owner: u32,
    pub masters: Masters,
}

/// Follows an absolute path, one name after another, so that no folder is left out.
pub(crate) fn follow(path: &Path) -> Result<Found, Errno> {
    let mut names = VecDeque::new();
    prepend(&mut names, path.as_os_str());
    let root = open(CWD, OsStr::new("/"))?;
    let mut here = root.try_clone().map_err(errno)?;
    let mut about = fstat(&here)?;
    let mut masters = Masters::Root;
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        masters = masters.and(Masters::of(&about));
        let next = open(&here, &name)?;
        let about_next = fstat(&next)?;
        if FileType::from_raw_mode(about_next.st_mode) == FileType::Symlink {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            let target = readlinkat(&next, "", Vec::new())?;
            let target = OsString::from_vec(target.into_bytes());
            if target.as_bytes().starts_with(b"/") {
                here = root.try_clone().map_err(errno)?;
                about = fstat(&here)?;
            }
            prepend(&mut names, &target);
        } else {
            (here, about) = (next, about_next);
        }
    }
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(Errno::ACCESS);
    }
    Ok(Found {
        file: here,
        owner: about.st_uid,
        masters,
    })
}

fn prepend(names: &mut VecDeque<OsString>, path: &OsStr) {
    let parts = path.as_bytes().split(|byte| *byte == b'/');
    for part in parts.rev().filter(|part| !part.is_empty()) {
        names.push_front(OsStr::from_bytes(part).to_owned());
    }
}

fn open(folder: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_account_names_a_file_of_another() {
        let (bob, eve) = (Masters::Account(1), Masters::Account(2));
        assert!(Masters::Root.may_name(0) && Masters::Root.may_name(1));
        assert!(bob.may_name(1) && !bob.may_name(0) && !bob.may_name(2));
        assert_eq!(Masters::Root.and(bob), bob);
        assert_eq!(bob.and(bob), bob);
        assert_eq!(bob.and(eve), Masters::Several);
        assert!(!Masters::Several.may_name(0) && !Masters::Several.may_name(1));
    }

    #[test]
    fn a_link_leads_to_the_file_that_the_kernel_finds() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("deep")).unwrap();
        std::fs::write(path("deep/file"), "").unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, path(name));
        link("deep/../deep/file", "relative").unwrap();
        link(path("relative").to_str().unwrap(), "absolute").unwrap();
        link("round", "round").unwrap();
        let found = follow(&path("absolute")).unwrap();
        let expected = rustix::fs::stat(path("deep/file")).unwrap();
        assert_eq!(fstat(&found.file).unwrap().st_ino, expected.st_ino);
        assert_eq!(follow(&path("round")).unwrap_err(), Errno::LOOP);
        assert_eq!(follow(&path("deep")).unwrap_err(), Errno::ACCESS);
        assert_eq!(follow(&path("deep/file/more")).unwrap_err(), Errno::NOTDIR);
        assert_eq!(follow(&path("nothing")).unwrap_err(), Errno::NOENT);
        // A folder that everybody may write to is on the way.
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path("deep"), mode(0o1777)).unwrap();
        assert_eq!(follow(&path("absolute")).unwrap().masters, Masters::Several);
    }
}
