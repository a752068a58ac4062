//! Finds where an open file lies in its file system, and whether others than root can put another file there.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, statat,
};
use rustix::io::Errno;

/// Bits of a file's mode: its group and all users may write it.
const WRITE_BY_OTHERS: u32 = 0o022;

/// A file system, or a directory with all that is below it.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    /// The path of the tree's root.
    path: PathBuf,
    /// Root alone can make names in the directories above the tree's root.
    is_roots: bool,
}

/// A file at its only path.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) stat: Stat,
    /// The directory in which the file has its name. `None`: the file is the root of the tree.
    pub(super) directory: Option<OwnedFd>,
}

impl Tree {
    /// The tree of an open directory.
    ///
    /// # Errors
    /// The directory, or one above it, cannot be looked at.
    pub(super) fn new(root: OwnedFd) -> io::Result<Self> {
        let path = path_of(root.as_fd())?;
        let mut is_roots = true;
        // Look from the top down, and stop at a directory that others can write: they decide what is mounted
        // below, and whether it answers.
        let above: Vec<_> = path.ancestors().skip(1).collect();
        for directory in above.into_iter().rev() {
            is_roots =
                is_roots && is_roots_directory(&statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW)?);
        }
        Ok(Self {
            root,
            path,
            is_roots,
        })
    }

    /// The absolute path for a path below the root.
    pub(super) fn whole(&self, path: &Path) -> PathBuf {
        self.path.join(path)
    }

    /// Opens a path below the root with O_PATH. It follows no link, and enters no other mount, which could be
    /// a user's own and not answer.
    pub(super) fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        open_below(&self.root, path)
    }

    /// The path of an open file below the root, with its directory, if the file has only one path.
    pub(super) fn only_path(&self, file: BorrowedFd<'_>) -> io::Result<Option<Found>> {
        let stat = fstat(file)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink != 1 {
            return Ok(None);
        }
        let path = match path_of(file) {
            // The file lies too deep for a path.
            Err(error) if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => {
                return Ok(None);
            }
            path => path?,
        };
        let Ok(path) = path.strip_prefix(&self.path) else {
            return Ok(None);
        };
        // The kernel may have forgotten the names above the file, or the file was moved, or something is
        // mounted there.
        let Ok((directory, there)) = self.find(path) else {
            return Ok(None);
        };
        let there = fstat(&there)?;
        let is_there = (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino);
        Ok(is_there.then(|| Found {
            path: path.to_owned(),
            stat,
            directory,
        }))
    }

    /// The directory of a path, and the file that has the path's last name in it. The file is opened in the
    /// open directory, so it was in this directory even if somebody moves directories meanwhile.
    fn find(&self, path: &Path) -> io::Result<(Option<OwnedFd>, OwnedFd)> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok((None, self.open(path)?));
        };
        let directory = self.open(directory)?;
        let there = open_below(&directory, Path::new(name))?;
        Ok((Some(directory), there))
    }

    /// Whether a file is root's, and root alone can put another file into its place.
    pub(super) fn is_roots_alone(&self, path: &Path, stat: &Stat) -> io::Result<bool> {
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if !self.is_roots || stat.st_uid != 0 || (!is_link && stat.st_mode & WRITE_BY_OTHERS != 0) {
            return Ok(false);
        }
        for above in path.ancestors().skip(1) {
            if !is_roots_directory(&fstat(&self.open(above)?)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn open_below(directory: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let here = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    Ok(openat2(directory, path, flags, Mode::empty(), here)?)
}

/// Whether this is a directory in which root alone can make names.
fn is_roots_directory(stat: &Stat) -> bool {
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    is_directory && stat.st_uid == 0 && stat.st_mode & WRITE_BY_OTHERS == 0
}

/// The path of an open file, as the kernel has it.
fn path_of(file: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}
