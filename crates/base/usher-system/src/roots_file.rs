//! Files that only root can write, each with the folders on the way to it.
//!
//! A program that trusts such a file opens it from the root on, follows no link, and checks what it has
//! opened: only root has put it there, and only root can change it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

/// Bits of a file's mode: its group and all users may write it.
const WRITE_BY_OTHERS: u32 = 0o022;

/// A reason that a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum RootsFileError {
    /// The system's error.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A link, whose target others could change.
    #[error("{0} is a symbolic link, and none is followed here; put the file itself there")]
    Link(PathBuf),
    /// A file or folder of another type than its place requires.
    #[error("{path} is not a {wanted}")]
    OtherType {
        /// The file or folder.
        path: PathBuf,
        /// `regular file` or `folder`.
        wanted: &'static str,
    },
    /// An owner other than root could write the file or folder.
    #[error(
        "{path} belongs to uid {uid}, who decides what is in it: look at it, then put files and folders \
         of root's in its place (install -o root -g root)"
    )]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// The uid of its owner.
        uid: u32,
    },
    /// Others than root could write the file or folder.
    #[error(
        "others than root can write {path} (mode {mode:04o}): {}", remedy_of(*.mode)
    )]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// The permissions of the file or folder.
        mode: u32,
    },
}

fn remedy_of(mode: u32) -> &'static str {
    if mode & Mode::SVTX.bits() != 0 {
        return "put the file into a folder that root alone can write, and leave this one as it is";
    }
    "look at what is in it, then put a file of root's in its place (install -m 644), or chmod go-w a folder"
}

/// Opens a folder from the root on, to look up names in it; none if it is not there. The path is absolute
/// and without `..`.
///
/// # Errors
/// When the folder, or one above it, is not root's alone.
pub fn open_folder(path: &Path) -> Result<Option<OwnedFd>, RootsFileError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut so_far = PathBuf::new();
    let mut folder = None::<OwnedFd>;
    for part in path {
        so_far.push(part);
        let opened = match &folder {
            None => openat(CWD, part, flags, Mode::empty()),
            Some(above) => openat(above, part, flags, Mode::empty()),
        };
        let opened = match opened {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(unreadable(&so_far))?,
        };
        require(&opened, &so_far, FileType::Directory)?;
        folder = Some(opened);
    }
    Ok(folder)
}

/// Reads at most `limit` bytes of a regular file in a folder of [`open_folder`]; none if the file is not
/// there. `path` is for errors.
///
/// # Errors
/// When the file is not root's alone.
pub fn read_in(
    folder: &OwnedFd,
    name: &str,
    path: &Path,
    limit: usize,
) -> Result<Option<Vec<u8>>, RootsFileError> {
    // Not blocking, in case it is a FIFO.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(RootsFileError::Link(path.into())),
        opened => opened.map_err(unreadable(path))?,
    };
    require(&file, path, FileType::RegularFile)?;
    let mut bytes = Vec::new();
    let read = File::from(file).take(limit as u64).read_to_end(&mut bytes);
    read.map_err(unreadable(path))?;
    Ok(Some(bytes))
}

/// An error of the system about a file.
pub fn unreadable<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> RootsFileError {
    move |error| RootsFileError::Unreadable {
        path: path.into(),
        error: error.into(),
    }
}

/// Requires a file or folder that root owns and only root can write.
fn require(opened: &OwnedFd, path: &Path, wanted: FileType) -> Result<(), RootsFileError> {
    let Stat {
        st_mode, st_uid, ..
    } = fstat(opened).map_err(unreadable(path))?;
    let path = path.to_owned();
    let found = FileType::from_raw_mode(st_mode);
    let mode = st_mode & 0o7777;
    if found == FileType::Symlink {
        Err(RootsFileError::Link(path))
    } else if found != wanted {
        let wanted = match wanted {
            FileType::Directory => "folder",
            _ => "regular file",
        };
        Err(RootsFileError::OtherType { path, wanted })
    } else if st_uid != 0 {
        Err(RootsFileError::Owner { path, uid: st_uid })
    } else if mode & WRITE_BY_OTHERS != 0 {
        Err(RootsFileError::Writable { path, mode })
    } else {
        Ok(())
    }
}
