//! Errors of this crate.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use netlink_packet_core::DecodeError;
use usher_bpf::KernelError;
use usher_protection::ProgramName;

/// Protection could not be put in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpsecError {
    /// BPF, or another system call.
    #[error("{}{}", .0, remedy(.0.is_of_memory()))]
    Kernel(#[from] KernelError),
    /// Protection is in force with another mask of marks.
    #[error(
        "protection is in force with the mask {former:#010x} for socket marks, and the policy has \
         {asked:#010x}: marks of open sockets and of SAs would lose their meaning; apply a policy without \
         `application` blocks and `protection` first, or stop the protector and run `systemctl start \
         usher-release`, and then apply this one"
    )]
    MaskInForce {
        /// The mask in force.
        former: u32,
        /// The mask of the policy.
        asked: u32,
    },
    /// More applications with rules of their own than the mask can tell apart.
    #[error(
        "the policy has {asked} applications with different rules for datagrams, and the mask \
         {mask:#010x} for socket marks has room for {room}; choose a wider mask with the statement `marks`"
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
        "{one} and {other}, in two `application` blocks, lead to the same executable; name it in one \
         block only, or give each block a file of its own"
    )]
    TwoBlocks {
        /// A program, as the policy names it.
        one: ProgramName,
        /// The other block's program.
        other: ProgramName,
    },
    /// A block claims the executable of Usher's daemons. They hold copies of other programs' sockets,
    /// and the sockets of services that they have made serve other programs.
    #[error(
        "{0} leads to the executable of Usher's daemons, which no `application` block may name; take \
         the program out of this block, and write `protection encryption;` into the `service` \
         blocks of this host and the `client` blocks of the others"
    )]
    OfDaemons(ProgramName),
    /// A list of items is longer than the SPD has priorities for.
    #[error("a protection has {asked} items; at most {room} are possible")]
    Items {
        /// The number of items.
        asked: usize,
        /// The limit.
        room: usize,
    },
    /// The kernel refused a change or a list of the SPD.
    #[error("cannot {what}: {error}{}", remedy(is_of_memory(error)))]
    Netlink {
        /// The attempted change or question, as it stands behind "cannot": "list the SPD".
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel answered with something else than it was asked for.
    #[error("cannot {what}: the kernel's answer is malformed: {reason}")]
    Answer {
        /// The attempted change or question, as it stands behind "cannot": "list the SPD".
        what: &'static str,
        /// The reason.
        reason: DecodeError,
    },
    /// A sysctl cannot be read or written.
    #[error("cannot read or set the sysctl {path}: {error}", path = .path.display())]
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
    /// More services are to be reached or offered over protected connections than the programs know.
    #[error(
        "the policy protects connections with more services than the kernel's table has room for \
         (131,072 pairs of address and port); name fewer of them in `client` blocks, or fewer hosts"
    )]
    ServicesFull,
    /// A peer is to be held to a class, and there is no room for it.
    #[error(
        "there is no room to hold {0} to its protection; it is not held: write `mandatory` for peers \
         that must be protected, or let go of others by taking their `host` blocks out of the policy"
    )]
    HeldFull(IpAddr),
}

/// The kernel has no memory left for this process, or for a message.
fn is_of_memory(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let of_memory = [Errno::NOMEM, Errno::NOBUFS].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|number| of_memory.contains(&number))
}

fn remedy(is_of_memory: bool) -> &'static str {
    if is_of_memory {
        "; the former policy stays in force: name fewer networks, ports and programs in \
         `application` blocks, or give the protector more memory (`MemoryMax=` of \
         usher-protector.service)"
    } else {
        ""
    }
}

impl IpsecError {
    pub(crate) fn netlink(what: &'static str) -> impl Fn(io::Error) -> Self + Copy {
        move |error| Self::Netlink { what, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_memory_names_its_remedy() {
        let error = |number: i32| {
            let error = io::Error::from_raw_os_error(number);
            IpsecError::netlink("change the SPD")(error).to_string()
        };
        for number in [rustix::io::Errno::NOMEM, rustix::io::Errno::NOBUFS] {
            assert!(error(number.raw_os_error()).contains("MemoryMax="));
        }
        let other = error(rustix::io::Errno::PERM.raw_os_error());
        assert!(!other.contains("MemoryMax="), "{other}");
    }
}
