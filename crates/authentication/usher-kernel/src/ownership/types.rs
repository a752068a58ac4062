//! The data that the keeper and the ownership programs exchange.

use std::path::PathBuf;

use usher_bpf::Lack;

use crate::KernelError;
pub use crate::shared::ownership::Reason;
use crate::shared::ownership::{GROUPS, Identity as Grant};

/// Limit of supplementary groups of an identity.
pub const MAX_GROUPS: usize = GROUPS as usize;

/// The identity that a process may take, in the numbers of the initial user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user: real, effective, saved and file system id.
    pub uid: u32,
    /// The group, likewise.
    pub gid: u32,
    /// Exactly the supplementary groups that setgroups(2) must set, in any order. A duplicate counts
    /// once here, but not in setgroups.
    pub groups: Vec<u32>,
}

impl Grant {
    /// The grant of an identity by the keeper with this number.
    pub(super) fn new(identity: &Identity, keeper: u32) -> Result<Self, OwnershipError> {
        if identity.uid == 0 {
            return Err(OwnershipError::Root);
        }
        let mut sorted = identity.groups.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let mut groups = [0; MAX_GROUPS];
        let (Some(room), Ok(group_count)) =
            (groups.get_mut(..sorted.len()), u32::try_from(sorted.len()))
        else {
            return Err(OwnershipError::TooManyGroups {
                uid: identity.uid,
                found: sorted.len(),
            });
        };
        room.copy_from_slice(&sorted);
        Ok(Self {
            keeper,
            uid: identity.uid,
            gid: identity.gid,
            group_count,
            groups,
        })
    }
}

/// A process's state on its way to a user's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Nothing was granted, or the process is gone.
    None,
    /// The process may become this user.
    Granted(u32),
    /// The process has become this user for good.
    Settled(u32),
}

/// Errors of ownership.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnershipError {
    /// This kernel does not run LSM programs, or lacks a needed feature. Everything except
    /// ownership works without them.
    #[error(
        "this kernel does not run the programs that enforce ownership: {0}; it needs BPF LSM \
         (CONFIG_BPF_LSM, BTF, bpf in the list lsm= of the kernel command line) and no lockdown for \
         confidentiality"
    )]
    NotSupported(Lack),
    /// Root cannot be fenced, and no process may become root.
    #[error("root can be neither a service's account nor a user of one; name another account")]
    Root,
    /// There are more accounts than the table can hold.
    #[error(
        "cannot fence another account: {0} service accounts are fenced, of at most 1024; let \
         services share accounts, and reboot"
    )]
    TooManyAccounts(usize),
    /// The user has more supplementary groups than a grant can hold.
    #[error(
        "user {uid} is in {found} supplementary groups, and a service's process can take over at \
         most {MAX_GROUPS}; take the user out of some, or let the keeper start the service"
    )]
    TooManyGroups {
        /// The user.
        uid: u32,
        /// The number of groups.
        found: usize,
    },
    /// The process has already become a user.
    #[error("the process has become user {0} already; each user's process starts afresh")]
    AlreadySettled(u32),
    /// The caller has several threads, but only one could be marked.
    #[error(
        "cannot put the guard in force: the process that does so must have one thread, so that all \
         later ones inherit its mark"
    )]
    SeveralThreads,
    /// The path of this program is too long for the table.
    #[error("the path of the daemon's program, {0}, has more than 255 bytes; install it elsewhere")]
    LongPath(PathBuf),
    /// An account other than root may write the program's file, and could so decide which process
    /// is a daemon.
    #[error(
        "{0} is the daemons' program, which root alone may write: chown root and chmod go-w, and \
         start the keeper again"
    )]
    OpenProgram(PathBuf),
    /// The programs do not recognize the caller as a keeper, although it has marked itself.
    #[error("the ownership programs in force are not this version's: reboot")]
    Unknown,
    /// Another error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The number of refusals since the tables were made, by reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    pub(super) counts: Vec<u64>,
}

impl Reason {
    /// The reason that a process cannot become its user, for the journal.
    #[must_use]
    pub fn obstacle(self) -> &'static str {
        match self {
            Self::IdentityThreads => "it has several threads",
            Self::IdentitySharedMemory => {
                "it shares its memory, open files or working directory with another process"
            }
            Self::IdentityTraced => "a tracer is attached to it",
            Self::IdentityWatchedCalls => {
                "a seccomp listener could answer its system calls (SECCOMP_FILTER_FLAG_NEW_LISTENER)"
            }
            Self::PerformanceEvents => {
                "a performance event samples it: end `perf` on this process, or sample the whole host"
            }
            Self::IdentityPinnedMemory => {
                "it has used an io_uring, or its pages were pinned (registered buffers, O_DIRECT, \
                 process_vm_readv): fork or execute before the user is taken"
            }
            _ => "the fence refused it",
        }
    }
}

impl Refusals {
    /// The count of this reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// Names and numbers, for views.
    #[must_use]
    pub fn named(&self) -> Vec<(String, u64)> {
        let named = Reason::ALL.map(|(reason, name)| (name.into(), self.of(reason)));
        named.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(groups: Vec<u32>) -> Identity {
        Identity {
            uid: 1000,
            gid: 100,
            groups,
        }
    }

    #[test]
    fn a_grant_has_its_groups_in_order_and_once() {
        let grant = Grant::new(&identity(vec![7, 5, 7]), 1).unwrap();
        assert_eq!(grant.group_count, 2);
        assert_eq!(grant.groups[..3], [5, 7, 0]);
    }

    #[test]
    fn a_grant_takes_128_groups_and_no_more() {
        let grant = Grant::new(&identity((1..=128).collect()), 1).unwrap();
        assert_eq!(grant.group_count, 128);
        assert!(matches!(
            Grant::new(&identity((1..=129).collect()), 1),
            Err(OwnershipError::TooManyGroups { found: 129, .. })
        ));
    }

    #[test]
    fn nobody_becomes_root() {
        let root = Identity {
            uid: 0,
            ..identity(vec![])
        };
        assert!(matches!(Grant::new(&root, 1), Err(OwnershipError::Root)));
    }
}
