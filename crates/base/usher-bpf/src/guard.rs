//! A daemon's messages to the guard (bpf/guard): its roles and its objects. A message takes the place of a
//! link's id in a call of bpf(2).

use std::collections::BTreeSet;

use usher_system::SystemError;

use crate::{KernelError, Objects};

mod shared {
    #![allow(dead_code, reason = "the keeper and the programs use the rest")]
    include!(concat!(env!("OUT_DIR"), "/usher_guard.rs"));
}
use shared::{
    CLAIM_LINK, DISCLAIM_LINK, KEEPER, LABELLER, OBJECT_FOLDER, OBJECT_LINK, OBJECT_MAP,
    OBJECT_PROGRAM, PROTECTOR, ROLES_LINK, ROLL_CALL_ANSWER, ROLL_CALL_LINK, SIGNER, SWEEP_LINK,
};

/// A role that owns objects in the kernel. A daemon may touch only the objects of its roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Admission, ownership, destinations, the guard itself.
    Keeper,
    /// Tickets and gates.
    Signer,
    /// The monitor of IPsec protection.
    Protector,
    /// The framework of mandatory access control, and its modules.
    Labeller,
}

impl Role {
    const fn bit(self) -> u32 {
        match self {
            Self::Keeper => KEEPER,
            Self::Signer => SIGNER,
            Self::Protector => PROTECTOR,
            Self::Labeller => LABELLER,
        }
    }
}

/// Declares the roles of this process, once and for all; an empty list is valid. Call it first,
/// while the process has one thread: any other thread could make a different declaration.
///
/// Returns false if no guard runs here, or if it refuses the declaration: the process is not a
/// daemon, may not have these roles, or has declared before. It then has no role.
pub fn declare(roles: &[Role]) -> Result<bool, KernelError> {
    let roles = roles.iter().fold(0, |all, role| all | role.bit());
    unless_not_permitted(ask_guard(ROLES_LINK | roles))
}

/// Whether a guard runs here. For the guard, a process that was executed before the guard was in force is no
/// daemon.
pub fn runs() -> Result<bool, KernelError> {
    unless_not_permitted(ask_guard(ROLL_CALL_LINK))
}

/// The guard's programs answer before the kernel checks for a capability. If the kernel's check fails, there
/// are no such programs.
fn unless_not_permitted(answer: Result<bool, KernelError>) -> Result<bool, KernelError> {
    match answer {
        Err(KernelError::System(SystemError::Call { error, .. }))
            if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) =>
        {
            Ok(false)
        }
        answer => answer,
    }
}

/// Claims these objects for this daemon. The guard forgets all other objects that an earlier process of the
/// daemon's role claimed. Call this as root. The keeper enters its objects itself.
///
/// Returns false if no guard runs here.
///
/// # Errors
/// [`KernelError::NotOwned`] when the guard refuses one of the objects, or the kernel's error. The objects
/// before that one are claimed then.
pub fn claim(objects: &Objects) -> Result<bool, KernelError> {
    if !runs()? {
        return Ok(false);
    }
    for (kind, id) in named(objects)? {
        if !ask_about(CLAIM_LINK, id, kind)? {
            return Err(KernelError::NotOwned);
        }
    }
    ask_guard(SWEEP_LINK)
}

/// Objects as the guard names them: kind, and id or inode.
fn named(objects: &Objects) -> Result<BTreeSet<(u32, u32)>, KernelError> {
    // BPF file systems have 32-bit inode numbers.
    let folders = objects.folders.iter();
    let folders =
        folders.map(|(inode, _)| u32::try_from(*inode).map(|inode| (OBJECT_FOLDER, inode)));
    let folders: Result<BTreeSet<_>, std::num::TryFromIntError> = folders.collect();
    let mut named = folders.map_err(|_| KernelError::NotOwned)?;
    for (kind, ids) in [
        (OBJECT_MAP, &objects.maps),
        (OBJECT_PROGRAM, &objects.programs),
        (OBJECT_LINK, &objects.links),
    ] {
        named.extend(ids.iter().map(|id| (kind, *id)));
    }
    Ok(named)
}

/// The claims of a daemon whose objects change while it runs.
#[derive(Debug, Default)]
pub struct Claims(BTreeSet<(u32, u32)>);

impl Claims {
    /// Claims these objects like [`claim`], and gives up this daemon's claims of all other objects: the guard
    /// has room for 512 of each kind.
    ///
    /// # Errors
    /// As [`claim`]; nothing is given up then.
    pub fn renew(&mut self, objects: &Objects) -> Result<bool, KernelError> {
        let fresh = named(objects)?;
        // Noted before the claim, which may fail when some objects are claimed already.
        self.0.extend(&fresh);
        if !claim(objects)? {
            self.0.clear();
            return Ok(false);
        }
        for (kind, id) in self.0.difference(&fresh) {
            // A guard of an earlier version answers no, and forgets the objects when the next process claims.
            ask_about(DISCLAIM_LINK, *id, *kind)?;
        }
        self.0 = fresh;
        Ok(true)
    }
}

/// Asks the guard's programs a question. The answer is no if there are no such programs, or if bpf is not
/// among the LSMs in force.
///
/// # Errors
/// Any other kernel error.
pub fn ask_guard(question: u32) -> Result<bool, KernelError> {
    ask_about(question, 0, 0)
}

fn ask_about(question: u32, id: u32, kind: u32) -> Result<bool, KernelError> {
    let Err(error) = usher_bpf_ffi::ask_for_link([question, id, kind]) else {
        return Ok(false);
    };
    match error.raw_os_error() {
        // EUCLEAN, which bpf(2) itself never returns.
        Some(errno) if errno == ROLL_CALL_ANSWER as i32 => Ok(true),
        // EINVAL: no program has answered, and the kernel rejects the second id.
        Some(libc::ENOENT | libc::EINVAL) => Ok(false),
        _ => Err(KernelError::system("ask the programs for an answer")(error)),
    }
}
