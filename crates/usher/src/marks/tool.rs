//! Tools of other subsystems that list their rules.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Limit of bytes of a tool's list that are read.
const LARGEST: u64 = 64 << 20;

/// How long all tools together may take: meanwhile `usher policy apply` holds the lock of the
/// configuration, and other commands wait for it, even `usher user disable`.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Why a tool's list is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    #[error("not asked: the others took too long")]
    NotAsked,
    #[error("not installed")]
    NotInstalled,
    #[error("no answer in time")]
    Late,
    #[error("its list is too long")]
    TooLong,
    #[error("its list cannot be read: {0}")]
    Json(serde_json::Error),
    #[error("{0}")]
    Failed(ExitStatus),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs a tool, which must succeed before `deadline`, and returns its standard output.
pub(super) fn output(words: &[&str], deadline: Instant) -> Result<String, Unread> {
    if Instant::now() >= deadline {
        return Err(Unread::NotAsked);
    }
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Unread::NotInstalled,
            _ => Unread::Io(error),
        })?;
    let stdout = child.stdout.take();
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map(|stdout| stdout.take(LARGEST).read_to_end(&mut text));
        read.transpose().map(|_| text)
    });
    while !reading.is_finished() {
        if Instant::now() >= deadline {
            // Nothing waits for its end: a killed process may hang in the kernel, too.
            let _ended = child.kill();
            return Err(Unread::Late);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = reading
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if matches!(&text, Ok(text) if text.len() as u64 == LARGEST) {
        // The tool may have ended by now.
        let _ended = child.kill();
        return Err(Unread::TooLong);
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(Unread::Failed(status));
    }
    Ok(String::from_utf8_lossy(&text?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_does_not_answer_in_time_is_given_up() {
        let soon = Instant::now() + Duration::from_millis(50);
        let late = output(&["sleep", "600"], soon);
        assert!(matches!(late, Err(Unread::Late)), "{late:?}");
        let late = output(&["true"], Instant::now());
        assert!(matches!(late, Err(Unread::NotAsked)), "{late:?}");
        let answered = output(&["true"], Instant::now() + LIMIT * 10);
        assert_eq!(answered.unwrap(), "");
    }

    #[test]
    fn a_list_without_an_end_is_refused() {
        let deadline = || Instant::now() + LIMIT * 10;
        let endless = output(&["yes"], deadline());
        assert!(matches!(endless, Err(Unread::TooLong)), "{endless:?}");
        assert_eq!(output(&["echo", "y"], deadline()).unwrap(), "y\n");
    }

    #[test]
    fn a_tool_that_fails_or_is_missing_is_named_so() {
        let deadline = || Instant::now() + LIMIT * 10;
        let failed = output(&["false"], deadline()).unwrap_err();
        assert_eq!(failed.to_string(), "exit status: 1");
        let missing = output(&["/nowhere/tool"], deadline());
        assert!(matches!(missing, Err(Unread::NotInstalled)), "{missing:?}");
    }
}
