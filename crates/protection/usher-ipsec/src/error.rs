//! Errors of this crate.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use usher_bpf::KernelError;
use usher_protection::ProgramName;

/// Why protection could not be put in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpsecError {
    /// BPF, or another system call.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The mask of marks cannot be used.
    #[error(
        "the mask {0:#010x} for socket marks is not one run of at least five bits; the default is \
         0xfff00000"
    )]
    Mask(u32),
    /// More applications with rules of their own than the mask can tell apart.
    #[error(
        "the policy has {asked} applications with different rules for datagrams, and the mask \
         {mask:#010x} for socket marks has room for {room}; choose a wider mask"
    )]
    Signatures {
        /// The number of different rules.
        asked: usize,
        /// The number that the mask holds.
        room: u16,
        /// The mask.
        mask: u32,
    },
    /// Two blocks claim one executable.
    #[error(
        "{one} and {other}, of two `application` blocks, are the same executable, links followed; \
         name it in one block only, or give each block a file of its own"
    )]
    TwoBlocks {
        /// A program, as the policy names it.
        one: ProgramName,
        /// The other block's.
        other: ProgramName,
    },
    /// A list of items is longer than the SPD has priorities for.
    #[error("a protection has {asked} items; at most {room} are possible")]
    Items {
        /// The number of items.
        asked: usize,
        /// The limit.
        room: usize,
    },
    /// The kernel refused a change or a list of the SPD.
    #[error("{what}: {error}")]
    Netlink {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel answered with something else than it was asked for.
    #[error("{what}: the kernel's answer cannot be read: {reason}")]
    Answer {
        /// What was attempted.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// A sysctl cannot be read or written.
    #[error("{path}: {error}", path = .path.display())]
    Sysctl {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel does not accept the program that lists sockets.
    #[error(
        "this kernel cannot list sockets, so those that are older than the policy are not governed: \
         {0}"
    )]
    Unlisted(String),
    /// A peer is to be held to a class, and there is no room for it.
    #[error("there is no room to hold {0} to its protection; it is not held")]
    HeldFull(IpAddr),
}

impl IpsecError {
    pub(crate) fn netlink(what: &'static str) -> impl Fn(io::Error) -> Self + Copy {
        move |error| Self::Netlink { what, error }
    }
}
