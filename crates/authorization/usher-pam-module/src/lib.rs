//! pam_usher.so, a PAM module: a session's processes get the label of their user (mac.login(5)).
//!
//! Programs differ in the process that opens a session. In su, login, cron and most others this process
//! belongs to the one session, and the user's processes are made from it: it gets the label itself. sshd
//! opens the session in its monitor, a process of root's, and calls pam_setcred(3) once more in the process
//! that becomes the user. Where the module is also in its `auth` stack, that process gets the label, and the
//! monitor keeps its own.
//!
//! Debian 12 (OpenSSH 9.2, util-linux 2.38, shadow 4.13, cron 3.0), as the test
//! `sessions_have_the_label_of_their_user` shows:
//!
//! | program | opens the session in | the user's process is | pam_setcred(3) |
//! | --- | --- | --- | --- |
//! | su, login | itself, before fork | its child | before the session |
//! | cron | a process of the job, which the daemon makes | a child of that | before the session |
//! | sshd | the monitor of the connection | its child, or for root the child of a child | before, and in the child |
//!
//! Room: the label of the calling process, what `usher-system-label` reads for a login, libpam. Programs of other
//! projects load it, with their privileges: it keeps no state but in the PAM transaction, starts nothing
//! and opens no socket.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod ffi;

use std::path::Path;

use libpam_sys::{PAM_DELETE_CRED, PAM_SESSION_ERR, PAM_SUCCESS};
use usher_system_label::login::enter_login_label;

use ffi::Transaction;

/// Programs that call pam_setcred(3) after pam_open_session(3), in the process that becomes the user, unless
/// that is root.
const SETS_CREDENTIALS_LATER: [&str; 2] = ["sshd", "sshd-session"];

/// Opens a session.
fn open_session(transaction: &Transaction, arguments: usize) -> i32 {
    if arguments > 0 {
        return refuse(
            transaction,
            &"pam_usher.so takes no argument; `optional` in place of `required` ignores its refusals",
        );
    }
    let user = match transaction.user() {
        Ok(user) => user,
        Err(reason) => return refuse(transaction, &reason),
    };
    if transaction.is_in_auth() && sets_credentials_later() && !is_root(&user) {
        // Checked here, too, so that a fault refuses the session, and not only the process.
        return match usher_system_label::login::wanted(&user) {
            Ok(_) => match transaction.leave_to_credentials() {
                Ok(()) => PAM_SUCCESS,
                Err(reason) => refuse(transaction, &reason),
            },
            Err(error) => refuse(transaction, &error),
        };
    }
    match enter_login_label(&user) {
        Ok(()) => PAM_SUCCESS,
        Err(error) => refuse(transaction, &error),
    }
}

/// Sets, or refreshes, the credentials of the calling process. Ends the process if it must not go on: sshd
/// goes on after a failure where the user has authenticated by a key.
fn set_credentials(transaction: &Transaction, flags: i32) -> i32 {
    if flags & PAM_DELETE_CRED != 0 {
        return PAM_SUCCESS;
    }
    match transaction.opener() {
        // The session is not open yet.
        None => match transaction.note_auth() {
            Ok(()) => PAM_SUCCESS,
            Err(reason) => refuse(transaction, &reason),
        },
        Some(opener) if opener == std::process::id() => PAM_SUCCESS,
        Some(_) => {
            let entered = transaction
                .user()
                .and_then(|user| enter_login_label(&user).map_err(|error| error.to_string()));
            match entered {
                Ok(()) => PAM_SUCCESS,
                Err(reason) => {
                    refuse(transaction, &reason);
                    ffi::end_process()
                }
            }
        }
    }
}

fn refuse(transaction: &Transaction, reason: &dyn std::fmt::Display) -> i32 {
    transaction.log(&format!("no session: {reason}"));
    PAM_SESSION_ERR
}

/// Whether this is sshd, by its name, as root has begun it: a user can give a set-user-ID program another
/// name by a hard link, but not another real user. Any other program gets the label at once, also one whose
/// file was replaced.
fn sets_credentials_later() -> bool {
    rustix::process::getuid().is_root()
        && std::fs::read_link("/proc/self/exe").is_ok_and(|program| is_one_of_these(&program))
}

fn is_one_of_these(program: &Path) -> bool {
    let name = program.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| SETS_CREDENTIALS_LATER.contains(&name))
}

/// Whether the user is root, for whom sshd makes no other process before it serves the connection. An account
/// that is not found is refused in any case.
fn is_root(user: &str) -> bool {
    usher_system_label::login::user_id(user).is_ok_and(|uid| uid == Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sshd_sets_credentials_later() {
        assert!(is_one_of_these(Path::new("/usr/sbin/sshd")));
        assert!(is_one_of_these(Path::new("/usr/lib/openssh/sshd-session")));
        for other in ["/usr/sbin/sshd (deleted)", "/usr/bin/su", "/"] {
            assert!(!is_one_of_these(Path::new(other)), "{other}");
        }
        assert!(!sets_credentials_later());
    }

    #[test]
    fn root_is_whoever_has_number_zero() {
        assert!(is_root("root") && !is_root("daemon") && !is_root("no-such-user"));
    }
}
