//! PAM sessions of workers, one for each order. usher-pam opens a session and starts a starter inside it,
//! which makes the order's workers. usher-pam closes the session when the workers and all their descendants
//! have ended. A session outlives the keeper, as workers do.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use usher_base::UserName;
use usher_daemon::packet_async::register;
use usher_kernel::KernelError;

use super::starter::{self, StarterProcess};

/// Time limit of usher-pam's answer. It is longer than usher-pam's limit for the modules (10 s), after which
/// usher-pam kills everything that they have started and answers [`TOO_LONG`].
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest answer in bytes: 64 KiB of environment.
const MAX_ANSWER: usize = 64 * 1024;

// First byte of an answer.
const OPENED: u8 = 0;
const REFUSED: u8 = 1;
const TOO_LONG: u8 = 2;

/// The reason why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The modules refused, with PAM's text.
    #[error("PAM opens no session: {0}")]
    Refused(String),
    /// The modules exceeded their time limit; see [`PATIENCE`].
    #[error("PAM opens no session: the modules took too long and were killed")]
    TooLong,
    /// The answer is malformed, or the modules' environment is not text.
    #[error("PAM opens no session: what the modules have set is not UTF-8, or not NAME=VALUE")]
    Malformed,
    /// usher-pam ended without an answer.
    #[error("PAM opens no session: usher-pam has ended")]
    Ended,
    /// The queue has as many sessions as it may, open or closing.
    #[error("PAM opens no session: processes left behind keep {0} of the user's open")]
    TooMany(usize),
    /// usher-pam could not be started, or its answer could not be received.
    #[error("PAM opens no session: {0}")]
    System(#[from] io::Error),
    /// The control group could not be made.
    #[error("PAM opens no session: {0}")]
    Group(#[from] KernelError),
}

/// An open session. When dropped, it accepts no more orders and continues until its workers have
/// ended.
pub struct Session {
    /// The starter that makes the workers.
    pub starter: Arc<StarterProcess>,
    /// The environment variables that the modules have set.
    pub environment: Vec<(String, String)>,
}

impl Session {
    /// Opens a session for an account whose client is at this address. usher-pam and the modules live in the
    /// control group `group`. Orders to the session's starter end together with those to the starter
    /// `outside`.
    ///
    /// # Errors
    /// When the modules refuse, fail or take longer than 10 s. None of their processes is left
    /// then.
    pub async fn open(
        account: &UserName,
        client: IpAddr,
        group: &Path,
        outside: &StarterProcess,
    ) -> Result<Self, SessionError> {
        // The starter in the session must be this version, whatever has been installed since.
        let own_program = File::open("/proc/self/exe")?;
        let mut program = Command::new(crate::keeper::host::usher_pam()?);
        program
            .args(["session", "--group"])
            .arg(group)
            .args(["--rhost", &client.to_string()])
            .args(["--", account.as_ref()])
            .stdout(own_program);
        let (mut child, socket) = starter::spawn(program)?;
        let answer = tokio::time::timeout(PATIENCE, socket.receive(MAX_ANSWER)).await;
        if answer.is_err() {
            child.kill()?;
        }
        tokio::spawn(see_off(child));
        let answer = answer.map_err(|_| SessionError::TooLong)??;
        let environment = read_environment(&answer.bytes)?;
        Ok(Self {
            starter: outside.of_session(socket),
            environment,
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.starter.leave();
    }
}

/// The environment in an answer.
fn read_environment(answer: &[u8]) -> Result<Vec<(String, String)>, SessionError> {
    match answer.split_first() {
        None => Err(SessionError::Ended),
        Some((&OPENED, [])) => Ok(Vec::new()),
        Some((&OPENED, entries)) => entries
            .strip_suffix(&[0])
            .ok_or(SessionError::Malformed)?
            .split(|byte| *byte == 0)
            .map(|entry| {
                let entry = std::str::from_utf8(entry).ok()?;
                let (name, value) = entry.split_once('=')?;
                (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
            })
            .collect::<Option<_>>()
            .ok_or(SessionError::Malformed),
        Some((&REFUSED, reason)) => Err(SessionError::Refused(
            String::from_utf8_lossy(reason).into_owned(),
        )),
        Some((&TOO_LONG, _)) => Err(SessionError::TooLong),
        Some(_) => Err(SessionError::Malformed),
    }
}

/// Waits until usher-pam ends, which may take hours.
async fn see_off(mut child: Child) {
    let outcome = async {
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let _ended = register(process, Interest::READABLE)?.readable().await?;
        child.wait()
    };
    if let Err(error) = outcome.await {
        tracing::error!(%error, "cannot wait for usher-pam");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_brings_the_environment_or_a_reason() {
        let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read_environment(b"\0").unwrap(), []);
        let entries = [entry("A", "b=c"), entry("D", "")];
        assert_eq!(read_environment(b"\0A=b=c\0D=\0").unwrap(), entries);
        for malformed in [
            &b"\0A\0"[..],
            b"\0=b\0",
            b"\0A=\xff\0",
            b"\0A=b\0\0",
            b"\x09",
        ] {
            let refused = read_environment(malformed);
            assert!(
                matches!(refused, Err(SessionError::Malformed)),
                "{malformed:?}"
            );
        }
        assert!(
            matches!(read_environment(b"\x01no"), Err(SessionError::Refused(why)) if why == "no")
        );
        assert!(matches!(
            read_environment(b"\x02"),
            Err(SessionError::TooLong)
        ));
        assert!(matches!(read_environment(b""), Err(SessionError::Ended)));
    }
}
