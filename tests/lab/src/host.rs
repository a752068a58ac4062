//! A host: namespaces, accounts, files, commands.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::anchor::Anchor;
use crate::cgroup;
use crate::command::{Command, Output};
use crate::error::{Attempt, LabError};
use crate::network;
use crate::running::Running;

/// A host of a [`crate::Lab`]. A clone is the same host.
#[derive(Debug, Clone)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    number: u8,
    anchor: Arc<Anchor>,
    group: PathBuf,
    binaries: PathBuf,
    commands: AtomicUsize,
}

/// A process of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number inside the host.
    pub pid: u32,
    /// The number of its parent there; 0 if that is outside.
    pub parent: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its program's name, at most 15 bytes.
    pub name: String,
    /// Its arguments, joined by spaces.
    pub command: String,
}

impl Host {
    pub(crate) fn new(
        name: &str,
        number: u8,
        anchor: Arc<Anchor>,
        group: PathBuf,
        binaries: PathBuf,
    ) -> Self {
        Self(Arc::new(Inner {
            name: name.into(),
            number,
            anchor,
            group,
            binaries,
            commands: AtomicUsize::new(0),
        }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its IPv4 address on the lab's network.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        network::ipv4(self.0.number)
    }

    /// Its IPv6 address on the lab's network.
    #[must_use]
    pub fn ipv6(&self) -> Ipv6Addr {
        network::ipv6(self.0.number)
    }

    /// Process id, as seen from outside, of the process that keeps the host's namespaces
    /// (`/proc/PID/ns`).
    #[must_use]
    pub fn anchor(&self) -> u32 {
        self.0.anchor.pid
    }

    /// The host's cgroup, the same path inside and outside.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.0.group
    }

    /// A command in this host; see [`Command`] for its settings.
    pub fn command(&self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
        Command::new(self.clone(), arguments)
    }

    /// Runs a command as root and requires success.
    ///
    /// # Errors
    /// As [`Command::succeed`].
    pub fn run(
        &self,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Output, LabError> {
        self.command(arguments).succeed()
    }

    /// Runs a command as an account of this host and requires success.
    ///
    /// # Errors
    /// As [`Command::succeed`].
    pub fn run_as(
        &self,
        user: &str,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Output, LabError> {
        self.command(arguments).user(user).succeed()
    }

    /// Starts a command as root.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(
        &self,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Running, LabError> {
        self.command(arguments).spawn()
    }

    /// Makes an account with a group of its own and a home folder, as `useradd` does, which takes much
    /// longer. The machine's own accounts stay untouched.
    ///
    /// # Errors
    /// When the host has such an account or home folder, or the system refuses.
    pub fn add_account(&self, name: &str, uid: u32) -> Result<(), LabError> {
        let home = self.path("/home").join(name);
        let add = || {
            let accounts = fs::read_to_string(self.path("/etc/passwd"))?;
            let is_taken = |line: &str| {
                let mut fields = line.split(':');
                fields.next() == Some(name) || fields.nth(1) == Some(uid.to_string().as_str())
            };
            if accounts.lines().any(is_taken) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            for (file, line) in [
                ("group", format!("{name}:x:{uid}:")),
                ("gshadow", format!("{name}:!::")),
                ("shadow", format!("{name}:!:19000:0:99999:7:::")),
                (
                    "passwd",
                    format!("{name}:x:{uid}:{uid}::/home/{name}:/bin/sh"),
                ),
            ] {
                let mut file = match File::options()
                    .append(true)
                    .open(self.path("/etc").join(file))
                {
                    // Not every system has it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && file == "gshadow" => {
                        continue;
                    }
                    result => result?,
                };
                file.write_all(format!("{line}\n").as_bytes())?;
            }
            fs::create_dir(&home)?;
            for entry in fs::read_dir(self.path("/etc/skel"))? {
                let entry = entry?;
                let copy = home.join(entry.file_name());
                fs::copy(entry.path(), &copy)?;
                chown(&copy, Some(uid), Some(uid))?;
            }
            fs::set_permissions(&home, fs::Permissions::from_mode(0o755))?;
            chown(&home, Some(uid), Some(uid))
        };
        add().attempt(|| format!("host {}: cannot make the account {name}", self.name()))
    }

    /// The path of a host's file as seen from outside. A symbolic link in an absolute path would be
    /// followed outside, so name the real path.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let root = PathBuf::from(format!("/proc/{}/root", self.anchor()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Writes a file as root, mode 0644, and the folders above it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Result<(), LabError> {
        self.write_with(path.as_ref(), text.as_ref(), 0o644)
    }

    /// Writes a program as root, mode 0755, and the folders above it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write_program(
        &self,
        path: impl AsRef<Path>,
        text: impl AsRef<[u8]>,
    ) -> Result<(), LabError> {
        self.write_with(path.as_ref(), text.as_ref(), 0o755)
    }

    fn write_with(&self, path: &Path, text: &[u8], mode: u32) -> Result<(), LabError> {
        let outside = self.path(path);
        let write = || {
            if let Some(folder) = outside.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&outside, text)?;
            fs::set_permissions(&outside, fs::Permissions::from_mode(mode))
        };
        write().attempt(|| format!("host {}: cannot write {}", self.name(), path.display()))
    }

    /// Makes an Ed25519 key pair without a passphrase as root, by ssh-keygen; returns the public line.
    ///
    /// # Errors
    /// When ssh-keygen fails, for instance because the file exists.
    pub fn make_key(&self, path: &str) -> Result<String, LabError> {
        self.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path])?;
        self.read(format!("{path}.pub"))
    }

    /// Reads a file as root.
    ///
    /// # Errors
    /// When the system refuses, or it is not UTF-8.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, LabError> {
        fs::read_to_string(self.path(&path)).attempt(|| {
            format!(
                "host {}: cannot read {}",
                self.name(),
                path.as_ref().display()
            )
        })
    }

    /// Replaces a part of a file's text, wherever it occurs.
    ///
    /// # Errors
    /// When the system refuses, or the file has no such part.
    pub fn replace(&self, path: impl AsRef<Path>, part: &str, with: &str) -> Result<(), LabError> {
        let text = self.read(&path)?;
        if !text.contains(part) {
            let path = path.as_ref().display();
            return Err(io::Error::from(io::ErrorKind::NotFound))
                .attempt(|| format!("host {}: no {part:?} in {path}:\n{text}", self.name()));
        }
        self.write(path, text.replace(part, with))
    }

    /// The host's living processes, by number, without those that have ended and wait for their parent.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn processes(&self) -> Result<Vec<Process>, LabError> {
        let folder = self.path("/proc");
        let entries = fs::read_dir(&folder)
            .attempt(|| format!("host {}: cannot list its processes", self.name()))?;
        let mut processes: Vec<_> = entries
            .flatten()
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                // It has ended meanwhile, so it is no process of the host.
                let status = fs::read_to_string(entry.path().join("status")).ok()?;
                let command = fs::read(entry.path().join("cmdline")).ok()?;
                process(pid, &status, &command)
            })
            .collect();
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }

    /// Makes a cgroup for one command.
    pub(crate) fn new_group(&self) -> Result<PathBuf, LabError> {
        let number = self.0.commands.fetch_add(1, Ordering::Relaxed);
        let group = self.0.group.join(format!("command-{number}"));
        cgroup::create(&group)?;
        Ok(group)
    }

    /// The cgroup of the lab's `nsenter` processes.
    pub(crate) fn entering_group(&self) -> PathBuf {
        // A host's group is always in its lab's.
        cgroup::entering(self.0.group.parent().unwrap_or(&self.0.group))
    }

    /// The folder of Usher's programs, as seen from outside.
    pub(crate) fn binaries(&self) -> &Path {
        &self.0.binaries
    }

    /// One of Usher's programs, as seen inside.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf, LabError> {
        let outside = self.0.binaries.join(name);
        if !outside.exists() {
            return Err(LabError::NotBuilt { path: outside });
        }
        Ok(Path::new(crate::command::BINARIES).join(name))
    }
}

/// From `/proc/PID/status` and `/proc/PID/cmdline`.
fn process(pid: u32, status: &str, command: &[u8]) -> Option<Process> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
    };
    if field("State")?.starts_with(['Z', 'X']) {
        return None;
    }
    Some(Process {
        pid,
        parent: field("PPid")?.parse().ok()?,
        uid: field("Uid")?.split('\t').nth(1)?.parse().ok()?,
        name: field("Name")?.into(),
        command: String::from_utf8_lossy(command)
            .trim_end_matches('\0')
            .replace('\0', " "),
    })
}

#[cfg(test)]
mod tests {
    use super::{Process, process};

    #[test]
    fn a_process_is_told_by_its_effective_user() {
        let status = "Name:\timap\nState:\tS (sleeping)\nPid:\t7\nPPid:\t5\nUid:\t1\t2001\t3\t4\n";
        let expected = Process {
            pid: 7,
            parent: 5,
            uid: 2001,
            name: "imap".into(),
            command: "/usr/lib/dovecot/imap -o x".into(),
        };
        assert_eq!(
            process(7, status, b"/usr/lib/dovecot/imap\0-o\0x\0"),
            Some(expected)
        );
        assert_eq!(process(7, "Name:\timap\nState:\tS (sleeping)\n", b""), None);
    }

    #[test]
    fn what_has_ended_is_no_process() {
        let status =
            |state: &str| format!("Name:\timap\nState:\t{state}\nPPid:\t5\nUid:\t1\t1\t1\t1\n");
        assert_eq!(process(7, &status("Z (zombie)"), b""), None);
        assert!(process(7, &status("R (running)"), b"imap\0").is_some());
    }
}
