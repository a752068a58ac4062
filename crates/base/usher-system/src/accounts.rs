//! The accounts that the system's name service (NSS) lists. Only this list leads to the accounts that
//! have a group as their primary group.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::sync::{Mutex, PoisonError};

/// getpwent(3) has one position in the list for the whole process.
static LIST: Mutex<()> = Mutex::new(());

/// The names of the accounts whose primary group has this number, as far as the name service lists
/// accounts: some do not (`enumerate` in sssd.conf(5)), and an unresponsive one ends the list without
/// an error.
///
/// # Errors
/// As getpwent(3).
pub fn with_primary_group(gid: u32) -> io::Result<BTreeSet<String>> {
    let _held = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names = BTreeSet::new();
    // SAFETY: it takes nothing, and nobody else of this process reads the list meanwhile.
    unsafe { libc::setpwent() };
    let end = loop {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: under the lock; what it returns is good until the next call.
        let entry = unsafe { libc::getpwent() };
        if entry.is_null() {
            break io::Error::last_os_error();
        }
        // SAFETY: not null, so it points to an entry that is good until the next call.
        let entry = unsafe { &*entry };
        if entry.pw_gid == gid {
            // SAFETY: the name of an entry is a string that ends with zero.
            let name = unsafe { CStr::from_ptr(entry.pw_name) };
            names.insert(name.to_string_lossy().into_owned());
        }
    };
    // SAFETY: as for setpwent.
    unsafe { libc::endpwent() };
    match end.raw_os_error() {
        // glibc says either at the end of the list.
        Some(0 | libc::ENOENT) => Ok(names),
        _ => Err(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_an_account_of_its_group_and_of_no_other() {
        assert!(with_primary_group(0).unwrap().contains("root"));
        assert!(!with_primary_group(1).unwrap().contains("root"));
    }
}
