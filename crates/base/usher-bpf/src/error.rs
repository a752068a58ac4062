//! Errors of the BPF toolkit.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};

use usher_system::SystemError;

/// A refusal of the kernel, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// An operation of libbpf failed.
    #[error("cannot {0}: {1}; `usher doctor` says what this kernel can do")]
    Bpf(&'static str, libbpf_rs::Error),
    /// An operation on a table.
    #[error("cannot {what} {table}: {error}")]
    Table {
        /// The attempted operation, as it stands behind "cannot": "look up in the table".
        what: &'static str,
        /// The table's name.
        table: &'static str,
        /// libbpf's error.
        error: libbpf_rs::Error,
    },
    /// There is no BPF file system where the pins should be.
    #[error("{0} is not on a BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf")]
    NoBpfFileSystem(PathBuf),
    /// Pinned tables of an earlier process have another layout.
    #[error(
        "the tables pinned at {pins} have layout {found}, this version uses layout {expected}; \
         reboot to make new ones; where this kernel runs no LSM programs it is enough to stop the \
         daemon, remove {pins}, and start it"
    )]
    OtherLayout {
        /// The folder of the pins.
        pins: PathBuf,
        /// The layout found.
        found: u32,
        /// The layout of this version.
        expected: u32,
    },
    /// A pinned table of an earlier process has another size than requested.
    #[error(
        "the table {table} pinned at {pins} has room for {found} entries, not for {asked}; ask for \
         {found}, or reboot to make a new one; where this kernel runs no LSM programs it is enough \
         to stop the daemon, remove {pins}, and start it"
    )]
    OtherLimit {
        /// The folder of the pins.
        pins: PathBuf,
        /// The table.
        table: &'static str,
        /// The table's size, in entries.
        found: u32,
        /// The size requested.
        asked: u32,
    },
    /// The pins are in force in another network namespace.
    #[error(
        "the programs pinned at {0} serve another network namespace; each needs pins of its own"
    )]
    OtherNamespace(PathBuf),
    /// The guard keeps this process from the pins.
    #[error(
        "the guard keeps this process from {0}: only its daemon may open it; start that daemon from \
         its path, in its mount namespace, and by the service manager if that started the first one; \
         or reboot"
    )]
    Guarded(PathBuf),
    /// Another process works on these pins.
    #[error("another process holds {0}: this daemon runs already; stop that one first")]
    InUse(PathBuf),
    /// A table has no room for a new entry.
    #[error("the table {0} is full")]
    Full(&'static str),
    /// A table holds bytes that this version never wrote.
    #[error("the table {0} holds an entry that cannot be read")]
    UnreadableEntry(&'static str),
    /// The guard does not recognize this daemon as the owner of an object.
    #[error(
        "the guard does not recognize this process as the owner of its objects, or has no room for \
         them; start the daemon after the keeper, from its path, by the service manager"
    )]
    NotOwned,
    /// A part of an object is missing or has an unexpected form.
    #[error("the BPF programs have no part named {0}")]
    MissingPart(&'static str),
}

impl KernelError {
    /// Returns whether the kernel had no memory left for this process.
    #[must_use]
    pub fn is_of_memory(&self) -> bool {
        match self {
            Self::System(SystemError::Call { error, .. } | SystemError::File { error, .. }) => {
                error.kind() == io::ErrorKind::OutOfMemory
            }
            Self::Bpf(_, error) | Self::Table { error, .. } => {
                error.kind() == libbpf_rs::ErrorKind::OutOfMemory
            }
            _ => false,
        }
    }

    /// Names the system call that failed, as it stands behind "cannot": "open a raw socket".
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self + Copy {
        move |error| SystemError::call(what)(error).into()
    }

    /// Names the file and the failed operation, as it stands behind "cannot": "remove".
    pub fn file<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> Self {
        let failed = SystemError::file(what, path);
        move |error| failed(error).into()
    }

    /// Names the failed libbpf operation, as it stands behind "cannot": "load programs".
    pub fn bpf(what: &'static str) -> impl Fn(libbpf_rs::Error) -> Self + Copy {
        move |error| Self::Bpf(what, error)
    }
}

/// The reason that this kernel cannot do something, in words: found by trying, for `usher doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack(String);

impl Lack {
    /// The reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl Display for Lack {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<E: Error> From<E> for Lack {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal() -> libbpf_rs::Error {
        libbpf_rs::Error::from_raw_os_error(1)
    }

    #[test]
    fn an_error_says_that_something_failed() {
        let errno = || io::Error::from_raw_os_error(1);
        let table = KernelError::Table {
            what: "look up in the table",
            table: "sessions",
            error: refusal(),
        };
        let refused = "Operation not permitted (os error 1)";
        for (error, begins) in [
            (table, "cannot look up in the table sessions: "),
            (
                KernelError::bpf("load programs")(refusal()),
                "cannot load programs: ",
            ),
            (
                KernelError::system("open a raw socket")(errno()),
                "cannot open a raw socket: ",
            ),
            (
                KernelError::file("remove", Path::new("/sys/fs/bpf/usher"))(errno()),
                "cannot remove /sys/fs/bpf/usher: ",
            ),
        ] {
            let text = error.to_string();
            assert!(text.starts_with(begins), "{text}");
            assert!(text[begins.len()..].starts_with(refused), "{text}");
        }
    }
}
