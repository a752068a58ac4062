//! The two ways of running a command: on this host, and on another by ssh.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use crate::failure::{At, Failure};

/// Limit of what a command prints, in bytes. Another host may be somebody else's than its administrator thinks.
const LONGEST: usize = 1 << 20;

/// Where a command runs.
pub enum Machine {
    /// On this host.
    Here,
    /// On another one.
    There(Ssh),
}

/// A login on another host. Its commands share one connection, so that a password is asked for once.
pub struct Ssh {
    destination: String,
    /// ssh's socket.
    control: PathBuf,
    sudo: bool,
}

impl Ssh {
    /// A login at a destination as ssh takes it. `folder` is for ssh's socket, and closed to other accounts.
    pub fn new(destination: &str, folder: &Path, sudo: bool) -> Self {
        Self {
            destination: destination.into(),
            control: folder.join("ssh"),
            sudo,
        }
    }

    fn command(&self) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-T", "-o", "ControlMaster=auto", "-o", "ControlPersist=60"]);
        ssh.arg("-o")
            .arg(format!("ControlPath={}", self.control.display()));
        ssh.args(["-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15"]);
        ssh
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let mut end = self.command();
        end.args(["-O", "exit", "--", &self.destination]);
        // If this fails, ssh ends by itself a minute later.
        let _ = end
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

impl Machine {
    /// Another host.
    pub fn by_ssh(ssh: Ssh) -> Self {
        Self::There(ssh)
    }

    /// Runs a command as root to its end, with this text as its input, or none.
    ///
    /// # Errors
    /// When the command, or ssh, cannot be started.
    pub fn run(&self, words: &[String], input: Option<&str>) -> Result<Output, Failure> {
        match self {
            Self::Here => {
                let (program, arguments) = words.split_first().expect("a command has a name");
                let mut command = Command::new(program);
                finish(command.args(arguments), program, input)
            }
            Self::There(ssh) => {
                let sudo = ["sudo", "-n"].into_iter().filter(|_| ssh.sudo);
                let words: Vec<&str> = sudo.chain(words.iter().map(String::as_str)).collect();
                ssh_output(ssh, &quoted(&words), input)
            }
        }
    }

    /// The addresses of this host and of the other one, as the other one sees them on ssh's connection
    /// (sshd's SSH_CONNECTION).
    ///
    /// # Errors
    /// When the other host does not report them.
    pub fn addresses(&self) -> Result<(IpAddr, IpAddr), Failure> {
        let Self::There(ssh) = self else {
            return Err(Failure::refused("a host has no connection to itself"));
        };
        // Not by sudo, which takes the variable away.
        let output = ssh_output(ssh, "printenv SSH_CONNECTION", None)?;
        let text = String::from_utf8_lossy(&output.stdout);
        // CLIENT PORT SERVER PORT
        let addresses: Vec<Option<IpAddr>> = text
            .split_whitespace()
            .step_by(2)
            .map(|word| word.parse().ok())
            .collect();
        match addresses[..] {
            [Some(own), Some(server)] => Ok((own.to_canonical(), server.to_canonical())),
            _ => Err(Failure::Refused(format!(
                "the sshd of {} does not say by which addresses it is reached (SSH_CONNECTION={}): give them \
                 by --address and --server-address",
                ssh.destination,
                text.trim()
            ))),
        }
    }

    /// The host's name for people, until its name in the policy is known.
    pub fn destination(&self) -> &str {
        match self {
            Self::Here => "this host",
            Self::There(ssh) => &ssh.destination,
        }
    }
}

/// Words as a shell takes them.
pub fn quoted(words: &[impl AsRef<str>]) -> String {
    // An error: a NUL, which no argument can have.
    shlex::try_join(words.iter().map(AsRef::as_ref)).unwrap_or_default()
}

fn ssh_output(ssh: &Ssh, command: &str, input: Option<&str>) -> Result<Output, Failure> {
    let mut whole = ssh.command();
    finish(whole.args(["--", &ssh.destination, command]), "ssh", input)
}

fn finish(command: &mut Command, program: &str, input: Option<&str>) -> Result<Output, Failure> {
    let piped = input.map_or_else(Stdio::null, |_| Stdio::piped());
    let mut child = command
        .stdin(piped)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at(program)?;
    if let (Some(mut pipe), Some(text)) = (child.stdin.take(), input) {
        // A command that does not read its input says why by its status.
        let _ = pipe.write_all(text.as_bytes());
    }
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let [stdout, stderr] = thread::scope(|scope| {
        let said = scope.spawn(|| stdout.map_or(Ok(Vec::new()), read_limited));
        let told = stderr.map_or(Ok(Vec::new()), read_limited);
        let said = said.join();
        [said.unwrap_or_else(|panic| resume_unwind(panic)), told]
    });
    let status = child.wait().at(program)?;
    let (stdout, stderr) = (stdout.at(program)?, stderr.at(program)?);
    if stdout.len().max(stderr.len()) > LONGEST {
        return Err(Failure::Refused(format!(
            "{program}: the answer is longer than {LONGEST} bytes, which no command of this one's gives: is this \
             the host that you mean?"
        )));
    }
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

/// Reads to the end, or a byte more than an answer may have; then the other end can write no more.
fn read_limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LONGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_an_end_is_refused() {
        let print = |bytes: usize, to: &str| {
            let script = format!("head -c {bytes} /dev/zero {to}");
            Machine::Here.run(&["sh".into(), "-c".into(), script], None)
        };
        for to in ["", ">&2"] {
            let output = print(LONGEST, to).unwrap();
            assert_eq!(output.stdout.len() + output.stderr.len(), LONGEST);
            assert!(output.status.success());
            let refused = print(usize::MAX >> 1, to).unwrap_err().to_string();
            assert!(refused.contains("the answer is longer than"), "{refused}");
        }
    }
}
