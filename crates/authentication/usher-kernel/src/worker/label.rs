//! The element of a worker's label: its service, for the module `ubns` of mandatory access control
//! (bpf/mac/modules/ubns.bpf.c).

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
        let taken = set_self_attribute(MAC_LSM_ID.into(), CURRENT, self.0.as_bytes());
        let errno = taken.err().and_then(|error| error.raw_os_error());
        match errno {
            Some(errno) if errno == MAC_DONE as i32 => Ok(()),
            // The kernel has no such call, no module labels processes, or not this one.
            None | Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL) => Ok(()),
            Some(errno) => Err(errno),
        }
    }
}
