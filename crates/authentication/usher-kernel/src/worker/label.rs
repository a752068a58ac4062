//! The label of a worker (mandatory access control): its service, for the module `ubns`
//! (bpf/mac/modules/ubns.bpf.c), and what its user gets at login.

use usher_system::attributes::set_self_attribute;

use crate::shared::mac_label::{MAC_DONE, MAC_LSM_ID};

/// LSM_ATTR_CURRENT of linux/lsm.h.
const CURRENT: u32 = 100;

/// The text of the element.
pub(super) struct ServiceElement(String);

impl ServiceElement {
    pub(super) fn of(service: &str) -> Self {
        Self(format!("ubns/{service}"))
    }

    /// Makes it the calling process's, for good, if the module is in force. It takes CAP_SETUID:
    /// before the process is the user. Makes one system call, and neither allocates nor locks.
    ///
    /// # Errors
    /// The errno of a module that is in force.
    pub(super) fn take(&self) -> Result<(), i32> {
        match set(&self.0) {
            // Other modules label processes, and not this one.
            Err(libc::EINVAL) => Ok(()),
            outcome => outcome,
        }
    }
}

/// The text of what a user gets at login.
pub(super) struct UserLabel(String);

impl UserLabel {
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Makes its elements the calling process's, for good, if modules in force label processes. As
    /// [`ServiceElement::take`], before the process is the user.
    ///
    /// # Errors
    /// The errno of a module that is in force; EINVAL if none has such an element.
    pub(super) fn take(&self) -> Result<(), i32> {
        set(&self.0)
    }
}

/// Sets elements where the kernel has such a call, and a module labels processes.
fn set(elements: &str) -> Result<(), i32> {
    let taken = set_self_attribute(MAC_LSM_ID.into(), CURRENT, elements.as_bytes());
    let errno = taken.err().and_then(|error| error.raw_os_error());
    match errno {
        Some(errno) if errno == MAC_DONE as i32 => Ok(()),
        None | Some(libc::ENOSYS | libc::EOPNOTSUPP) => Ok(()),
        Some(errno) => Err(errno),
    }
}
