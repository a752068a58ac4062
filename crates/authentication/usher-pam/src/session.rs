//! A PAM session around workers. It has three processes, each the child of the one before:
//!
//! - This program, which loads no module. It limits the time of opening and closing, reports the
//!   result to the keeper, and kills what is left at the end.
//! - Its child, in which the modules run. It opens and closes the session. Its own child inherits
//!   what the modules set for their process (limits, keyring, login uid, priority).
//! - A starter of workers (`usherd starter --session`), which gets the keeper's socket. It ends
//!   when the keeper wants no more workers and all its descendants have ended.
//!
//! None of them is in the user's control group, so the session is closed even if that group is
//! killed. None is in the keeper's, so sessions outlive the keeper, as workers do.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit};

use crate::ffi::{PamError, Transaction};
use crate::fork::outlast_requests_to_end;
use crate::modules::{Heard, Modules, end_all, send};
use crate::{Origin, SERVICE, one_line};

/// The variables that control messages: the only ones that a starter inherits from the keeper's
/// environment.
const PASSED_ON: [&str; 2] = ["USHER_LOG", "JOURNAL_STREAM"];

/// Time limit for the modules to open a session.
const OPENING: Duration = Duration::from_secs(10);
/// Time limit for the modules to close the session.
const CLOSING: Duration = Duration::from_secs(10);
/// Limit of the environment that the modules set, in bytes; beyond it the session is refused.
const MOST_ENVIRONMENT: usize = 64 * 1024;
/// Soft limit of open files unless the modules set another: programs that use select(2) expect this
/// one, not the keeper's.
const OPEN_FILES: u64 = 1024;
/// Limit of a reported reason, in bytes.
const MOST_REASON: usize = 1024;

// First byte of a packet to the keeper:
/// The session is open. Its environment follows: texts `NAME=VALUE`, each ended by a zero.
const OPENED: u8 = 0;
/// The session could not be opened; the reason follows.
const REFUSED: u8 = 1;
/// The modules took too long and were killed.
const TOO_LONG: u8 = 2;
/// First byte of a packet to this program: the session is about to be closed.
const CLOSES: u8 = 3;

/// Descriptors from the keeper, which the modules do not get.
struct Given {
    socket: OwnedFd,
    /// The keeper's own program.
    usherd: OwnedFd,
    /// Standard error.
    errors: OwnedFd,
}

/// Holds a session open for the workers that are made over the socket at standard input, by the
/// program at standard output.
pub fn hold(group: &Path, account: &CString, origin: &Origin) -> ExitCode {
    outlast_requests_to_end();
    let mut given = None;
    let outcome = take_orders().and_then(|taken| {
        let given = given.insert(taken);
        watch(group, account, origin.address()?, given)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&io::stderr(), &error.to_string());
            if let Err(error) = end_all() {
                complain(&io::stderr(), &error.to_string());
            }
            if let Some(given) = &given {
                // Fails if the keeper has its answer already, or has ended.
                let _ = send(&given.socket, &refused(&error.to_string()));
            }
            ExitCode::FAILURE
        }
    }
}

/// Moves the keeper's descriptors away from standard input and output, where the modules would have
/// them.
fn take_orders() -> io::Result<Given> {
    let given = Given {
        socket: io::stdin().as_fd().try_clone_to_owned()?,
        usherd: io::stdout().as_fd().try_clone_to_owned()?,
        errors: io::stderr().as_fd().try_clone_to_owned()?,
    };
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(given)
}

/// Supervises the process of the modules for as long as the session is open.
fn watch(group: &Path, account: &CString, client: IpAddr, given: &Given) -> io::Result<()> {
    // A keeper from before an upgrade may pass something else.
    if !File::from(given.usherd.try_clone()?).metadata()?.is_file() {
        let text = "standard output is not the keeper's program: the keeper is of another version, \
                    restart it (systemctl restart usher-keeper)";
        return Err(io::Error::other(text));
    }
    std::fs::write(group.join("cgroup.procs"), "0")?;
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let modules = Modules::start(|| inside(account, client, given, &theirs))?;
    drop(theirs);
    let answer = match modules.hear(&ours, MOST_ENVIRONMENT, Some(OPENING))? {
        Heard::Packet(answer) => answer,
        Heard::Ended => refused("a PAM module has crashed"),
        Heard::TooLong => vec![TOO_LONG],
    };
    let is_open = answer.first() == Some(&OPENED);
    if !is_open {
        // End all processes before the keeper learns that there is no session.
        end_all()?;
    }
    let told = send(&given.socket, &answer);
    if !is_open {
        return told;
    }
    // A keeper that did not get the answer has ended, and then the starter ends too.
    match modules.hear(&ours, 1, None)? {
        Heard::Packet(_) if modules.wait(Some(CLOSING))? => {}
        Heard::Packet(_) | Heard::TooLong => {
            let limit = CLOSING.as_secs();
            let text = format!("the PAM modules took longer than {limit} s to close a session");
            complain(&io::stderr(), &text);
        }
        Heard::Ended => {
            let text = "a PAM module has crashed: a session was not closed, and its workers end";
            complain(&io::stderr(), text);
        }
    }
    // Ends what is left. After a module has crashed or the starter was killed, these may be workers: none
    // continues outside its session.
    end_all()
}

/// The reason of a missing session.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("{}", .0.text)]
    Pam(PamError),
    #[error(
        "a module has moved the process into another control group (pam_systemd does): take it out \
         of /etc/pam.d/usher"
    )]
    Moved,
    #[error("the modules set more than {MOST_ENVIRONMENT} bytes of environment")]
    Environment,
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The work of the modules' process.
fn inside(account: &CString, client: IpAddr, given: &Given, watcher: &OwnedFd) -> u8 {
    let mut is_told = false;
    let Err(error) = open_and_close(account, client, given, watcher, &mut is_told) else {
        return 0;
    };
    let text = one_line(&error.to_string());
    if is_told || send(watcher, &refused(&text)).is_err() {
        complain(
            &given.errors,
            &format!("cannot close a PAM session: {text}"),
        );
    }
    1
}

fn open_and_close(
    account: &CString,
    client: IpAddr,
    given: &Given,
    watcher: &OwnedFd,
    is_told: &mut bool,
) -> Result<(), SessionError> {
    // Prepare the starter's command before a module runs.
    let mut starter = starter_of(given)?;
    rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?)
        .map_err(io::Error::from)?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    let current = files.current.map(|current| current.min(OPEN_FILES));
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current, ..files })
        .map_err(io::Error::from)?;
    let group = own_group()?;
    let mut transaction =
        Transaction::start(SERVICE, account, client).map_err(SessionError::Pam)?;
    transaction.open_session().map_err(SessionError::Pam)?;
    let outcome = (|| {
        if own_group()? != group {
            return Err(SessionError::Moved);
        }
        let answer = opened(&transaction.environment())?;
        let mut starter = starter.spawn()?;
        send(watcher, &answer)?;
        *is_told = true;
        starter.wait()?;
        Ok(send(watcher, &[CLOSES])?)
    })();
    let closed = transaction.close_session().map_err(SessionError::Pam);
    outcome.and(closed)
}

/// The control group of this process, in the hierarchy of version 2.
fn own_group() -> io::Result<String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find(|line| line.starts_with("0::"));
    Ok(own.ok_or(io::ErrorKind::NotFound)?.to_owned())
}

/// The starter of the session's workers: the keeper's own program. The installed program may have become
/// another version, whose messages differ.
fn starter_of(given: &Given) -> io::Result<Command> {
    let mut command = Command::new(format!("/proc/self/fd/{}", given.usherd.as_raw_fd()));
    command
        .arg0("usherd")
        .args(["starter", "--session"])
        .env_clear();
    for name in PASSED_ON {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command
        .current_dir("/")
        .stdin(given.socket.try_clone()?)
        .stdout(Stdio::null())
        .stderr(given.errors.try_clone()?);
    Ok(command)
}

fn opened(environment: &[Vec<u8>]) -> Result<Vec<u8>, SessionError> {
    let mut packet = vec![OPENED];
    for entry in environment {
        packet.extend(entry);
        packet.push(0);
    }
    if packet.len() > MOST_ENVIRONMENT {
        return Err(SessionError::Environment);
    }
    Ok(packet)
}

fn refused(reason: &str) -> Vec<u8> {
    let mut packet = vec![REFUSED];
    let reason = one_line(reason);
    packet.extend(reason.bytes().take(MOST_REASON));
    packet
}

/// Writes a message to the keeper's unit, because the keeper itself may have ended.
fn complain(errors: &impl AsFd, text: &str) {
    // The priority (sd-daemon(3)), where the journal reads it.
    let priority = std::env::var_os("JOURNAL_STREAM").map_or("", |_| "<3>");
    let line = format!("{priority}usher-pam: {}\n", one_line(text));
    // There is no other place to report it.
    let _ = rustix::io::write(errors, line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_that_passes_no_program_is_named() {
        let watch = |program: &str| {
            let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
            let given = Given {
                socket: open("/dev/null"),
                usherd: open(program),
                errors: open("/dev/null"),
            };
            let (group, account) = (Path::new("/no/group"), c"alice".to_owned());
            watch(group, &account, [10, 0, 0, 1].into(), &given).unwrap_err()
        };
        let told = watch("/dev/null").to_string();
        assert!(told.contains("the keeper is of another version"), "{told}");
        // Its twin gets as far as the group, which is missing.
        assert_eq!(watch("/proc/self/exe").kind(), io::ErrorKind::NotFound);
    }
}
