//! The keeper's hold on the ownership programs (bpf/authentication/ownership, bpf/guard): LSM programs that make Usher's
//! guarantees hold against every process of the host.
//!
//! - The fence: a process of a service becomes the user it was granted and nobody else, once.
//! - Connection ownership: a user's connections are used by that user's processes only.
//! - Self-protection: Usher's BPF objects are touched by the daemon that owns them only.
//!
//! Kernels that refuse LSM programs do everything else: [`OwnershipError::NotSupported`]. What is
//! pinned stays in force while no keeper is there.

mod programs;
mod protection;
mod types;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

use usher_bpf::{Counters, Pins, Table};

use crate::KernelError;
use crate::shared::ownership::{Identity as Grant, Owner, Settled};
use programs::Programs;
pub(crate) use programs::try_load;
use protection::{Tables, key};
pub use types::{Identity, MAX_GROUPS, OwnershipError, ProcessState, Reason, Refusals};

/// Accounts that the table of the fence holds.
const ACCOUNTS: usize = 1024;

/// The ownership programs in force, and their tables.
///
/// Dropping it leaves them in force. All methods may be called from several threads at once.
pub struct Ownership {
    accounts: Table<u32, u8>,
    grants: Table<u32, Grant>,
    /// The present keeper's number.
    keeper: u32,
    settled: Table<u32, Settled>,
    owners: Table<u32, Owner>,
    obstacles: Table<u32, u32>,
    refusals: Counters<u64>,
    protection: Tables,
    _pins: Pins,
}

impl std::fmt::Debug for Ownership {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Ownership").finish_non_exhaustive()
    }
}

impl Ownership {
    /// Loads the programs and puts them in force for the whole host, or adopts the tables that an
    /// earlier keeper pinned in `pins`, a folder of a bpffs that is made if need be (its parent has
    /// to be there). Programs in force are replaced one by one, the new one before the old one
    /// goes.
    ///
    /// # Errors
    /// [`OwnershipError::NotSupported`] when this kernel takes no LSM programs: nothing is in
    /// force then. [`KernelError::InUse`] while another `Ownership` holds `pins`;
    /// [`KernelError::Protected`] and [`KernelError::OtherLayout`] when they cannot be
    /// adopted. Otherwise what the kernel says: what was pinned by then stays in force and is
    /// adopted the next time.
    pub fn open(pins: &Path) -> Result<Self, OwnershipError> {
        crate::probe::load_lsm_program()
            .map_err(|reason| OwnershipError::NotSupported { reason })?;
        let pins = Pins::lock(pins)?;
        let Programs {
            fence,
            connection,
            protection,
        } = Programs::open(&pins)?;
        let keepers: Table<u32, u32> = fence.table("keeper")?;
        let keeper = keepers.get(&0)?.unwrap_or(0).wrapping_add(1);
        keepers.set(&0, &keeper)?;
        Ok(Self {
            keeper,
            accounts: fence.table("fenced_accounts")?,
            grants: fence.table("grants")?,
            settled: fence.table("settled")?,
            obstacles: fence.table("obstacles")?,
            refusals: fence.counters("refusals")?,
            owners: connection.table("connection_owner")?,
            protection: Tables::open(&protection)?,
            _pins: pins,
        })
    }

    /// Puts these accounts under the fence, all or none. They stay there until the next boot: to
    /// take one out would free the processes that run.
    ///
    /// # Errors
    /// [`OwnershipError::Root`] and [`OwnershipError::TooManyAccounts`], before anything has
    /// changed; otherwise what the kernel says.
    pub fn fence_accounts(&self, uids: &[u32]) -> Result<(), OwnershipError> {
        if uids.contains(&0) {
            return Err(OwnershipError::Root);
        }
        let mut all: BTreeSet<u32> = uids.iter().copied().collect();
        all.extend(self.accounts.entries()?.into_iter().map(|(uid, _)| uid));
        if all.len() > ACCOUNTS {
            return Err(OwnershipError::TooManyAccounts { asked: all.len() });
        }
        for uid in uids {
            self.accounts.set(uid, &1)?;
        }
        Ok(())
    }

    /// Lets a process (a descriptor of pidfd_open(2)) become exactly `identity`, once, in the place
    /// of an earlier grant that it has not used. It has to be of a fenced account, with
    /// CAP_SETUID and CAP_SETGID: any other is not held by the fence, and gains nothing by it.
    /// An unused grant counts for nothing from the moment that a later `Ownership` is opened.
    ///
    /// # Errors
    /// [`OwnershipError::AlreadySettled`], [`OwnershipError::TooManyGroups`],
    /// [`OwnershipError::Root`]; `ENOENT` when the process is gone. Nothing is granted then.
    pub fn grant(
        &self,
        process: BorrowedFd<'_>,
        identity: &Identity,
    ) -> Result<(), OwnershipError> {
        let grant = Grant::new(identity, self.keeper)?;
        // A process that settles now makes no use of what is written next.
        if let Some(settled) = self.settled.get(&key(process))? {
            return Err(OwnershipError::AlreadySettled { uid: settled.uid });
        }
        Ok(self.grants.set(&key(process), &grant)?)
    }

    /// Takes a grant back. Nothing happens when there is none, or the process has used it.
    ///
    /// # Errors
    /// What the kernel says; the grant stands then.
    pub fn withdraw(&self, process: BorrowedFd<'_>) -> Result<(), KernelError> {
        self.grants.remove(&key(process)).map(drop)
    }

    /// Why the process was not let become its user the last time; none when it was not refused
    /// since the last call, or is gone.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take_obstacle(&self, process: BorrowedFd<'_>) -> Result<Option<Reason>, KernelError> {
        let Some(number) = self.obstacles.get(&key(process))? else {
            return Ok(None);
        };
        self.obstacles.remove(&key(process))?;
        let known = usize::try_from(number)
            .ok()
            .and_then(|at| Reason::ALL.get(at));
        Ok(known.map(|(reason, _)| *reason))
    }

    /// How far the process has come.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn state(&self, process: BorrowedFd<'_>) -> Result<ProcessState, KernelError> {
        // Read in this order: a process that settles between the two was granted before.
        let granted = self.grants.get(&key(process))?;
        let settled = self.settled.get(&key(process))?;
        Ok(match (settled, granted) {
            (Some(settled), _) => ProcessState::Settled { uid: settled.uid },
            (None, Some(granted)) if granted.keeper == self.keeper => {
                ProcessState::Granted { uid: granted.uid }
            }
            (None, _) => ProcessState::None,
        })
    }

    /// Gives a listening socket to a user: its connections are used by that user's processes only,
    /// from the first on that is made after this. To be called when the socket listens (one that
    /// does not counts as a connection, which root may not touch), and before it is handed out or
    /// entered as a queue.
    ///
    /// # Errors
    /// What the kernel says; the socket is not to be handed out then.
    pub fn own_listener(&self, listener: BorrowedFd<'_>, uid: u32) -> Result<(), KernelError> {
        self.owners.set(&key(listener), &Owner { uid })
    }

    /// Protects everything that is pinned in `directory` and the folders below it, the folders
    /// themselves, and these programs, which no pin names (ids); and marks the calling process as
    /// a daemon. From then on only it and other processes of its program (the file at the path of
    /// /proc/self/exe, in this mount, mount namespace and root, executed securely, and started by
    /// PID 1 if this one was) touch them, and nobody traces a daemon. Calling it again brings the
    /// list up to date. The first call is made while the process has one thread; what is a daemon
    /// already may have more.
    ///
    /// # Errors
    /// [`OwnershipError::SeveralThreads`], [`OwnershipError::LongPath`],
    /// [`OwnershipError::OpenProgram`]: nothing has changed. Otherwise what the kernel says: a part
    /// may be protected.
    pub fn protect(
        &self,
        directory: &Path,
        unpinned_programs: &[u32],
    ) -> Result<(), OwnershipError> {
        self.protection.protect(directory, unpinned_programs)
    }

    /// What the programs have refused since the tables were made.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refusals(&self) -> Result<Refusals, KernelError> {
        let counts = (0..).take(Reason::ALL.len());
        let counts: Result<_, _> = counts.map(|reason| self.refusals.read_at(reason)).collect();
        Ok(Refusals { counts: counts? })
    }
}
