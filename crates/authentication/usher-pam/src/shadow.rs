//! Accounts whose password was locked (`passwd -l`, `usermod -L`). PAM's account phase does not
//! check that: pam_unix only compares passwords, and no password is typed here.

use std::fs;
use std::io;

/// Whether the password of an account is locked: a `!` precedes its hash.
///
/// A lone `!` (or `!!`) is what useradd(8) writes for an account that never had a password, so it
/// is not a lock; locking such an account does not change the file either. `usermod --expiredate 1`
/// closes any account. An account without a line in the file, for example from LDAP, is not locked
/// here.
///
/// # Errors
/// When the file exists and cannot be read.
pub fn is_locked(account: &str) -> io::Result<bool> {
    match fs::read("/etc/shadow") {
        Ok(file) => Ok(has_locked(&file, account)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn has_locked(file: &[u8], account: &str) -> bool {
    file.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        fields.next() == Some(account.as_bytes())
            && fields.next().is_some_and(|password| {
                password.starts_with(b"!") && password.iter().any(|byte| *byte != b'!')
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_stands_before_a_password_or_a_star() {
        let file = b"alice:!$y$j9T$x:19000::::::\nbob:!*:19000::::::\ncarol:$y$j9T$x:19000::::::\n\
            dave:*:19000::::::\nerin:!:19000::::::\nfrank:!!:19000::::::\ngrace::1::::::\nheidi";
        let locked = |name| has_locked(file, name);
        assert!(locked("alice") && locked("bob"));
        for open in [
            "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "",
        ] {
            assert!(!locked(open), "{open}");
        }
    }
}
