//! Control groups (v2): where workers live, so that one write ends a worker and all it started.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::KernelError;

/// Where the v2 hierarchy is mounted: `/sys/fs/cgroup`, or elsewhere on hybrid machines.
///
/// # Errors
/// [`KernelError::NoCgroup`].
pub fn mount() -> Result<PathBuf, KernelError> {
    let mounts = read(Path::new("/proc/self/mounts"))?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(point))
        })
        .next()
        .ok_or(KernelError::NoCgroup)
}

/// The caller's own group.
///
/// # Errors
/// [`KernelError::NoCgroup`].
pub fn own() -> Result<PathBuf, KernelError> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or(KernelError::NoCgroup)?;
    Ok(mount()?.join(path))
}

/// A control group.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    directory: File,
}

impl Group {
    /// Makes the group `name` below `parent`, or takes the one that is there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(parent: &Path, name: &str) -> Result<Self, KernelError> {
        let path = parent.join(name);
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(KernelError::File {
                    what: "making the cgroup",
                    path,
                    error,
                });
            }
            _ => {}
        }
        let directory = File::open(&path).map_err(|error| KernelError::File {
            what: "opening the cgroup",
            path: path.clone(),
            error,
        })?;
        Ok(Self { path, directory })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling process (all its threads) here.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn move_self(&self) -> Result<(), KernelError> {
        self.write("cgroup.procs", "0")
    }

    /// Kills every process in the group, those they fork meanwhile included (5.14 on).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&self) -> Result<(), KernelError> {
        self.write("cgroup.kill", "1")
    }

    /// Whether a process lives in it or below.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn populated(&self) -> Result<bool, KernelError> {
        Ok(read(&self.path.join("cgroup.events"))?
            .lines()
            .any(|line| line == "populated 1"))
    }

    /// Its processes.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn pids(&self) -> Result<Vec<u32>, KernelError> {
        let text = read(&self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), KernelError> {
        let path = self.path.join(file);
        std::fs::write(&path, text).map_err(|error| KernelError::File {
            what: "writing",
            path,
            error,
        })
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn read(path: &Path) -> Result<String, KernelError> {
    let mut text = String::new();
    File::open(path)
        .and_then(|mut file| file.read_to_string(&mut text))
        .map_err(|error| KernelError::File {
            what: "reading",
            path: path.into(),
            error,
        })?;
    Ok(text)
}
