//! The keeper's side of the ownership programs (bpf/authentication/ownership, bpf/guard): LSM
//! programs that enforce Usher's guarantees against every process of the host.
//!
//! - The fence: a process of a service can become only the user it was granted, and only once.
//! - Connection ownership: only a user's own processes use the user's connections.
//! - The guard: only the daemon that owns a BPF object of Usher may touch it.
//!
//! Kernels that refuse LSM programs do everything else: [`OwnershipError::NotSupported`]. Pinned
//! programs stay in force while no keeper runs.

mod guard;
mod programs;
mod types;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

use usher_bpf::{Counters, Objects, Pins, Table};

use crate::KernelError;
use crate::shared::key;
use crate::shared::ownership::{Identity as Grant, Owner, Settled};
use guard::Tables;
pub(crate) use programs::{load_lsm_program, try_load};
pub use types::{Identity, MAX_GROUPS, OwnershipError, ProcessState, Reason, Refusals};

/// Number of accounts that the table of the fence can hold.
const ACCOUNTS: usize = 1024;

/// The ownership programs in force, and their tables.
///
/// Dropping it leaves them in force. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Ownership {
    accounts: Table<u32, u8>,
    grants: Table<u32, Grant>,
    /// The present keeper's number.
    keeper: u32,
    settled: Table<u32, Settled>,
    owners: Table<u32, Owner>,
    obstacles: Table<u32, u32>,
    refusals: Counters<u64>,
    guard: Tables,
    _pins: Pins,
}

impl Ownership {
    /// Loads the programs and puts them in force for the whole host, or adopts the tables that an
    /// earlier keeper pinned in `pins`. That is a folder of a bpffs, made if it is missing; its
    /// parent must exist. Programs in force are replaced one by one, and each new one is in force
    /// before the old one is released.
    ///
    /// # Errors
    /// [`OwnershipError::NotSupported`] when this kernel accepts no LSM programs: nothing is in
    /// force then. [`KernelError::InUse`] while another `Ownership` holds `pins`;
    /// [`KernelError::Guarded`] and [`KernelError::OtherLayout`] when they cannot be adopted.
    /// Otherwise the kernel's error: what was pinned by then stays in force, and the next call
    /// adopts it.
    pub fn open(pins: &Path) -> Result<Self, OwnershipError> {
        load_lsm_program().map_err(OwnershipError::NotSupported)?;
        let pins = Pins::lock(pins)?;
        let [fence, connection, objects, _daemons] = programs::open_programs(&pins)?;
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
            guard: Tables::open(&objects)?,
            _pins: pins,
        })
    }

    /// Puts these accounts under the fence, all or none. They stay there until the next boot:
    /// removing an account would free its running processes.
    ///
    /// # Errors
    /// [`OwnershipError::Root`] and [`OwnershipError::TooManyAccounts`], before anything has
    /// changed; otherwise the kernel's error.
    pub fn fence_accounts(&self, uids: &[u32]) -> Result<(), OwnershipError> {
        if uids.contains(&0) {
            return Err(OwnershipError::Root);
        }
        let mut all: BTreeSet<u32> = uids.iter().copied().collect();
        all.extend(self.accounts.entries()?.into_iter().map(|(uid, _)| uid));
        if all.len() > ACCOUNTS {
            return Err(OwnershipError::TooManyAccounts(all.len()));
        }
        for uid in uids {
            self.accounts.set(uid, &1)?;
        }
        Ok(())
    }

    /// Lets a process (a descriptor of pidfd_open(2)) become exactly `identity`, once. Replaces an
    /// earlier unused grant. The process must belong to a fenced account and have CAP_SETUID and
    /// CAP_SETGID: the fence does not hold any other, and the grant means nothing to it. An unused
    /// grant is void once a later `Ownership` is opened.
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
        // A process that settles after this check makes no use of the grant written next.
        if let Some(settled) = self.settled.get(&key(process))? {
            return Err(OwnershipError::AlreadySettled(settled.uid));
        }
        Ok(self.grants.set(&key(process), &grant)?)
    }

    /// Takes a grant back. Does nothing if there is none, or if the process has used it.
    ///
    /// # Errors
    /// The kernel's error; the grant stands then.
    pub fn withdraw(&self, process: BorrowedFd<'_>) -> Result<(), KernelError> {
        self.grants.remove(&key(process)).map(drop)
    }

    /// The reason why the process was last refused its user; none if the process was not refused since the
    /// last call, or is gone.
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

    /// The state of a process.
    pub fn state(&self, process: BorrowedFd<'_>) -> Result<ProcessState, KernelError> {
        // Read in this order: a process that settles between the two reads had its grant before.
        let granted = self.grants.get(&key(process))?;
        let settled = self.settled.get(&key(process))?;
        Ok(match (settled, granted) {
            (Some(settled), _) => ProcessState::Settled(settled.uid),
            (None, Some(granted)) if granted.keeper == self.keeper => {
                ProcessState::Granted(granted.uid)
            }
            (None, _) => ProcessState::None,
        })
    }

    /// Gives a listening socket to a user: only that user's processes may use the connections made
    /// from then on. Call it once the socket listens (until then it counts as a connection, which
    /// root may not touch), and before it is handed out or entered as a queue.
    ///
    /// # Errors
    /// The kernel's error; the socket must not be handed out then.
    pub fn own_listener(&self, listener: BorrowedFd<'_>, uid: u32) -> Result<(), KernelError> {
        self.owners.set(&key(listener), &Owner { uid })
    }

    /// Guards everything pinned in `directory` and its subfolders, the folders themselves, and
    /// these objects, which have no pins. Marks the calling process as a daemon. From then
    /// on only this process and others of its program (the file at the path of /proc/self/exe, in
    /// this mount, mount namespace and root, executed securely, and started by PID 1 if this one
    /// was) may touch them, and no process may trace a daemon. Another call updates the list. The
    /// process must have one thread at the first call; one that is already a daemon may have more.
    ///
    /// # Errors
    /// [`OwnershipError::SeveralThreads`], [`OwnershipError::LongPath`],
    /// [`OwnershipError::OpenProgram`]: nothing has changed. Otherwise the kernel's error: a part
    /// may be guarded.
    pub fn guard(&self, directory: &Path, unpinned: &Objects) -> Result<(), OwnershipError> {
        self.guard.guard(directory, unpinned)
    }

    /// The programs' refusals since the tables were made.
    pub fn refusals(&self) -> Result<Refusals, KernelError> {
        let counts = (0..).take(Reason::ALL.len());
        let counts: Result<_, _> = counts.map(|reason| self.refusals.read_at(reason)).collect();
        Ok(Refusals { counts: counts? })
    }
}
