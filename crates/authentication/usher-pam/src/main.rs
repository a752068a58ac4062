//! Asks PAM whether an account may be served now, or holds a PAM session open while a worker runs.
//!
//! This is a program of its own, because the modules of an administrator's PAM configuration are
//! code that must not run in the keeper's address space, and they may hang or crash. The modules
//! run in a child of this program. The program itself loads none, limits their time, and kills what
//! they leave behind. The ownership programs do not count it among the daemons.
//!
//! Room: PAM, its own child processes. Only the keeper starts it.
#![deny(unsafe_code)]

mod account;
#[allow(unsafe_code)]
mod ffi;
#[allow(unsafe_code)]
mod fork;
mod modules;
mod session;
mod shadow;

use std::ffi::CString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The name of the PAM service, and so of its file below /etc/pam.d.
const SERVICE: &std::ffi::CStr = c"usher";

/// Usher's PAM client; only the keeper runs it
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Checks whether an account may be served now: by PAM's account phase of the service `usher`, and
    /// by whether its password is locked. Prints the reason. Exit status: 0 yes, 3 no, 4 the modules
    /// took too long, 1 unknown
    Account {
        /// Name of the account
        account: CString,
    },
    /// Opens a session, runs a starter of workers in it until the last worker and all its descendants
    /// have ended, and closes the session. Standard input is the keeper's socket, standard output is
    /// the starter's program
    Session {
        /// cgroup v2 folder for this process and the modules
        #[arg(long, value_name = "DIRECTORY")]
        group: PathBuf,
        /// Name of the account
        account: CString,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Account { account } => account::ask(&account),
        Task::Session { group, account } => session::hold(&group, &account),
    }
}

/// Puts a text, which modules may have filled with anything, on one line.
fn one_line(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.trim().to_owned()
}
