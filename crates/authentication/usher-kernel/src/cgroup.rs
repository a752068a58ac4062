//! Control groups (v2) of the workers, so that one write ends a worker and its children.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use usher_system::SystemError;
use usher_system::process::has_ended;

use crate::KernelError;
use crate::worker::Entry;

/// The mount point of the v2 hierarchy: `/sys/fs/cgroup`, or elsewhere on hybrid machines.
///
/// # Errors
/// [`SystemError::NoCgroup`].
pub fn mount() -> Result<PathBuf, KernelError> {
    let mounts = read_cgroup_file(Path::new("/proc/self/mounts"))?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| unescaped(point))
        })
        .next()
        .ok_or(SystemError::NoCgroup.into())
}

/// Whether the hierarchy of version 2 has a controller, which one of version 1 may have instead. Also true if
/// the hierarchy cannot be read.
pub fn has(controller: Controller) -> bool {
    match mount().and_then(|mount| read_cgroup_file(&mount.join("cgroup.controllers"))) {
        Ok(found) => found
            .split_whitespace()
            .any(|name| name == controller.names().0),
        Err(_) => true,
    }
}

/// The caller's own group.
///
/// # Errors
/// [`SystemError::NoCgroup`].
pub fn own() -> Result<PathBuf, KernelError> {
    cgroup_of(Path::new("/proc/self/cgroup"))
}

fn cgroup_of(process: &Path) -> Result<PathBuf, KernelError> {
    let groups = read_cgroup_file(process)?;
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or(SystemError::NoCgroup)?;
    Ok(mount()?.join(path))
}

/// Whether a group with this id (the inode of its folder) exists. Needs CAP_DAC_READ_SEARCH.
///
/// # Errors
/// When the kernel does not answer.
pub(crate) fn exists(id: u64) -> Result<bool, KernelError> {
    /// struct file_handle with the only form that kernfs has (FILEID_KERNFS; kernel 5.5).
    #[repr(C)]
    struct Handle {
        size: u32,
        kind: i32,
        id: u64,
    }
    let mut handle = Handle {
        size: 8,
        kind: 0xfe,
        id,
    };
    let path = mount()?;
    let failed = KernelError::file("look for groups in", &path);
    let mount = File::open(&path).map_err(&failed)?;
    // SAFETY: the handle lives until the call returns and has as many bytes as it says.
    let found = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut handle).cast(),
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    if found >= 0 {
        // SAFETY: a descriptor that the kernel has just made, with no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(found) });
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESTALE) => Ok(false),
        error => Err(failed(error)),
    }
}

/// The resources of a group that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// The number of processes and threads.
    Processes,
    /// Memory, in bytes.
    Memory,
    /// Processor time, in percent of one processor.
    Cpu,
}

impl Controller {
    /// The kernel's name and the policy's.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Processes => ("pids", "processes"),
            Self::Memory => ("memory", "memory"),
            Self::Cpu => ("cpu", "cpu"),
        }
    }
}

impl std::fmt::Display for Controller {
    /// The policy's name.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.names().1)
    }
}

/// A control group.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    is_new: bool,
    newborns_are_killed: AtomicBool,
}

impl Group {
    /// Makes the group `name` below `parent`, or uses the existing one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(parent: &Path, name: &str) -> Result<Self, KernelError> {
        let path = parent.join(name);
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Self {
                path,
                is_new: true,
                newborns_are_killed: AtomicBool::new(false),
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::open(&path),
            Err(error) => Err(KernelError::file("make the cgroup", &path)(error)),
        }
    }

    /// Uses an existing group.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(path: &Path) -> Result<Self, KernelError> {
        let group = Self {
            path: path.to_owned(),
            is_new: false,
            newborns_are_killed: AtomicBool::new(false),
        };
        group.directory()?;
        Ok(group)
    }

    /// Opens the group's folder, to make a process in it. The folder is not kept open, because there are as
    /// many groups as pairs of user and service.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn directory(&self) -> Result<File, KernelError> {
        File::open(&self.path).map_err(KernelError::file("open the cgroup", &self.path))
    }

    /// Whether this value has made the group: nothing of an earlier keeper is in it.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The group's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling process (all its threads) into the group.
    pub fn move_self(&self) -> Result<(), KernelError> {
        self.write("cgroup.procs", "0")
    }

    /// Moves another process (all its threads) into a group of its own below this one. `pidfd` identifies the
    /// process, because the number may pass to another process.
    ///
    /// # Errors
    /// When the kernel refuses; `ESRCH` when the process has ended.
    pub fn take_in(&self, pid: u32, pidfd: OwnedFd) -> Result<Guest, KernelError> {
        let guest = Guest {
            group: Self::create(&self.path, &format!("guest-{pid}"))?,
            former: cgroup_of(&PathBuf::from(format!("/proc/{pid}/cgroup")))?,
            pid,
            pidfd,
        };
        let moved = guest.alive().and_then(|()| guest.group.enter(pid));
        // If the process has ended meanwhile, another one with its number may have been moved.
        match moved.and_then(|()| guest.alive()) {
            Ok(()) => Ok(guest),
            Err(error) => {
                if guest.group.pids().is_ok_and(|pids| pids.contains(&pid)) {
                    write_cgroup_file(guest.former.join("cgroup.procs"), &pid.to_string())?;
                }
                guest.group.remove()?;
                Err(error)
            }
        }
    }

    /// Removes the groups of adopted processes that are gone.
    ///
    /// # Errors
    /// When the group cannot be read.
    pub fn sweep(&self) -> Result<(), KernelError> {
        for guest in self.paths_below()? {
            // A group that is not empty stays.
            let _ = std::fs::remove_dir(guest);
        }
        Ok(())
    }

    /// The groups directly below. In a user's group at a service, they are those of adopted processes.
    ///
    /// # Errors
    /// When the group cannot be read.
    pub fn below(&self) -> Result<Vec<Self>, KernelError> {
        let paths = self.paths_below()?;
        paths.iter().map(|path| Self::open(path)).collect()
    }

    /// The adopted process that the group was made for; none for other groups.
    #[must_use]
    pub fn guest_pid(&self) -> Option<u32> {
        self.name_after("guest-")?.parse().ok()
    }

    /// The rest of the group's name; none for a name that begins otherwise.
    #[must_use]
    pub fn name_after(&self, prefix: &str) -> Option<&str> {
        self.path.file_name()?.to_str()?.strip_prefix(prefix)
    }

    fn paths_below(&self) -> Result<Vec<PathBuf>, KernelError> {
        let reading = KernelError::file("list", &self.path);
        let mut below = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(&reading)? {
            let entry = entry.map_err(&reading)?;
            if entry.file_type().map_err(&reading)?.is_dir() {
                below.push(entry.path());
            }
        }
        Ok(below)
    }

    fn enter(&self, pid: u32) -> Result<(), KernelError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Enables a controller for the groups below, which can then limit with it. The group itself must
    /// have no process.
    ///
    /// # Errors
    /// When the kernel refuses, for instance because the controller belongs to a hierarchy of version 1.
    pub fn hand_down(&self, controller: Controller) -> Result<(), KernelError> {
        self.write(
            "cgroup.subtree_control",
            &format!("+{}", controller.names().0),
        )
    }

    /// Limits the processes in the group and below together, in the controller's unit; none means no
    /// limit. Processes over a new limit continue, and the next fork fails. Memory over a new limit is
    /// reclaimed, or a process is killed.
    ///
    /// # Errors
    /// When the kernel refuses, for instance because the group above does not enable the controller.
    pub fn limit(&self, controller: Controller, most: Option<u64>) -> Result<(), KernelError> {
        // Microseconds per tenth of a second.
        let (unit, period) = match controller {
            Controller::Cpu => (1000, " 100000"),
            Controller::Processes | Controller::Memory => (1, ""),
        };
        let amount = |most: u64| most.saturating_mul(unit).to_string();
        let amount = most.map_or("max".into(), amount);
        let file = format!("{}.max", controller.names().0);
        self.write(&file, &format!("{amount}{period}"))
    }

    /// Kills every process in the group, including newly forked ones (5.14 on).
    pub fn kill(&self) -> Result<(), KernelError> {
        self.write("cgroup.kill", "1")
    }

    /// The group's number, which no other group ever has.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn id(&self) -> Result<u64, KernelError> {
        let read = KernelError::file("read the properties of", &self.path);
        Ok(std::fs::metadata(&self.path).map_err(read)?.ino())
    }

    /// Removes the group, which must have no processes and no groups below.
    ///
    /// # Errors
    /// `EBUSY` if it has any; other errors of the kernel.
    pub fn remove(&self) -> Result<(), KernelError> {
        std::fs::remove_dir(&self.path).map_err(KernelError::file("remove the cgroup", &self.path))
    }

    /// Whether a process lives in the group or below it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn populated(&self) -> Result<bool, KernelError> {
        Ok(read_cgroup_file(&self.path.join("cgroup.events"))?
            .lines()
            .any(|line| line == "populated 1"))
    }

    /// The group's processes, without adopted ones.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn pids(&self) -> Result<Vec<u32>, KernelError> {
        let text = read_cgroup_file(&self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// How a process gets into the group. A process enters by itself if one that was made directly in the
    /// group was killed at once ([`Group::note_killed_newborn`]).
    #[must_use]
    pub fn entry(&self) -> Entry {
        if self.newborns_are_killed.load(Ordering::Relaxed) {
            Entry::Enters
        } else {
            Entry::Made
        }
    }

    /// Notes that a process made directly in the group (CLONE_INTO_CGROUP) was killed at once.
    pub fn note_killed_newborn(&self) {
        self.newborns_are_killed.store(true, Ordering::Relaxed);
    }

    fn write(&self, file: &str, text: &str) -> Result<(), KernelError> {
        write_cgroup_file(self.path.join(file), text)
    }
}

/// A process in a group of its own; see [`Group::take_in`].
#[derive(Debug)]
pub struct Guest {
    group: Group,
    /// The process's former group.
    former: PathBuf,
    pid: u32,
    pidfd: OwnedFd,
}

impl Guest {
    /// Moves the process back, if it still lives and `back` is set, and kills everything else in its
    /// group: its children.
    pub fn leave(self, back: bool) -> Result<(), KernelError> {
        if back && self.alive().is_ok() {
            write_cgroup_file(self.former.join("cgroup.procs"), &self.pid.to_string())?;
        }
        self.group.kill()?;
        // Killed processes leave their group in their own time: see `Group::sweep`.
        let _ = std::fs::remove_dir(self.group.path());
        Ok(())
    }

    fn alive(&self) -> Result<(), KernelError> {
        let error = match has_ended(self.pidfd.as_fd()) {
            Ok(false) => return Ok(()),
            Ok(true) => rustix::io::Errno::SRCH.into(),
            Err(error) => error,
        };
        Err(KernelError::file(
            "look after the process of",
            &self.group.path,
        )(error))
    }
}

/// Decodes a path of /proc/self/mounts, in which blanks and backslashes are three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = tail.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn write_cgroup_file(path: PathBuf, text: &str) -> Result<(), KernelError> {
    std::fs::write(&path, text).map_err(KernelError::file("write", &path))
}

fn read_cgroup_file(path: &Path) -> Result<String, KernelError> {
    std::fs::read_to_string(path).map_err(KernelError::file("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_unescaped() {
        for (text, path) in [
            ("/sys/fs/cgroup", "/sys/fs/cgroup"),
            ("/with\\040blank\\134", "/with blank\\"),
            ("/end\\04", "/end\\04"),
        ] {
            assert_eq!(unescaped(text), Path::new(path));
        }
    }
}
