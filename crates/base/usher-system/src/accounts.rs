//! The accounts that the system's name service (NSS) lists. Only this list leads to the accounts that
//! have a group as their primary group.

use std::collections::BTreeSet;
use std::io;

/// The names of the accounts whose primary group has this number, as far as the name service lists
/// accounts: some do not (`enumerate` in sssd.conf(5)), and an unresponsive one ends the list without
/// an error.
///
/// # Errors
/// As getpwent(3).
pub fn with_primary_group(gid: u32) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    usher_system_ffi::for_each_account(|name, group| {
        if group == gid {
            names.insert(name.to_string_lossy().into_owned());
        }
    })?;
    Ok(names)
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
