//! The kernel's fence around service accounts and connections (bpf/authentication/ownership), on
//! kernels that run LSM programs. On others, programs that Usher starts itself need no fence, and
//! the calls of services' own processes are refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use usher_bpf::Objects;
use usher_kernel::KernelError;
use usher_kernel::ownership::{
    Identity, Ownership, OwnershipError, ProcessState, Reason, Refusals,
};
use usher_local::paths;
use usher_proto::refusal::Refusal;

/// The fence, or the reason why there is none.
pub struct Fence {
    ownership: Result<Ownership, String>,
    /// The fence is missing around the account of a service.
    incomplete: AtomicBool,
    /// The keeper's objects without a pin, which the guard guards as well.
    unpinned: Objects,
}

impl Fence {
    /// Puts the fence up, or adopts an earlier keeper's, and guards the objects of both from all
    /// processes except Usher's daemons. Call it while the process has one thread. If the fence is
    /// not `wanted`, none is put up; an existing one is still adopted, because it holds until the
    /// next boot.
    ///
    /// # Errors
    /// When the kernel runs LSM programs and these failed anyway.
    pub fn open(unpinned: Objects, wanted: bool) -> Result<Self, OwnershipError> {
        let pins = Path::new(paths::OWNERSHIP_PIN_DIRECTORY);
        // If the check fails, adopting the fence reports the error.
        if !wanted && !pins.try_exists().unwrap_or(true) {
            let reason = "switched off by --without-ownership".to_owned();
            tracing::warn!(
                "ownership is {reason}: connections are not fenced, and services with an `account` \
                 are refused"
            );
            return Ok(Self::new(Err(reason), unpinned));
        }
        match Ownership::open(pins) {
            Ok(ownership) => {
                let fence = Self::new(Ok(ownership), unpinned);
                fence.guard_objects()?;
                Ok(fence)
            }
            Err(OwnershipError::NotSupported(reason)) => {
                tracing::warn!(
                    "no LSM programs on this kernel ({reason}): connections are not fenced, and \
                     services with an `account` are refused"
                );
                Ok(Self::new(Err(reason.to_string()), unpinned))
            }
            Err(error) => Err(error),
        }
    }

    fn new(ownership: Result<Ownership, String>, unpinned: Objects) -> Self {
        Self {
            ownership,
            incomplete: AtomicBool::new(false),
            unpinned,
        }
    }

    /// Guards the keeper's objects, pinned and unpinned, if the kernel runs LSM programs.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn guard_objects(&self) -> Result<(), OwnershipError> {
        match &self.ownership {
            Ok(ownership) => ownership.guard(Path::new(paths::PIN_DIRECTORY), &self.unpinned),
            Err(_) => Ok(()),
        }
    }

    /// The reason why there is no fence.
    pub fn missing(&self) -> Option<&str> {
        self.ownership.as_ref().err().map(String::as_str)
    }

    fn up(&self) -> Result<&Ownership, Refusal> {
        self.ownership.as_ref().map_err(|_| Refusal::NoFence)
    }

    /// Fences an account until the next boot: its processes can change their user only by a grant.
    ///
    /// # Errors
    /// [`Refusal::NoFence`]; [`Refusal::Overloaded`] when the kernel's table of accounts is full.
    pub fn enclose(&self, account: u32) -> Result<(), Refusal> {
        self.up()?.fence_accounts(&[account]).map_err(|error| {
            tracing::error!(%error, "cannot fence a service's account");
            Refusal::Overloaded
        })
    }

    /// Fences the account of a service. An account that is made later is fenced when one of its
    /// processes first makes a request. Returns whether it succeeded. The caller passes `false` on
    /// to [`Fence::set_incomplete`]; the log has the reason once, until the fence is complete
    /// again.
    pub fn enclose_service(&self, account: u32) -> bool {
        let Ok(ownership) = &self.ownership else {
            return true;
        };
        let enclosed = ownership.fence_accounts(&[account]);
        if let Err(error) = &enclosed
            && !self.is_incomplete()
        {
            tracing::error!(%error, account, "cannot fence a service's account: it is tried again");
        }
        enclosed.is_ok()
    }

    /// Records whether the fence is missing around an account of a service.
    pub fn set_incomplete(&self, incomplete: bool) {
        self.incomplete.store(incomplete, Ordering::Relaxed);
    }

    /// Whether an account of a service exists but could not be fenced.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// Makes a user's listener, and every connection accepted from it, the user's own.
    ///
    /// # Errors
    /// The kernel's error. Without a fence there is nothing to do.
    pub fn own_listener(&self, listener: BorrowedFd<'_>, uid: u32) -> Result<(), KernelError> {
        match &self.ownership {
            Ok(ownership) => ownership.own_listener(listener, uid),
            Err(_) => Ok(()),
        }
    }

    /// The state of a process.
    ///
    /// # Errors
    /// [`Refusal::NoFence`], [`Refusal::KeeperUnavailable`].
    pub fn state(&self, process: &OwnedFd) -> Result<ProcessState, Refusal> {
        self.up()?.state(process.as_fd()).map_err(failed)
    }

    /// Lets a process become a user, once.
    ///
    /// # Errors
    /// [`Refusal::NoFence`], [`Refusal::TooManyGroups`], [`Refusal::AlreadySettled`],
    /// [`Refusal::KeeperUnavailable`].
    pub fn grant(&self, process: &OwnedFd, identity: &Identity) -> Result<(), Refusal> {
        self.up()?
            .grant(process.as_fd(), identity)
            .map_err(|error| match error {
                OwnershipError::TooManyGroups { .. } => Refusal::TooManyGroups,
                OwnershipError::AlreadySettled { .. } => Refusal::AlreadySettled,
                error => failed(error),
            })
    }

    /// The reason why a process did not become its user, if the fence refused it.
    pub fn obstacle(&self, process: &OwnedFd) -> Option<&'static str> {
        let ownership = self.ownership.as_ref().ok()?;
        match ownership.take_obstacle(process.as_fd()) {
            Ok(reason) => reason.map(Reason::obstacle),
            Err(error) => {
                tracing::error!(%error, "cannot read why a process was refused");
                None
            }
        }
    }

    /// Takes an unused grant back.
    pub fn withdraw(&self, process: &OwnedFd) {
        if let Ok(ownership) = &self.ownership
            && let Err(error) = ownership.withdraw(process.as_fd())
        {
            // A process that has ended no longer has a grant.
            tracing::info!(%error, "cannot take a grant back");
        }
    }

    /// The fence's refusals; none if there is no fence.
    pub fn refusals(&self) -> Result<Option<Refusals>, KernelError> {
        self.ownership
            .as_ref()
            .ok()
            .map(Ownership::refusals)
            .transpose()
    }
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "cannot use the fence");
    Refusal::KeeperUnavailable
}
