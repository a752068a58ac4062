//! Asks PAM whether an account may be served now, and tells by the exit status.
//!
//! A program of its own: the modules of an administrator's PAM configuration are code that the
//! keeper must not have in its address space, and they may hang or crash. The keeper starts it with
//! an empty environment and ends it when it takes too long. It is not one of the daemons that the
//! ownership programs know.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod ffi;
mod shadow;

use std::ffi::CString;
use std::process::ExitCode;

use clap::Parser;
use ffi::Transaction;

/// The name of the PAM service, and so of its file below /etc/pam.d.
const SERVICE: &std::ffi::CStr = c"usher";
/// The exit status of a refusal.
const REFUSED: u8 = 3;

/// Asks whether an account may be served now: PAM's account phase for the service `usher`, and
/// whether its password is locked. Exit status: 0 yes, 3 no, 1 cannot tell; the reason is on
/// standard output.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The account's name
    account: CString,
}

fn main() -> ExitCode {
    let account = Arguments::parse().account;
    let (status, reason) = match ask(&account) {
        Answer::Permitted => return ExitCode::SUCCESS,
        Answer::Refused(reason) => (ExitCode::from(REFUSED), reason),
        Answer::Unknown(reason) => (ExitCode::FAILURE, reason),
    };
    // Modules may have put anything into it.
    let line: String = reason
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    println!("{}", line.trim());
    status
}

enum Answer {
    Permitted,
    Refused(String),
    Unknown(String),
}

fn ask(account: &CString) -> Answer {
    let locked = account.to_str().map(shadow::is_locked);
    match locked {
        Err(_) => return Answer::Refused("its name is not UTF-8".into()),
        Ok(Err(error)) => return Answer::Unknown(format!("cannot read /etc/shadow: {error}")),
        Ok(Ok(true)) => {
            return Answer::Refused("its password is locked (passwd -u unlocks it)".into());
        }
        Ok(Ok(false)) => {}
    }
    let mut transaction = match Transaction::start(SERVICE, account) {
        Ok(transaction) => transaction,
        Err(error) => return Answer::Unknown(format!("cannot ask PAM: {}", error.text)),
    };
    match transaction.account() {
        Ok(()) => Answer::Permitted,
        Err(error) if is_about_the_account(error.code) => Answer::Refused(error.text),
        Err(error) => Answer::Unknown(error.text),
    }
}

/// Whether PAM says no, and not that its configuration or a module is broken.
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
