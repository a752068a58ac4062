//! Errors of the BPF toolkit.

use std::io;
use std::path::{Path, PathBuf};

use usher_system::SystemError;

/// A refusal of the kernel, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A system call.
    #[error(transparent)]
    System(#[from] SystemError),
    /// BPF.
    #[error("{0}: {1}; `usher doctor` says what this kernel can do")]
    Bpf(&'static str, libbpf_rs::Error),
    /// An operation on a table.
    #[error("{what} {table}: {error}")]
    Table {
        /// The attempted operation.
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
        /// Its size.
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
        "{0} is guarded against this process: it is open to the daemon that owns it only, whose \
         program is at its path, in its mount namespace, and started by the service manager if the \
         first one was; start the daemon that way, or reboot"
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
        "the guard does not take this process for the owner of its objects, or has no \
         room for them; start the daemon after the keeper, at its path, by the service manager"
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

    /// Names the system call that failed.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self + Copy {
        move |error| SystemError::call(what)(error).into()
    }

    /// Names the file and the failed operation.
    pub fn file<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> Self {
        let failed = SystemError::file(what, path);
        move |error| failed(error).into()
    }

    /// Names the failed libbpf operation.
    pub fn bpf(what: &'static str) -> impl Fn(libbpf_rs::Error) -> Self + Copy {
        move |error| Self::Bpf(what, error)
    }
}
