//! A walk over all files of a file system, in bounded memory, a few files at a time.
//!
//! A walk keeps the open directories from the root to its present place, and no list of names. It may miss
//! names that are made meanwhile; their events are watched at the same time. It never asks a file system that
//! is mounted below, which could be a user's own and not answer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Deepest directory below the root that is walked. Each takes a descriptor, and memory for its names.
pub(in crate::labeller) const DEEPEST: usize = 256;

/// How a name is opened: no symbolic link is followed, and no other mount entered.
const HERE: ResolveFlags = ResolveFlags::NO_XDEV
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// A walk that is under way.
pub(super) struct Walk {
    /// The root, until [`Walk::next`] has returned it as the first step.
    root: Option<OwnedFd>,
    /// From the root to the directory that is read.
    directories: Vec<Dir>,
    began: Instant,
}

/// One step of a walk.
pub(super) enum Step {
    /// A file, opened with O_PATH; of a symbolic link, the link itself.
    File(OwnedFd),
    /// A directory lies too deep, and nothing below it is looked at.
    TooDeep(OwnedFd),
    /// A file or directory cannot be opened.
    Unreachable(io::Error),
}

impl Walk {
    /// Begins with the root, an open directory.
    ///
    /// # Errors
    /// The root cannot be read.
    pub(super) fn begin(root: impl AsFd) -> io::Result<Self> {
        let handle = OFlags::PATH | OFlags::CLOEXEC;
        Ok(Self {
            directories: vec![opened(&root)?],
            root: Some(openat(&root, c".", handle, Mode::empty())?),
            began: Instant::now(),
        })
    }

    /// How long the walk has been under way.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}

fn opened(directory: impl AsFd) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(directory, c".", flags, Mode::empty())?;
    Ok(Dir::new(directory)?)
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if let Some(root) = self.root.take() {
            return Some(Step::File(root));
        }
        loop {
            let directory = self.directories.last_mut()?;
            let entry = match directory.next() {
                None => {
                    self.directories.pop();
                    continue;
                }
                Some(Ok(entry)) => entry,
                Some(Err(errno)) => {
                    // The unread rest of the folder is left out.
                    self.directories.pop();
                    return Some(Step::Unreachable(errno.into()));
                }
            };
            let name = entry.file_name();
            if [c".", c".."].contains(&name) {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = directory.fd().and_then(|directory| {
                let file = openat2(directory, name, flags, Mode::empty(), HERE)?;
                let stat = fstat(&file)?;
                Ok((file, stat))
            });
            let (file, stat) = match opened {
                Ok(opened) => opened,
                // The name is gone, or another file system is mounted there.
                Err(Errno::NOENT | Errno::XDEV) => continue,
                Err(errno) => return Some(Step::Unreachable(errno.into())),
            };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                return Some(Step::File(file));
            }
            if self.directories.len() > DEEPEST {
                return Some(Step::TooDeep(file));
            }
            return Some(match self::opened(&file) {
                Ok(directory) => {
                    self.directories.push(directory);
                    Step::File(file)
                }
                Err(error) => Step::Unreachable(error),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    use super::*;

    fn inodes(root: &Path) -> (BTreeSet<u64>, usize) {
        let root = fs::File::open(root).unwrap();
        let (mut found, mut unreachable) = (BTreeSet::new(), 0);
        for step in Walk::begin(&root).unwrap() {
            match step {
                Step::File(file) => assert!(found.insert(fstat(&file).unwrap().st_ino)),
                Step::TooDeep(_) | Step::Unreachable(_) => unreachable += 1,
            }
        }
        (found, unreachable)
    }

    // Threat model: M119
    #[test]
    fn a_walk_finds_each_file_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        for file in ["x", "a/y", "a/b/c/z"] {
            fs::write(root.join(file), "").unwrap();
        }
        symlink("/", root.join("a/link")).unwrap();
        let paths = ["", "a", "a/b", "a/b/c", "x", "a/y", "a/b/c/z", "a/link"];
        let inode = |path| fs::symlink_metadata(root.join(path)).unwrap().ino();
        assert_eq!(inodes(root), (paths.map(inode).into(), 0));
    }

    #[test]
    fn directories_are_walked_to_the_deepest_and_not_below() {
        let folder = tempfile::tempdir().unwrap();
        let deepest = vec!["d"; DEEPEST].join("/");
        fs::create_dir_all(folder.path().join(&deepest)).unwrap();
        fs::write(folder.path().join(&deepest).join("file"), "").unwrap();
        // The root, the directories and the file.
        let (found, unreachable) = inodes(folder.path());
        assert_eq!((found.len(), unreachable), (DEEPEST + 2, 0));
        fs::create_dir_all(folder.path().join(&deepest).join("d/d")).unwrap();
        let (found, unreachable) = inodes(folder.path());
        assert_eq!((found.len(), unreachable), (DEEPEST + 2, 1));
    }
}
