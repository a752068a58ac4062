//! Walks a tree in pre-order, names in the order of their bytes, by descriptors only.

use std::cmp::Ordering;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, open, openat,
    openat2, statx,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use usher_label::FileKind;
use usher_system_label::file::kind_of;

use crate::error::ToolError;

const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder of a process's descriptors. A file that O_PATH opened has a name there, by which
/// its attributes are reached.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Requires /proc, without which each file would get an error of its own.
///
/// # Errors
/// /proc is not mounted.
pub(crate) fn require_proc() -> Result<(), ToolError> {
    match Path::new(DESCRIPTORS).try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(ToolError::NoProc(Errno::NOENT.into())),
        Err(error) => Err(ToolError::NoProc(error)),
    }
}

/// A file of the tree.
#[derive(Debug)]
pub struct Visited<'w> {
    /// Its path: the root as it was named, and the names below it.
    pub path: &'w [u8],
    /// Opened with O_PATH; a symbolic link itself, if it is one.
    pub handle: BorrowedFd<'w>,
    /// Its kind.
    pub kind: FileKind,
    /// Its file system and inode.
    pub identity: (u64, u64),
    /// How many names it has.
    pub links: u64,
}

/// The next step after a visited file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// The files below it, if it is a directory.
    Into,
    /// The next file beside it.
    Past,
    /// The end of the walk.
    Stop,
}

/// How a tree is walked.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// Does not enter file systems that are mounted below the root, and requests nothing from them: one that
    /// a user has mounted may hang.
    pub one_file_system: bool,
    /// The root may be a symbolic link, which is followed.
    pub follow_root: bool,
    /// Begins behind this path, which an earlier walk has visited last.
    pub behind: Option<Vec<u8>>,
}

/// One step of a walk: a file, or a place that cannot be reached.
pub type Step<'w> = Result<Visited<'w>, (&'w [u8], Errno)>;

/// An open directory, one of those from the root to the walk's place.
struct Level {
    directory: OwnedFd,
    /// The names still to be visited, in reverse order.
    names: Vec<CString>,
    /// Length of the directory's own path.
    length: usize,
}

/// Compares paths by their place in a walk: a directory comes before the files below it, and those
/// before the next name beside it.
pub fn order(one: &[u8], other: &[u8]) -> Ordering {
    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
        let parts = path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty());
        parts.map(<[u8]>::to_vec).collect()
    };
    parts(one).cmp(&parts(other))
}

/// True where the second path lies below the first one.
fn is_above(path: &[u8], below: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    below
        .strip_prefix(path)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Lets a walk descend as deep as the hard limit of descriptors permits.
fn allow_depth() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused: the walk reports directories that are too deep.
    let _unchanged = setrlimit(Resource::Nofile, limit);
}

/// Visits a root and the files below it. Names that vanish meanwhile are left out.
pub fn walk(root: &Path, manner: &Manner, visit: &mut dyn FnMut(Step<'_>) -> Onward) -> Onward {
    allow_depth();
    let mut path = root.as_os_str().as_bytes().to_vec();
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    let flags = if manner.follow_root {
        OFlags::PATH | OFlags::CLOEXEC
    } else {
        HANDLE
    };
    let handle = match open(path.as_slice(), flags, Mode::empty()) {
        Ok(handle) => handle,
        Err(errno) => return visit(Err((&path, errno))),
    };
    let mut device = None;
    let mut levels: Vec<Level> = Vec::new();
    match arrive(&path, &handle, manner, &mut device, visit) {
        Onward::Into => match enter_directory(handle, path.len()) {
            Ok(level) => levels.push(level),
            Err(errno) => return visit(Err((&path, errno))),
        },
        other => return other,
    }
    while let Some(level) = levels.last_mut() {
        path.truncate(level.length);
        let Some(name) = level.names.pop() else {
            levels.pop();
            continue;
        };
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend(name.as_bytes());
        let opened = if manner.one_file_system {
            open_here(&level.directory, &name)
        } else {
            openat(&level.directory, &name, HANDLE, Mode::empty())
        };
        let onward = match opened {
            Err(Errno::NOENT) => Onward::Past,
            // Something is mounted there.
            Err(Errno::XDEV) if manner.one_file_system => Onward::Past,
            Err(errno) => visit(Err((&path, errno))),
            Ok(handle) => match arrive(&path, &handle, manner, &mut device, visit) {
                Onward::Into => match enter_directory(handle, path.len()) {
                    Ok(level) => {
                        levels.push(level);
                        Onward::Past
                    }
                    Err(errno) => visit(Err((&path, errno))),
                },
                other => other,
            },
        };
        if onward == Onward::Stop {
            return Onward::Stop;
        }
    }
    Onward::Past
}

/// Opens a name in a directory, without asking anything of what is mounted there.
///
/// # Errors
/// `EXDEV`: something is mounted there.
fn open_here(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let here = ResolveFlags::NO_XDEV;
    match openat2(directory, name, HANDLE, Mode::empty(), here) {
        // A seccomp filter refuses openat2(2), as those of some containers do.
        Err(Errno::NOSYS | Errno::PERM) => open_on_mount(directory, name),
        opened => opened,
    }
}

/// As [`open_here`], without openat2(2): compares mount ids, which the kernel knows without the file system.
fn open_on_mount(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let handle = openat(directory, name, HANDLE, Mode::empty())?;
    if mount_of(&handle)? == mount_of(directory)? {
        Ok(handle)
    } else {
        Err(Errno::XDEV)
    }
}

/// # Errors
/// `ENOSYS`: the number of the mount is not known.
fn mount_of(handle: &OwnedFd) -> Result<u64, Errno> {
    let quietly = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(handle, c"", quietly, StatxFlags::MNT_ID)?;
    match found.stx_mask & StatxFlags::MNT_ID.bits() {
        0 => Err(Errno::NOSYS),
        _ => Ok(found.stx_mnt_id),
    }
}

/// Visits one file, unless an earlier walk has; says whether to go below it.
fn arrive(
    path: &[u8],
    handle: &OwnedFd,
    manner: &Manner,
    device: &mut Option<u64>,
    visit: &mut dyn FnMut(Step<'_>) -> Onward,
) -> Onward {
    let stat = match fstat(handle) {
        Ok(stat) => stat,
        Err(errno) => return visit(Err((path, errno))),
    };
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
    // A file system may have several devices, as btrfs has for subvolumes.
    let is_foreign = *device.get_or_insert(stat.st_dev) != stat.st_dev;
    if is_foreign && manner.one_file_system {
        return Onward::Past;
    }
    let below = match kind {
        FileKind::Directory => Onward::Into,
        _ => Onward::Past,
    };
    if let Some(behind) = &manner.behind
        && order(path, behind) != Ordering::Greater
    {
        return if is_above(path, behind) || path == behind.as_slice() {
            below
        } else {
            Onward::Past
        };
    }
    let visited = Visited {
        path,
        handle: handle.as_fd(),
        kind,
        identity: (stat.st_dev, stat.st_ino),
        links: stat.st_nlink,
    };
    match visit(Ok(visited)) {
        Onward::Into => below,
        other => other,
    }
}

/// Reads the names of a directory that was opened with O_PATH.
fn enter_directory(handle: OwnedFd, length: usize) -> Result<Level, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(&handle, c".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(Level {
        directory,
        names,
        length,
    })
}

/// Opens one file without a walk.
///
/// # Errors
///
/// As open(2).
pub fn handle_of(path: &Path, follow: bool) -> Result<OwnedFd, Errno> {
    let flags = if follow {
        OFlags::PATH | OFlags::CLOEXEC
    } else {
        HANDLE
    };
    openat(CWD, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["a/b", "a.b", "c"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        for file in ["a/b/x", "a/z", "a.b/y", "c/w\n"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        symlink("/", folder.path().join("c/root")).unwrap();
        folder
    }

    fn visited(folder: &Path, behind: Option<&str>) -> Vec<String> {
        let base = folder.as_os_str().as_bytes().to_vec();
        let manner = Manner {
            behind: behind.map(|path| [&base[..], path.as_bytes()].concat()),
            ..Manner::default()
        };
        let mut seen = Vec::new();
        walk(folder, &manner, &mut |step| {
            let path = step.unwrap().path[base.len()..].to_vec();
            seen.push(String::from_utf8(path).unwrap());
            Onward::Into
        });
        seen
    }

    // Threat model: M119
    #[test]
    fn a_walk_visits_each_file_once_and_follows_no_link() {
        let folder = tree();
        let expected = [
            "", "/a", "/a/b", "/a/b/x", "/a/z", "/a.b", "/a.b/y", "/c", "/c/root", "/c/w\n",
        ];
        assert_eq!(visited(folder.path(), None), expected);
    }

    #[test]
    fn a_walk_that_begins_anywhere_visits_the_rest() {
        let folder = tree();
        let whole = visited(folder.path(), None);
        for (index, last) in whole.iter().enumerate() {
            assert_eq!(visited(folder.path(), Some(last)), whole[index + 1..]);
        }
        // The file was removed since.
        assert_eq!(visited(folder.path(), Some("/a/c")), whole[4..]);
    }

    // Threat model: M112
    #[test]
    fn a_directory_that_is_exchanged_for_a_link_is_not_left() {
        let folder = tree();
        let (inside, aside) = (folder.path().join("a"), folder.path().join("aside"));
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("z"), "").unwrap();
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let (expected, foreign) = (inode(&inside.join("z")), inode(&outside.path().join("z")));
        let mut found = Vec::new();
        walk(folder.path(), &Manner::default(), &mut |step| {
            let file = step.unwrap();
            if file.path.ends_with(b"/a") {
                fs::rename(&inside, &aside).unwrap();
                symlink(outside.path(), &inside).unwrap();
            }
            if file.path.ends_with(b"/a/z") {
                found.push(file.identity.1);
            }
            Onward::Into
        });
        assert_eq!(found, [expected]);
        assert_ne!(expected, foreign);
    }

    #[test]
    fn a_step_past_a_directory_leaves_out_what_is_below() {
        let folder = tree();
        let mut count = 0;
        walk(folder.path(), &Manner::default(), &mut |step| {
            count += 1;
            if step.unwrap().path.ends_with(b"/a") {
                Onward::Past
            } else {
                Onward::Into
            }
        });
        assert_eq!(count, 7);
    }
}
