//! Asks PAM's account phase whether an account may be served now. A separate program, usher-pam,
//! asks PAM: so an administrator's modules are not loaded beside the keeper's tables, and a module
//! that hangs delays only its own user.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_base::UserName;
use usher_daemon::events;
use usher_proto::refusal::Refusal;

/// Time limit of an answer. It is longer than usher-pam's limit for the modules (5 s), after which usher-pam
/// kills everything that they have started and exits with [`TOO_LONG`].
const PATIENCE: Duration = Duration::from_secs(8);
/// Longest reason that is read, in bytes.
const MOST_TEXT: u64 = 1024;
/// usher-pam's exit status of a refusal.
const REFUSED: i32 = 3;
/// usher-pam's exit status when the modules took too long.
const TOO_LONG: i32 = 4;

/// Asks whether the account may be served at a client's address. Takes two processes, and up to 5 s for the
/// modules: never call it on the reactor's thread.
///
/// # Errors
/// [`Refusal::AccountClosed`] when PAM refuses the account; [`Refusal::AccountUnknown`] when there
/// is no answer, which is logged.
pub fn permitted(name: &UserName, client: IpAddr) -> Result<(), Refusal> {
    match ask_pam(name, client) {
        Ok(Answer::Permitted(warning)) => {
            if !warning.is_empty() && is_new(name, &warning) {
                tracing::warn!(user = %name, warning,
                    "PAM warns about the account, which is still served");
            }
            Ok(())
        }
        Ok(Answer::Refused(reason)) => {
            tracing::warn!(name: events::ACCOUNT_REFUSED, user = %name, %client, reason,
                "the account is not served");
            Err(Refusal::AccountClosed)
        }
        Err(error) => {
            tracing::error!(user = %name, %client, %error,
                "cannot ask PAM whether the account may be served, so it is not");
            Err(Refusal::AccountUnknown)
        }
    }
}

/// PAM's answer.
enum Answer {
    /// The account may be served, with the modules' messages: pam_unix warns before a password ages out.
    Permitted(String),
    /// It may not, for this reason.
    Refused(String),
}

/// The last warnings about accounts, and when they were logged.
static WARNED: Mutex<BTreeMap<UserName, (String, Instant)>> = Mutex::new(BTreeMap::new());
/// The time after which the same warning is logged again.
const AGAIN: Duration = Duration::from_secs(12 * 3600);
/// Limit of accounts whose last warnings are kept; beyond this, all are forgotten, and logged again.
const MOST_WARNED: usize = 4096;

/// Whether this warning about the account has not been logged lately.
fn is_new(name: &UserName, warning: &str) -> bool {
    let mut warned = WARNED.lock();
    if let Some((former, at)) = warned.get(name)
        && former == warning
        && at.elapsed() < AGAIN
    {
        return false;
    }
    if warned.len() >= MOST_WARNED {
        warned.clear();
    }
    warned.insert(name.clone(), (warning.to_owned(), Instant::now()));
    true
}

fn ask_pam(name: &UserName, client: IpAddr) -> io::Result<Answer> {
    let failed = |error| io::Error::other(format!("cannot ask usher-pam: {error}"));
    let mut child = Command::new(pam_program().map_err(failed)?)
        .args(["account", "--rhost", &client.to_string()])
        .args(["--", name.as_ref()])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let ended = wait(&mut child);
    if !matches!(ended, Ok(true)) {
        child.kill()?;
        child.wait()?;
    }
    let too_long = || io::Error::other("the PAM modules took too long and were killed");
    if !ended.map_err(failed)? {
        return Err(too_long());
    }
    let status = child.wait()?;
    let reason = reason(&mut child).map_err(failed)?;
    match status.code() {
        Some(0) => Ok(Answer::Permitted(reason)),
        Some(REFUSED) => Ok(Answer::Refused(reason)),
        Some(TOO_LONG) => Err(too_long()),
        Some(_) => Err(io::Error::other(format!("PAM cannot tell: {reason}"))),
        None => Err(io::Error::other(format!(
            "PAM cannot tell: usher-pam: {status}"
        ))),
    }
}

/// The program that asks PAM.
pub fn pam_program() -> io::Result<PathBuf> {
    super::installed_beside("usher-pam")
}

/// Whether the child ends in time.
fn wait(child: &mut Child) -> io::Result<bool> {
    let pid = Pid::from_child(child);
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let patience = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
    Ok(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience))? > 0)
}

/// The child's output. Does not wait for its end, because a process that a module has left behind
/// may hold the pipe open.
fn reason(child: &mut Child) -> io::Result<String> {
    let Some(output) = child.stdout.take() else {
        return Ok(String::new());
    };
    rustix::io::ioctl_fionbio(&output, true)?;
    let mut bytes = Vec::new();
    match output.take(MOST_TEXT).read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
        Ok(_) | Err(_) => {}
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
