//! What a system call refused.

use std::io;
use std::path::{Path, PathBuf};

/// What a system call refused, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// A system call failed.
    #[error("{what}: {error}")]
    Call {
        /// What was attempted.
        what: &'static str,
        /// What the kernel says.
        error: io::Error,
    },
    /// A file of a kernel file system.
    #[error("{what} {path}: {error}")]
    File {
        /// What was attempted.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// There is no cgroup v2 hierarchy.
    #[error("no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none /sys/fs/cgroup")]
    NoCgroup,
    /// Landlock.
    #[error("Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// seccomp.
    #[error("seccomp: {0}")]
    Seccomp(String),
    /// A privilege that should be gone is still there; the process must not go on.
    #[error("a privilege that was given up is still there")]
    StillPrivileged,
    /// The kernel's answer over netlink is not understood.
    #[error("the kernel's answer over netlink is not understood")]
    Netlink,
}

impl SystemError {
    /// Names the system call that failed.
    pub fn call<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self + Copy {
        move |error| Self::Call {
            what,
            error: error.into(),
        }
    }

    /// Names the file, and what was attempted with it.
    pub fn file<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> Self {
        move |error| Self::File {
            what,
            path: path.into(),
            error: error.into(),
        }
    }
}
