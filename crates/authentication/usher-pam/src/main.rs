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

use std::ffi::CString;
use std::net::IpAddr;
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
    /// by whether its password is locked. Prints the reason, or what the modules say. Exit status: 0 yes, 3 no, 4 the modules
    /// took too long, 1 unknown
    Account {
        #[command(flatten)]
        origin: Origin,
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
        #[command(flatten)]
        origin: Origin,
        /// Name of the account
        account: CString,
    },
}

/// Where the user's connection comes from.
#[derive(Debug, clap::Args)]
struct Origin {
    /// Address of the client, which the modules see as PAM_RHOST
    // Not `required`: an older keeper passes no address, and learns from the answer why it is refused.
    #[arg(long, value_name = "ADDRESS")]
    rhost: Option<IpAddr>,
}

impl Origin {
    /// The address.
    ///
    /// # Errors
    /// Without an address PAM would take the user for a local one, so there is no answer.
    fn address(&self) -> std::io::Result<IpAddr> {
        self.rhost.ok_or_else(|| {
            std::io::Error::other(
                "the client's address is missing: the keeper is of another version, restart it \
                 (systemctl restart usher-keeper)",
            )
        })
    }
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Account { origin, account } => account::ask_about_account(&account, &origin),
        Task::Session {
            group,
            origin,
            account,
        } => session::hold(&group, &account, &origin),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(more: &[&str]) -> Origin {
        let words = ["usher-pam", "account"].into_iter();
        let words = words.chain(more.iter().copied()).chain(["alice"]);
        match Arguments::parse_from(words).task {
            Task::Account { origin, .. } | Task::Session { origin, .. } => origin,
        }
    }

    #[test]
    fn a_keeper_that_names_no_client_is_told_to_restart() {
        let refused = origin(&[]).address().unwrap_err().to_string();
        assert!(
            refused.contains("systemctl restart usher-keeper"),
            "{refused}"
        );
        let client = origin(&["--rhost", "2001:db8::1"]).address().unwrap();
        assert_eq!(client.to_string(), "2001:db8::1");
    }
}
