//! What a daemon tells the protection programs (bpf/guard): which roles it has, and which objects are
//! its own. It asks them in the place of a link's id.

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

/// Who owns objects in the kernel. A daemon touches those of its roles only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Admission, ownership, destinations, the protection itself.
    Keeper,
    /// Tickets and guards.
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

/// Says which roles this process has, once and for all; none is an answer, too. To be called first of
/// all, while the process has one thread: a thread that exists already may say something else.
///
/// False: no protection programs run here, or they do not take this process for a daemon that may
/// have these roles and has not said so before. It then has none.
///
/// # Errors
/// What the kernel says.
pub fn declare(roles: &[Role]) -> Result<bool, KernelError> {
    let roles = roles.iter().fold(0, |all, role| all | role.bit());
    unless_not_permitted(ask(ROLES_LINK | roles))
}

/// Programs answer before the kernel asks for a capability: where it does, there are none.
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

/// Has these objects be this daemon's own, and forgets those that an earlier process of its role has
/// claimed and that are not among them. To be called as root. The keeper enters its objects itself.
///
/// False: no protection programs run here.
///
/// # Errors
/// [`KernelError::NotOwned`] when they do not take one of the objects for this daemon's; what else
/// the kernel says. Those before it are claimed then.
pub fn claim(objects: &Objects) -> Result<bool, KernelError> {
    if !unless_not_permitted(ask(ROLL_CALL_LINK))? {
        return Ok(false);
    }
    let mut folders = Vec::new();
    for (inode, _) in &objects.folders {
        // BPF file systems number them so.
        folders.push(u32::try_from(*inode).map_err(|_| KernelError::NotOwned)?);
    }
    for (kind, ids) in [
        (OBJECT_FOLDER, folders),
        (OBJECT_MAP, Vec::from_iter(objects.maps.iter().copied())),
        (
            OBJECT_PROGRAM,
            Vec::from_iter(objects.programs.iter().copied()),
        ),
        (OBJECT_LINK, Vec::from_iter(objects.links.iter().copied())),
    ] {
        for id in ids {
            if !ask_about(CLAIM_LINK, id, kind)? {
                return Err(KernelError::NotOwned);
            }
        }
    }
    ask(SWEEP_LINK)
}

/// Asks the programs something. Where there are none, or bpf is not among the LSMs in force, the
/// answer is no.
///
/// # Errors
/// What else the kernel says.
pub fn ask(question: u32) -> Result<bool, KernelError> {
    ask_about(question, 0, 0)
}

fn ask_about(question: u32, id: u32, kind: u32) -> Result<bool, KernelError> {
    const LINK_GET_FD_BY_ID: libc::c_int = 30;
    let attributes = [question, id, kind];
    // SAFETY: the attributes live until the call returns and have the size said. No link has one of
    // these ids, and the call makes no descriptor.
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
        // EUCLEAN, which the kernel itself never says to it.
        Some(errno) if errno == ROLL_CALL_ANSWER as i32 => Ok(true),
        // EINVAL: no program has seen it, and the kernel makes nothing of the id beside it.
        Some(libc::ENOENT | libc::EINVAL) => Ok(false),
        _ => Err(KernelError::system("asking the programs for an answer")(
            error,
        )),
    }
}
