//! Commands inside a host.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};

use crate::cgroup;
use crate::error::{Attempt, LabError};
use crate::host::Host;
use crate::running::Running;
use crate::waiting::PATIENCE;

/// The search path for the lab's own tools (`unshare`, `nsenter`, `ip`).
pub(crate) const PROGRAM_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder of Usher's programs, as seen inside a host.
pub(crate) const BINARIES: &str = "/run/lab/bin";

/// Runs inside the host before the command, in the process that becomes the command: enters the
/// command's cgroup, and sets the owner of passed descriptors (`sd_listen_fds(3)`), which only
/// this process knows.
///
/// nsenter stays outside that cgroup, because it has to outlive the processes killed there: it is
/// their parent, and a PID namespace is gone only when every process of it has been waited for.
/// Otherwise the machine's first process would have to do that, which may be slow at it or, in a
/// container, never do it.
const BEGIN: &str = r#"
echo $$ >"$1/cgroup.procs" || exit 125
cd "$2" 2>/dev/null || cd /
shift 2
if [ -n "${LISTEN_FDS-}" ]; then export LISTEN_PID=$$; fi
exec "$@"
"#;

/// The result of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The time from its start to its end, including entering the namespaces.
    pub elapsed: Duration,
}

/// A command in a host, to be run to its end or started. It gets a new environment: `PATH`, `HOME`,
/// `USER`, `LOGNAME`, `SHELL`, `LANG`, and of the lab's own environment only `USHER_LOG` and
/// `RUST_BACKTRACE`. It runs in the user's home folder.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until it is run or started"]
pub struct Command {
    host: Host,
    arguments: Vec<OsString>,
    user: Option<String>,
    environment: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    limit: Duration,
}

/// A process's streams and further descriptors.
pub(crate) struct Streams {
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    /// Become descriptors 3, 4, ...
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Command {
    pub(crate) fn new(host: Host, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        Self {
            host,
            arguments: owned(arguments).collect(),
            user: None,
            environment: Vec::new(),
            input: Vec::new(),
            limit: PATIENCE,
        }
    }

    /// Runs it as this account of the host, with its groups; as root otherwise.
    pub fn user(mut self, name: &str) -> Self {
        self.user = Some(name.to_owned());
        self
    }

    /// Adds this variable to its environment.
    pub fn environment(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Puts this on its standard input, for [`Command::run`]; empty otherwise.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Sets its time limit, for [`Command::run`]; [`PATIENCE`] otherwise.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end, whatever its exit status.
    ///
    /// # Errors
    /// [`LabError::TimedOut`] when it takes too long: it is then killed, with its children. An
    /// exit status other than 0 is no error here.
    pub fn run(&self) -> Result<Output, LabError> {
        let mut stdin = temporary()?;
        stdin
            .write_all(&self.input)
            .and_then(|()| stdin.rewind())
            .attempt(|| "cannot write a command's input".into())?;
        let (mut stdout, mut stderr) = (temporary()?, temporary()?);
        let group = self.host.new_group()?;
        let begin = Instant::now();
        let mut running = self.start(
            group,
            Streams {
                stdin: stdin.into(),
                stdout: duplicate(&stdout)?.into(),
                stderr: duplicate(&stderr)?.into(),
                descriptors: Vec::new(),
            },
        )?;
        let ended = running.wait(self.limit)?;
        let elapsed = begin.elapsed();
        if ended.is_none() {
            running.end()?;
        }
        let (stdout, stderr) = (text(&mut stdout)?, text(&mut stderr)?);
        match ended {
            Some(status) => Ok(Output {
                status,
                stdout,
                stderr,
                elapsed,
            }),
            None => Err(LabError::TimedOut {
                host: self.host.name().into(),
                command: self.line(),
                limit: self.limit,
                stdout,
                stderr,
            }),
        }
    }

    /// Runs it to its end and requires success.
    ///
    /// # Errors
    /// [`LabError::Failed`] with its output, when its exit status is not 0; and as
    /// [`Command::run`].
    pub fn succeed(&self) -> Result<Output, LabError> {
        let output = self.run()?;
        if output.status.success() {
            return Ok(output);
        }
        Err(LabError::Failed {
            host: self.host.name().into(),
            command: self.line(),
            status: output.status,
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }

    /// Starts it with pipes to its standard input and output. Dropping the returned value kills it,
    /// with its children.
    ///
    /// # Errors
    /// When it cannot be started. A missing program inside the host shows as exit status 127.
    pub fn spawn(&self) -> Result<Running, LabError> {
        let stderr = temporary()?;
        let streams = Streams {
            stdin: Stdio::piped(),
            stdout: Stdio::piped(),
            stderr: duplicate(&stderr)?.into(),
            descriptors: Vec::new(),
        };
        let mut running = self.start(self.host.new_group()?, streams)?;
        running.keep_stderr(stderr);
        Ok(running)
    }

    /// Starts it in the cgroup `group`, which exists.
    pub(crate) fn start(&self, group: PathBuf, streams: Streams) -> Result<Running, LabError> {
        let mut command = std::process::Command::new("nsenter");
        command.args(["--target", &self.host.anchor().to_string(), "--all", "--"]);
        command.args(["sh", "-c", BEGIN, "sh"]).arg(&group);
        let (user, home, shell) = match self.user.as_deref() {
            None => ("root", PathBuf::from("/root"), "/bin/bash"),
            Some(user) => (user, Path::new("/home").join(user), "/bin/sh"),
        };
        command.arg(&home);
        if self.user.is_some() {
            command.args([
                "setpriv",
                "--reuid",
                user,
                "--regid",
                user,
                "--init-groups",
                "--",
            ]);
        }
        command.args(&self.arguments);

        command
            .env_clear()
            .env("PATH", format!("{BINARIES}:{PROGRAM_PATH}"));
        for name in ["USHER_LOG", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("LANG", "C.UTF-8")
            .env("HOME", &home)
            .env("SHELL", shell);
        command.env("USER", user).env("LOGNAME", user);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));

        command
            .stdin(streams.stdin)
            .stdout(streams.stdout)
            .stderr(streams.stderr);
        // Ctrl-C goes to the lab's process, which then removes everything in order.
        command.process_group(0);
        let mappings = (3..)
            .zip(streams.descriptors)
            .map(|(child_fd, parent_fd)| FdMapping {
                parent_fd,
                child_fd,
            })
            .collect();
        command
            .fd_mappings(mappings)
            .map_err(|error| LabError::System {
                what: "cannot pass descriptors".into(),
                error: std::io::Error::other(error),
            })?;
        let mut child = command.spawn().attempt(|| "cannot start nsenter".into())?;
        // A lab's removal waits for the end of its `nsenter` processes, so they have a group.
        if let Err(error) = cgroup::enter(&self.host.entering_group(), child.id()) {
            // Nobody would wait for it.
            let ended = child.kill().and_then(|()| child.wait());
            ended.attempt(|| "cannot end nsenter".into())?;
            return Err(error);
        }
        Ok(Running::new(self.host.clone(), self.line(), child, group))
    }

    /// The command line, for people.
    pub(crate) fn line(&self) -> String {
        let words: Vec<_> = self
            .arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        words.join(" ")
    }
}

/// Words of a command line.
pub(crate) fn owned(
    words: impl IntoIterator<Item: AsRef<OsStr>>,
) -> impl Iterator<Item = OsString> {
    let words = words.into_iter();
    words.map(|word| word.as_ref().to_owned())
}

/// A file without a name.
pub(crate) fn temporary() -> Result<File, LabError> {
    tempfile::tempfile().attempt(|| "cannot make a temporary file".into())
}

fn duplicate(file: &File) -> Result<File, LabError> {
    file.try_clone()
        .attempt(|| "cannot duplicate a descriptor".into())
}

/// Reads a whole file that another process wrote.
pub(crate) fn text(file: &mut File) -> Result<String, LabError> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .attempt(|| "cannot read a command's output".into())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
