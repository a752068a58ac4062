//! What the kernel refused.

use std::io;
use std::path::{Path, PathBuf};

use usher_proto::ConnectionTuple;
use usher_system::SystemError;

/// What the kernel refused, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A system call.
    #[error(transparent)]
    System(#[from] SystemError),
    /// BPF.
    #[error("{what}: {error}; `usher doctor` says what this kernel can do")]
    Bpf {
        /// What was attempted.
        what: &'static str,
        /// What libbpf says.
        error: libbpf_rs::Error,
    },
    /// There is no BPF file system where the pins should be.
    #[error("{0} is not on a BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf")]
    NoBpfFileSystem(PathBuf),
    /// Pinned tables of an earlier keeper have another layout.
    #[error(
        "the tables pinned at {pins} have layout {found}, this version uses layout {expected}; \
         to make new ones, which ends all sessions: reboot; where this kernel runs no LSM programs \
         it is enough to stop usher-keeper, remove {pins}, and start it"
    )]
    OtherLayout {
        /// Where the pins are.
        pins: PathBuf,
        /// The layout found.
        found: u32,
        /// The layout of this version.
        expected: u32,
    },
    /// A pinned table of an earlier keeper has another size than asked for.
    #[error(
        "the table {table} pinned at {pins} has room for {found} entries, not for {asked}; ask for \
         {found}, or make a new one, which ends all sessions: reboot; where this kernel runs no \
         LSM programs it is enough to stop usher-keeper, remove {pins}, and start it"
    )]
    OtherLimit {
        /// Where the pins are.
        pins: PathBuf,
        /// The table.
        table: &'static str,
        /// Its size.
        found: u32,
        /// The size asked for.
        asked: u32,
    },
    /// The pins are in force in another network namespace.
    #[error(
        "the programs pinned at {pins} serve another network namespace; each needs pins of its own"
    )]
    OtherNamespace {
        /// Where the pins are.
        pins: PathBuf,
    },
    /// The pins belong to ownership programs that do not take this process for a daemon of Usher's.
    #[error(
        "{pins} is protected from this process: it is open to the first keeper's program only, at \
         its path, in its mount namespace, and started by the service manager if that one was; \
         start usherd that way, or reboot"
    )]
    Protected {
        /// Where the pins are.
        pins: PathBuf,
    },
    /// Another keeper works on these pins.
    #[error("another keeper holds {pins}")]
    InUse {
        /// Where the pins are.
        pins: PathBuf,
    },
    /// A table holds bytes that this version never wrote.
    #[error("the table {table} holds an entry that cannot be read")]
    UnreadableEntry {
        /// The table.
        table: &'static str,
    },
    /// A part of our own BPF object is missing.
    #[error("the BPF programs have no part named {0}")]
    MissingPart(&'static str),
    /// A connection with an end that no socket has: an unspecified address, port 0.
    #[error("{0} is no connection")]
    NoConnection(ConnectionTuple),
    /// More addresses of client hosts than the table holds.
    #[error("more than 65536 addresses of hosts: connections from the others are announced")]
    TooManyClientAddresses,
}

impl KernelError {
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Self + Copy {
        move |error| SystemError::call(what)(error).into()
    }

    pub(crate) fn errno(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self + Copy {
        move |error| SystemError::call(what)(error).into()
    }

    pub(crate) fn file(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        let failed = SystemError::file(what, path);
        move |error| failed(error).into()
    }

    pub(crate) fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |error| Self::Bpf { what, error }
    }
}
