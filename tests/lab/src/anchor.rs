//! An anchor is the first process of a set of namespaces and keeps them alive.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::command::{PROGRAM_PATH, temporary};
use crate::error::{Attempt, LabError};

/// Sets up a host's private mounts, accounts and names, then waits for the end of the lab.
///
/// Arguments: name, folder of Usher's programs, archive of its /etc. bash, because as the first
/// process of a PID namespace it also reaps the processes that lose their parents.
const HOST: &str = include_str!("host.bash");

/// Archives what hosts have in common in /etc.
const ETC: &str = concat!(include_str!("archive.bash"), include_str!("etc.bash"));

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
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let sources = sources
            .canonicalize()
            .attempt(|| format!("{}", sources.display()))?;
        Self::start(name, HOST, &[binaries, &archive_of_etc()?, &sources])
    }

    /// Makes the switch's namespaces.
    pub(crate) fn switch() -> Result<Self, LabError> {
        Self::start("switch", SWITCH, &[])
    }

    fn start(name: &str, script: &str, more: &[&Path]) -> Result<Self, LabError> {
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
            .args(more)
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

/// The archive of what hosts have in common in /etc, made for this process's first host: a path that is
/// valid outside of hosts while this process runs.
fn archive_of_etc() -> Result<PathBuf, LabError> {
    static MADE: Mutex<Option<File>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let archive = match made.take() {
        Some(archive) => archive,
        None => {
            let archive = temporary()?;
            let folder = tempfile::tempdir().attempt(|| "cannot make a folder".into())?;
            let output = Command::new("bash")
                .args(["-c", ETC, "bash"])
                .args([folder.path(), &path_of(&archive)])
                .env_clear()
                .env("PATH", PROGRAM_PATH)
                .env("LANG", "C.UTF-8")
                .output()
                .attempt(|| "cannot start bash".into())?;
            if !output.status.success() {
                let reason = String::from_utf8_lossy(&output.stderr);
                return Err(LabError::Etc {
                    reason: reason.trim().into(),
                });
            }
            archive
        }
    };
    let path = path_of(&archive);
    *made = Some(archive);
    Ok(path)
}

/// A path of a file that has no name, or none any longer.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        file.as_raw_fd()
    ))
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
    /// removes the file `vanishing` after its second record.
    fn copy(from: &Path, to: &Path) -> std::process::Output {
        let script = concat!(
            include_str!("archive.bash"),
            "set -eu\narchive_what_is_there \"$1\" \"$3\"\n",
            "unset TAR_OPTIONS\ntar -C \"$2\" --numeric-owner -xpf \"$3\"\n"
        );
        let archive = tempfile::NamedTempFile::new().unwrap();
        let vanishing = from.join("z");
        let options = format!(
            "--sort=name --checkpoint=2 --checkpoint-action=exec=rm\\ -f\\ {}",
            vanishing.display()
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash"])
            .args([from, to, archive.path()]);
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
