//! Errors of system calls.

use std::io;
use std::path::{Path, PathBuf};

/// A failed system call, with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// A system call failed.
    #[error("cannot {what}: {error}")]
    Call {
        /// The attempted operation, as it stands behind "cannot": "read capabilities".
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// An operation on a file of a kernel file system failed.
    #[error("cannot {what} {path}: {error}")]
    File {
        /// The attempted operation, as it stands behind "cannot": "read capabilities".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// There is no cgroup v2 hierarchy.
    #[error("no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none /sys/fs/cgroup")]
    NoCgroup,
    /// Landlock.
    #[error("cannot confine this process by Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// seccomp.
    #[error("cannot confine this process by seccomp: {0}")]
    Seccomp(seccompiler::Error),
    /// A privilege that should be gone is still there; the process must not continue.
    #[error("this process has given up a privilege and still has it, so it must not go on")]
    StillPrivileged,
    /// The kernel's answer over netlink is not understood.
    #[error("cannot understand the kernel's answer over netlink")]
    Netlink,
}

impl SystemError {
    /// Names the attempted operation, as it stands behind "cannot": "read capabilities".
    pub fn call<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self + Copy {
        move |error| Self::Call {
            what,
            error: error.into(),
        }
    }

    /// Names the file and the attempted operation, as it stands behind "cannot": "remove".
    pub fn file<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> Self {
        move |error| Self::File {
            what,
            path: path.into(),
            error: error.into(),
        }
    }
}
