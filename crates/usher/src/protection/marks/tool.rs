//! Tools of other subsystems that list their rules.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The most bytes of a tool's list that are read.
const LARGEST: u64 = 64 << 20;

/// How long all tools together may take: meanwhile `usher policy apply` holds the lock of the
/// configuration, and other commands wait for it, even `usher user disable`.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// The standard output of a tool that must succeed before this time.
pub(super) fn output(words: &[&str], deadline: Instant) -> Result<String, String> {
    if Instant::now() >= deadline {
        return Err("not asked: the others took too long".into());
    }
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "not installed".to_owned(),
            _ => error.to_string(),
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
            return Err("no answer in time".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = reading
        .join()
        .map_err(|_| "its list cannot be read".to_owned())?;
    if matches!(&text, Ok(text) if text.len() as u64 == LARGEST) {
        // It may have ended by now.
        let _ended = child.kill();
        return Err("its list is too long".into());
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match text {
        _ if !status.success() => Err(status.to_string()),
        Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_does_not_answer_in_time_is_given_up() {
        let soon = Instant::now() + Duration::from_millis(50);
        let late = output(&["sleep", "600"], soon);
        assert_eq!(late, Err("no answer in time".into()));
        let late = output(&["true"], Instant::now());
        assert_eq!(late, Err("not asked: the others took too long".into()));
        assert_eq!(
            output(&["true"], Instant::now() + LIMIT * 10),
            Ok(String::new())
        );
    }

    #[test]
    fn a_list_without_an_end_is_refused() {
        let deadline = || Instant::now() + LIMIT * 10;
        let endless = output(&["yes"], deadline());
        assert_eq!(endless, Err("its list is too long".into()));
        assert_eq!(output(&["echo", "y"], deadline()), Ok("y\n".into()));
    }

    #[test]
    fn a_tool_that_fails_or_is_missing_is_named_so() {
        let deadline = || Instant::now() + LIMIT * 10;
        let failed = output(&["false"], deadline()).unwrap_err();
        assert!(failed.contains("exit status: 1"), "{failed}");
        let missing = output(&["/nowhere/tool"], deadline());
        assert_eq!(missing, Err("not installed".into()));
    }
}
