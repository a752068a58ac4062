//! A process that runs inside a host.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup;
use crate::command::text;
use crate::error::{Attempt, LabError};
use crate::host::Host;

/// The time that a command may take to enter its group.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time after which `nsenter` is woken if the end of its command has not shown.
const AWAKE: Duration = Duration::from_millis(100);

/// A command that was started in a host: our child `nsenter`, and its child inside the host's PID
/// namespace, which is the command. Dropping the value kills it with its children.
#[derive(Debug)]
pub struct Running {
    host: Host,
    line: String,
    child: Child,
    ended: Option<ExitStatus>,
    group: PathBuf,
    /// True if its cgroup outlives it; see [`Running::leave_group`].
    group_stays: bool,
    stderr: Option<File>,
    /// Bytes read from its standard output and not yet returned.
    unread: Vec<u8>,
}

impl Running {
    pub(crate) fn new(host: Host, line: String, child: Child, group: PathBuf) -> Self {
        Self {
            host,
            line,
            child,
            ended: None,
            group,
            group_stays: false,
            stderr: None,
            unread: Vec::new(),
        }
    }

    pub(crate) fn keep_stderr(&mut self, file: File) {
        self.stderr = Some(file);
    }

    /// From now on dropping the value ends only the process itself, and its cgroup stays: a daemon's
    /// children outlive it, as under systemd's `KillMode=process`.
    pub(crate) fn leave_group(&mut self) {
        self.group_stays = true;
    }

    /// The command's process id, as seen from outside the host.
    ///
    /// # Errors
    /// [`LabError::NotRunning`] when it has ended.
    pub fn pid(&mut self) -> Result<u32, LabError> {
        loop {
            if self.has_ended()? {
                return Err(self.not_running());
            }
            // nsenter forks after it has entered the PID namespace, which takes a moment.
            if let Some(pid) = child_of(self.child.id())? {
                return Ok(pid);
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// Sends the command a signal, and not its children.
    ///
    /// # Errors
    /// [`LabError::NotRunning`] when it has ended.
    pub fn kill(&mut self, signal: Signal) -> Result<(), LabError> {
        let pid = self.pid()?;
        let sent = match i32::try_from(pid).ok().and_then(Pid::from_raw) {
            None => Err(Errno::SRCH),
            Some(raw) => pidfd_open(raw, PidfdFlags::empty()).and_then(|pidfd| {
                // Unlike the number, the descriptor cannot come to mean another process.
                match child_of(self.child.id()) {
                    Ok(Some(child)) if child == pid => pidfd_send_signal(&pidfd, signal),
                    _ => Err(Errno::SRCH),
                }
            }),
        };
        match sent {
            Err(Errno::SRCH) => Err(self.not_running()),
            result => result.attempt(|| format!("cannot send a signal to `{}`", self.line)),
        }
    }

    fn not_running(&self) -> LabError {
        LabError::NotRunning {
            host: self.host.name().into(),
            what: self.line.clone(),
        }
    }

    /// Sends the command a signal, if it still runs.
    pub(crate) fn kill_if_running(&mut self, signal: Signal) -> Result<(), LabError> {
        match self.kill(signal) {
            Err(LabError::NotRunning { .. }) => Ok(()),
            result => result,
        }
    }

    /// Returns whether it has ended.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn has_ended(&mut self) -> Result<bool, LabError> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .attempt(|| "cannot wait for nsenter".into())?;
        }
        Ok(self.ended.is_some())
    }

    /// Waits for its end, at most for `limit`; `None` if it still runs then.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, LabError> {
        if self.has_ended()? {
            return Ok(self.ended);
        }
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .attempt(|| "cannot open a pidfd".into())?;
        let deadline = Instant::now() + limit;
        loop {
            let now = Instant::now();
            readable(&pidfd, deadline.min(now + AWAKE))
                .attempt(|| format!("cannot wait for `{}`", self.line))?;
            if self.has_ended()? || now >= deadline {
                return Ok(self.ended);
            }
            // nsenter stops when its command is stopped, and a command that is continued does not wake it.
            if command_is_over(self.child.id())? {
                self.wake()?;
            }
        }
    }

    fn wake(&self) -> Result<(), LabError> {
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .and_then(|pidfd| pidfd_send_signal(&pidfd, Signal::CONT))
            .attempt(|| "cannot wake nsenter".into())
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// When it no longer reads, or [`Running::close_input`] was called.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), LabError> {
        match self.child.stdin.as_mut() {
            Some(stdin) => stdin.write_all(bytes.as_ref()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
        .attempt(|| format!("cannot write to `{}`", self.line))
    }

    /// Ends its standard input.
    pub fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Reads its standard output up to and including the first line that contains `text`, and
    /// returns it; later output is kept for the next call.
    ///
    /// # Errors
    /// When the output ends before, or `limit` passes; the error shows the output instead.
    pub fn read_past(&mut self, text: &str, limit: Duration) -> Result<String, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = end_of_line_with(&self.unread, text.as_bytes()) {
                let rest = self.unread.split_off(end);
                let found = std::mem::replace(&mut self.unread, rest);
                return Ok(String::from_utf8_lossy(&found).into_owned());
            }
            let result = match self.child.stdout.as_mut() {
                None => Err(io::ErrorKind::BrokenPipe.into()),
                Some(stdout) => match readable(&stdout, deadline) {
                    Ok(true) => read_some(stdout, &mut self.unread),
                    Ok(false) => Err(io::ErrorKind::TimedOut.into()),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = result {
                let came = String::from_utf8_lossy(&self.unread).into_owned();
                let said = self.stderr()?;
                return Err(LabError::System {
                    what: format!(
                        "waiting for {text:?} from `{}`\n--- stdout\n{came}--- stderr\n{said}--- error",
                        self.line
                    ),
                    error,
                });
            }
        }
    }

    /// Its standard error until now.
    ///
    /// # Errors
    /// When it cannot be read back.
    pub fn stderr(&mut self) -> Result<String, LabError> {
        self.stderr.as_mut().map_or(Ok(String::new()), text)
    }

    /// Ends it now, with its children.
    ///
    /// # Errors
    /// When the system cannot.
    pub fn end(&mut self) -> Result<(), LabError> {
        if self.group_stays {
            self.kill_if_running(Signal::KILL)?;
        } else {
            self.end_group()?;
        }
        // It may have been stopped with its command.
        while self.wait(AWAKE)?.is_none() {
            self.wake()?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), LabError> {
        // A command that has just started may not have entered its group yet. If it stays away from
        // it, Usher's keeper has moved it to another.
        let begin = Instant::now();
        while !self.has_ended()? && !self.group_is_populated()? {
            if begin.elapsed() > PATIENCE {
                self.kill_if_running(Signal::KILL)?;
                break;
            }
            sleep(Duration::from_millis(1));
        }
        cgroup::kill_and_remove(&self.group)
            .attempt(|| format!("cannot remove the cgroup {}", self.group.display()))
    }

    fn group_is_populated(&self) -> Result<bool, LabError> {
        match fs::read_to_string(self.group.join("cgroup.procs")) {
            Ok(processes) => Ok(!processes.is_empty()),
            // Removed with the whole lab.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error).attempt(|| format!("cannot read {}", self.group.display())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("usher-lab: {error}");
        }
    }
}

/// Waits until `descriptor` is readable or at its end; `false` at the deadline.
fn readable(descriptor: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    let ready = retry_on_intr(|| {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        poll(&mut descriptors, Some(&left))
    });
    Ok(ready? > 0)
}

fn read_some(from: &mut impl Read, into: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 4096];
    match from.read(&mut buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            into.extend_from_slice(&buffer[..count]);
            Ok(())
        }
    }
}

/// The end of the first line that contains `text`, its line feed included.
fn end_of_line_with(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let mut begin = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let complete = line.ends_with(b"\n");
        if complete && line.windows(text.len().max(1)).any(|part| part == text) {
            return Some(begin + line.len());
        }
        begin += line.len();
    }
    None
}

/// The only child of a process. `/proc/PID/task/PID/children` is not in every kernel.
fn child_of(parent: u32) -> Result<Option<u32>, LabError> {
    let entries = fs::read_dir("/proc").attempt(|| "cannot list /proc".into())?;
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // Gone meanwhile, so not this one.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        if parent_in(&stat) == Some(parent) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Returns whether the only child of a process has ended and waits to be taken notice of.
fn command_is_over(parent: u32) -> Result<bool, LabError> {
    let Some(child) = child_of(parent)? else {
        return Ok(false);
    };
    // Gone: its parent has taken notice.
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    Ok(stat
        .rsplit_once(')')
        .is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

/// The parent's number in the text of `/proc/PID/stat`: the second word after the name, which is in
/// parentheses and may contain any character.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{end_of_line_with, parent_in};

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("12 (a) b) (c) S 34 12 12 0"), Some(34));
        assert_eq!(parent_in("12"), None);
    }

    #[test]
    fn a_line_counts_when_it_is_complete() {
        assert_eq!(end_of_line_with(b"one\ntwo\nthree\n", b"tw"), Some(8));
        assert_eq!(end_of_line_with(b"one\ntwo", b"tw"), None);
    }
}
