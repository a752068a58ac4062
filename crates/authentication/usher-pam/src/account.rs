//! Whether an account may be served now.

use std::ffi::CString;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use rustix::thread::CapabilitySet;

use crate::ffi::Transaction;
use crate::modules::{self, Modules};
use crate::{Origin, SERVICE, one_line};

/// Time limit for all modules together: half of the time that opening a session of Usher may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The exit status of a refusal.
const REFUSED: u8 = 3;
/// The exit status when the modules have taken too long.
const TOO_LONG: u8 = 4;
/// The exit status when there is no answer.
const UNKNOWN: u8 = 1;

/// Capabilities that the keeper passes on only for the session phase.
const FOR_SESSIONS: [CapabilitySet; 4] = [
    CapabilitySet::CHOWN,
    CapabilitySet::FOWNER,
    CapabilitySet::SYS_NICE,
    CapabilitySet::SYS_RESOURCE,
];

/// Answers with the exit status, and with the reason on standard output.
pub fn ask_about_account(account: &CString, origin: &Origin) -> ExitCode {
    let outcome = give_up_what_sessions_need()
        .and_then(|()| origin.address())
        .and_then(|address| Modules::start(|| answer_about_account(account, address)))
        .and_then(|modules| {
            if modules.wait(Some(PATIENCE))? {
                return modules.status();
            }
            modules::end_all()?;
            Ok(Some(TOO_LONG))
        });
    let status = outcome.unwrap_or_else(|error| {
        println!("{error}");
        Some(UNKNOWN)
    });
    ExitCode::from(status.unwrap_or_else(|| {
        println!("a module has crashed");
        UNKNOWN
    }))
}

fn give_up_what_sessions_need() -> std::io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    for one in FOR_SESSIONS {
        rustix::thread::remove_capability_from_bounding_set(one)?;
        sets.permitted.remove(one);
        sets.effective.remove(one);
    }
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn answer_about_account(account: &CString, address: IpAddr) -> u8 {
    let (status, text) = match look(account, address) {
        Ok(messages) => (0, messages),
        Err(refused) => refused,
    };
    println!("{}", one_line(&text));
    status
}

/// Returns what the modules have said; fails with the exit status and the reason.
fn look(account: &CString, address: IpAddr) -> Result<String, (u8, String)> {
    let name = account
        .to_str()
        .map_err(|_| (REFUSED, "its name is not UTF-8".into()))?;
    let is_locked =
        is_locked(name).map_err(|error| (UNKNOWN, format!("cannot read /etc/shadow: {error}")))?;
    if is_locked {
        let reason = "its password is locked (passwd -u unlocks it)";
        return Err((REFUSED, reason.into()));
    }
    let mut transaction = Transaction::start(SERVICE, account, address)
        .map_err(|error| (UNKNOWN, format!("cannot ask PAM: {}", error.text)))?;
    transaction.account().map_err(|error| {
        let is_refused = is_about_the_account(error.code);
        (if is_refused { REFUSED } else { UNKNOWN }, error.text)
    })?;
    Ok(transaction.messages())
}

/// Whether PAM refuses the account, rather than having a broken configuration or module.
fn is_about_the_account(code: i32) -> bool {
    [
        libpam_sys::PAM_ACCT_EXPIRED,
        libpam_sys::PAM_AUTH_ERR,
        libpam_sys::PAM_CRED_EXPIRED,
        libpam_sys::PAM_NEW_AUTHTOK_REQD,
        libpam_sys::PAM_PERM_DENIED,
        libpam_sys::PAM_USER_UNKNOWN,
    ]
    .contains(&code)
}

/// Whether the password of an account is locked (`passwd -l`, `usermod -L`): a `!` precedes its hash. PAM's account
/// phase does not check that: pam_unix only compares passwords, and no password is typed here.
///
/// A lone `!` (or `!!`) is what useradd(8) writes for an account that never had a password, so it
/// is not a lock; locking such an account does not change the file either. `usermod --expiredate 1`
/// closes any account. An account without a line in the file, for example from LDAP, is not locked
/// here.
///
/// # Errors
/// When the file exists and cannot be read.
fn is_locked(account: &str) -> io::Result<bool> {
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
