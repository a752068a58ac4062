//! A daemon's messages to the guard (bpf/guard): its roles and its objects. It sends them in place
//! of a link's id.

use std::collections::BTreeSet;
use std::io;

use usher_system::SystemError;

use crate::{KernelError, Objects};

mod shared {
    #![allow(dead_code, reason = "the keeper and the programs use the rest")]
    include!(concat!(env!("OUT_DIR"), "/usher_guard.rs"));
}
use shared::{
    CLAIM_LINK, KEEPER, OBJECT_FOLDER, OBJECT_LINK, OBJECT_MAP, OBJECT_PROGRAM, ROLES_LINK,
    ROLL_CALL_ANSWER, ROLL_CALL_LINK, SIGNER, SWEEP_LINK,
};

/// A role that owns objects in the kernel. A daemon may touch only the objects of its roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Admission, ownership, destinations, the guard itself.
    Keeper,
    /// Tickets and gates.
    Signer,
}

impl Role {
    const fn bit(self) -> u32 {
        match self {
            Self::Keeper => KEEPER,
            Self::Signer => SIGNER,
        }
    }
}

/// Declares the roles of this process, once and for all; an empty list is valid. Call it first,
/// while the process has one thread: any other thread could make a different declaration.
///
/// Returns false if no guard runs here, or if it refuses the declaration: the process is not a
/// daemon, may not have these roles, or has declared before. It then has no role.
///
/// # Errors
/// The kernel's error.
pub fn declare(roles: &[Role]) -> Result<bool, KernelError> {
    let roles = roles.iter().fold(0, |all, role| all | role.bit());
    unless_not_permitted(ask(ROLES_LINK | roles))
}

/// Programs answer before the kernel checks for a capability. If the kernel's check fails, no
/// programs run.
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

/// Claims these objects for this daemon, and forgets the objects that an earlier process of its
/// role claimed and that are not among them. Call it as root. The keeper enters its objects itself.
///
/// Returns false if no guard runs here.
///
/// # Errors
/// [`KernelError::NotOwned`] when it refuses one of the objects, or the kernel's error. The
/// objects before it are claimed then.
pub fn claim(objects: &Objects) -> Result<bool, KernelError> {
    if !unless_not_permitted(ask(ROLL_CALL_LINK))? {
        return Ok(false);
    }
    // BPF file systems have 32-bit inode numbers.
    let folders = objects
        .folders
        .iter()
        .map(|(inode, _)| u32::try_from(*inode));
    let folders: Result<BTreeSet<u32>, _> = folders.collect();
    for (kind, ids) in [
        (OBJECT_FOLDER, &folders.map_err(|_| KernelError::NotOwned)?),
        (OBJECT_MAP, &objects.maps),
        (OBJECT_PROGRAM, &objects.programs),
        (OBJECT_LINK, &objects.links),
    ] {
        for id in ids {
            if !ask_about(CLAIM_LINK, *id, kind)? {
                return Err(KernelError::NotOwned);
            }
        }
    }
    ask(SWEEP_LINK)
}

/// Asks the programs a question. The answer is no if there are none, or if bpf is not among the
/// LSMs in force.
///
/// # Errors
/// Any other kernel error.
pub fn ask(question: u32) -> Result<bool, KernelError> {
    ask_about(question, 0, 0)
}

fn ask_about(question: u32, id: u32, kind: u32) -> Result<bool, KernelError> {
    const LINK_GET_FD_BY_ID: libc::c_int = 30;
    let attributes = [question, id, kind];
    // SAFETY: the attributes live until the call returns and have the given size. No link has one
    // of these ids, and the call makes no descriptor.
    let code = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            LINK_GET_FD_BY_ID,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if code >= 0 {
        return Ok(false);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // EUCLEAN, which bpf(2) itself never returns.
        Some(errno) if errno == ROLL_CALL_ANSWER as i32 => Ok(true),
        // EINVAL: no program has answered, and the kernel rejects the second id.
        Some(libc::ENOENT | libc::EINVAL) => Ok(false),
        _ => Err(KernelError::system("asking the programs for an answer")(
            error,
        )),
    }
}
