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
    while !reading.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_late = !reading.is_finished();
    if is_late {
        // It may have ended by now.
        let _ended = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let text = reading
        .join()
        .map_err(|_| "its list cannot be read".to_owned())?;
    match text {
        _ if is_late => Err("no answer in time".into()),
        _ if !status.success() => Err(status.to_string()),
        Ok(text) if text.len() as u64 == LARGEST => Err("its list is too long".into()),
        Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}
