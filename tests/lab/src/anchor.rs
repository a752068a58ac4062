//! An anchor is the first process of a set of namespaces and keeps them alive.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::command::PROGRAM_PATH;
use crate::error::{Attempt, LabError};

/// Sets up a host's private mounts, accounts and names, then waits for the end of the lab.
///
/// Arguments: name, folder of Usher's programs. bash, because as the first process of a PID
/// namespace it also reaps the processes that lose their parents.
const HOST: &str = concat!(include_str!("copy.bash"), include_str!("host.bash"));

/// The switch has only a network namespace.
const SWITCH: &str = include_str!("switch.bash");

/// A set of namespaces. Ends with the value, or with the lab's process.
#[derive(Debug)]
pub(crate) struct Anchor {
    /// Process id of the first process, as seen from outside.
    pub(crate) pid: u32,
    /// `unshare`, which waits for the first process.
    unshare: Mutex<Option<(Child, ChildStdin)>>,
}

impl Anchor {
    /// Makes the namespaces of a host.
    pub(crate) fn host(name: &str, binaries: &Path) -> Result<Self, LabError> {
        Self::start(name, HOST, binaries)
    }

    /// Makes the switch's namespaces.
    pub(crate) fn switch() -> Result<Self, LabError> {
        Self::start("switch", SWITCH, Path::new("/"))
    }

    fn start(name: &str, script: &str, binaries: &Path) -> Result<Self, LabError> {
        let mut unshare = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--pid",
                "--uts",
                "--ipc",
                "--fork",
                "--kill-child",
            ])
            .args(["bash", "-c", script, "bash", name])
            .arg(binaries)
            .env_clear()
            .env("PATH", PROGRAM_PATH)
            .env("LANG", "C.UTF-8")
            // The life line: the script reads it to its end, which comes when this process exits.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C goes to the lab's process, which then removes everything in order.
            .process_group(0)
            .spawn()
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => LabError::NoProgram {
                    program: "unshare".into(),
                },
                _ => LabError::System {
                    what: "cannot start unshare".into(),
                    error,
                },
            })?;
        let (Some(life_line), Some(stdout), Some(mut stderr)) = (
            unshare.stdin.take(),
            unshare.stdout.take(),
            unshare.stderr.take(),
        ) else {
            unreachable!("all three were asked for as pipes");
        };
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .attempt(|| format!("cannot read from the anchor of {name}"))?;
        match line.trim().parse() {
            Ok(pid) => Ok(Self {
                pid,
                unshare: Mutex::new(Some((unshare, life_line))),
            }),
            Err(_) => {
                drop(life_line);
                let mut reason = String::new();
                stderr
                    .read_to_string(&mut reason)
                    .attempt(|| format!("cannot read from the anchor of {name}"))?;
                unshare
                    .wait()
                    .attempt(|| "cannot wait for unshare".into())?;
                Err(LabError::Anchor {
                    host: name.into(),
                    reason: reason.trim().into(),
                })
            }
        }
    }

    /// Ends the first process, and with it every process of its PID namespace; returns when they
    /// are gone. A second call does nothing.
    pub(crate) fn end(&self) -> std::io::Result<()> {
        let held = self
            .unshare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((mut unshare, life_line)) = held {
            drop(life_line);
            unshare.wait()?;
        }
        Ok(())
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("usher-lab: cannot end the anchor {}: {error}", self.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    /// Copies a folder in the way a host's `/etc` is copied. tar reads in the order of the names, and
    /// removes the file `vanishing` after its second record. The tar that extracts does so too, before
    /// it reads its second record: not earlier than the other one has listed the folder.
    fn copy(from: &Path, to: &Path) -> std::process::Output {
        let script = concat!(
            include_str!("copy.bash"),
            "set -eu\ncopy_what_is_there \"$1\" \"$2\"\n"
        );
        let vanishing = from.join("z");
        let options = format!(
            "--sort=name --checkpoint=2 --checkpoint-action=exec=rm\\ -f\\ {}",
            vanishing.display()
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash"]).args([from, to]);
        bash.env("LANG", "C").env("TAR_OPTIONS", options);
        bash.output().expect("bash runs")
    }

    #[test]
    fn a_file_that_goes_while_etc_is_copied_is_left_out() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // More than tar's first two records, so that the file is listed but not yet read when it vanishes.
        fs::write(from.path().join("a"), [b'a'; 1 << 17]).unwrap();
        fs::write(from.path().join("z"), "lock").unwrap();
        let copied = copy(from.path(), to.path());
        let told = String::from_utf8_lossy(&copied.stderr);
        assert!(copied.status.success(), "{told}");
        assert!(
            told.contains("./z: File removed before we read it"),
            "{told}"
        );
        assert_eq!(fs::read(to.path().join("a")).unwrap(), [b'a'; 1 << 17]);
        assert!(!to.path().join("z").exists());
        assert!(
            !copy(from.path(), &to.path().join("missing"))
                .status
                .success()
        );
        assert!(
            !copy(&from.path().join("missing"), to.path())
                .status
                .success()
        );
    }
}
