//! The label of a worker (mandatory access control): its service, for the module `ubns`
//! (bpf/mac/modules/ubns.bpf.c), and what its user gets at login.

use usher_system::process::set_self_attribute;

use crate::shared::mac_label::{MAC_DONE, MAC_LSM_ID};

/// LSM_ATTR_CURRENT of linux/lsm.h.
const CURRENT: u32 = 100;

/// The text of a service's element.
pub(super) fn element(service: &str) -> String {
    format!("ubns/{service}")
}

/// Gives the calling process a service's element, for good, if the module is in force. Like [`take_label`],
/// it must run before the process is the user.
///
/// # Errors
/// The errno of a module that is in force.
pub(super) fn take_element(element: &str) -> Result<(), i32> {
    match take_label(element) {
        // Modules in force label processes, but this one is not among them.
        Err(libc::EINVAL) => Ok(()),
        outcome => outcome,
    }
}

/// Gives the calling process elements of a label, for good, where the kernel has such a call, and modules in
/// force label processes. It needs CAP_SETUID, so it must run before the process is the user. Makes one
/// system call, and neither allocates nor locks.
///
/// # Errors
/// The errno of a module that is in force; EINVAL if none has such an element.
pub(super) fn take_label(elements: &str) -> Result<(), i32> {
    let taken = set_self_attribute(MAC_LSM_ID.into(), CURRENT, elements.as_bytes());
    let errno = taken.err().and_then(|error| error.raw_os_error());
    match errno {
        Some(errno) if errno == MAC_DONE as i32 => Ok(()),
        None | Some(libc::ENOSYS | libc::EOPNOTSUPP) => Ok(()),
        Some(errno) => Err(errno),
    }
}
