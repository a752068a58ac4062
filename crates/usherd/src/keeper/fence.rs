//! The kernel's fence around service accounts and connections (bpf/ownership), where the kernel
//! runs LSM programs. Where it does not, the programs that Usher starts itself need none, and the
//! calls of services' own processes are refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use usher_kernel::KernelError;
use usher_kernel::admission::Admission;
use usher_kernel::ownership::{Identity, Ownership, OwnershipError, ProcessState, Refusals};
use usher_local::paths;
use usher_policy::{Policy, ServedBy};
use usher_proto::refusal::Refusal;

use super::accounts::Accounts;

/// The fence, or why there is none.
pub struct Fence(Result<Ownership, String>);

impl Fence {
    /// Puts the fence up, or takes up the one of an earlier keeper, and protects the objects of both
    /// from everybody but Usher's daemons. To be called while the process has one thread. Where it
    /// is not `wanted`, nothing is put up; one that is up already is taken up all the same, as it
    /// holds until the next boot.
    ///
    /// # Errors
    /// When the kernel runs LSM programs and these failed all the same.
    pub fn open(admission: &Admission, wanted: bool) -> Result<Self, OwnershipError> {
        let pins = Path::new(paths::OWNERSHIP_PIN_DIRECTORY);
        // Where nobody can tell, it is looked for, and the error is told there.
        if !wanted && !pins.try_exists().unwrap_or(true) {
            let reason = "switched off by --without-ownership".to_owned();
            tracing::warn!(
                "ownership is {reason}: connections are not fenced, and services with an `account` \
                 are refused"
            );
            return Ok(Self(Err(reason)));
        }
        match Ownership::open(pins) {
            Ok(ownership) => {
                let programs = admission.unpinned_programs()?;
                ownership.protect(Path::new(paths::PIN_DIRECTORY), &programs)?;
                Ok(Self(Ok(ownership)))
            }
            Err(OwnershipError::NotSupported { reason }) => {
                tracing::warn!(
                    "no LSM programs on this kernel ({reason}): connections are not fenced, and \
                     services with an `account` are refused"
                );
                Ok(Self(Err(reason)))
            }
            Err(error) => Err(error),
        }
    }

    /// Why there is no fence.
    pub fn missing(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }

    fn up(&self) -> Result<&Ownership, Refusal> {
        self.0.as_ref().map_err(|_| Refusal::NoFence)
    }

    /// Fences accounts, until the next boot: their processes change no user but by a grant.
    ///
    /// # Errors
    /// [`Refusal::NoFence`]; [`Refusal::Overloaded`] when the kernel's table of accounts is full.
    pub fn enclose(&self, accounts: &[u32]) -> Result<(), Refusal> {
        self.up()?.fence_accounts(accounts).map_err(|error| {
            tracing::error!(%error, "cannot fence a service's account");
            Refusal::Overloaded
        })
    }

    /// Fences the accounts that a policy names for services, as far as they exist; a process of one
    /// that comes later is fenced when it first asks for something.
    pub async fn enclose_accounts_of(&self, policy: &Policy, accounts: &Accounts) {
        if self.0.is_err() {
            return;
        }
        for service in policy.services.values() {
            let ServedBy::Account(account) = &service.served_by else {
                continue;
            };
            let found = accounts.by_name(account).await;
            let enclosed = found.and_then(|found| self.enclose(&[found.uid]));
            if let Err(refusal) = enclosed {
                tracing::warn!(service = %service.name, %account, reason = refusal.name(),
                    "a service's account is not fenced yet: {refusal}");
            }
        }
    }

    /// Makes a user's listener, and what is accepted from it, the user's own.
    ///
    /// # Errors
    /// What the kernel says. Without a fence there is nothing to do.
    pub fn own_listener(&self, listener: BorrowedFd<'_>, uid: u32) -> Result<(), KernelError> {
        match &self.0 {
            Ok(ownership) => ownership.own_listener(listener, uid),
            Err(_) => Ok(()),
        }
    }

    /// What a process has become.
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

    /// Takes an unused grant back.
    pub fn withdraw(&self, process: &OwnedFd) {
        if let Ok(ownership) = &self.0
            && let Err(error) = ownership.withdraw(process.as_fd())
        {
            // A process that has ended has none any more.
            tracing::info!(%error, "taking a grant back");
        }
    }

    /// What the fence has refused; nothing where there is none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refusals(&self) -> Result<Option<Refusals>, KernelError> {
        self.0.as_ref().ok().map(Ownership::refusals).transpose()
    }
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "the fence");
    Refusal::KeeperUnavailable
}
