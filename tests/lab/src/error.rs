//! Errors of the lab.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An operation of the lab failed. The texts carry everything that a failed test should show.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Namespaces, mounts and cgroups need root.
    #[error("a lab needs root: run this as root")]
    NotRoot,
    /// No cgroup v2 hierarchy.
    #[error("no cgroup2 file system is mounted (looked in /proc/self/mounts)")]
    NoCgroup,
    /// A program of the lab is missing.
    #[error("{program} is missing: run scripts/setup")]
    NoProgram {
        /// Its name.
        program: String,
    },
    /// The lab has no settings for this dovecot.
    #[error("dovecot is 2.3 or 2.4 here, not {version}: tests/lab/src/dovecot.rs")]
    Dovecot {
        /// What `dovecot --version` prints.
        version: String,
    },
    /// One of Usher's own programs has not been built.
    #[error("{} is missing: build it with `make build`", .path.display())]
    NotBuilt {
        /// Its expected path.
        path: PathBuf,
    },
    /// A name that cannot be a host's.
    #[error(
        "{name:?} cannot be a host's name here: [a-z][a-z0-9-]*, at most 63 characters, once a lab"
    )]
    HostName {
        /// The name.
        name: String,
    },
    /// The lab has been removed (by [`crate::Remover`]).
    #[error("the lab has been removed")]
    Removed,
    /// A system call or file operation failed.
    #[error("{what}: {error}")]
    System {
        /// The attempted operation.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// A host's namespaces could not be set up.
    #[error("host {host}: cannot set up its namespaces: {reason}")]
    Anchor {
        /// The host.
        host: String,
        /// The message of its first process.
        reason: String,
    },
    /// The machine's /etc cannot be read.
    #[error("cannot archive /etc for hosts: {reason}")]
    Etc {
        /// The message of the program that reads it.
        reason: String,
    },
    /// A host's interface does not come up.
    #[error("host {host}: {reason}")]
    Link {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// A command ended with an error.
    #[error(
        "host {host}: `{command}` ended with {status}\n--- stdout\n{stdout}--- stderr\n{stderr}"
    )]
    Failed {
        /// The host.
        host: String,
        /// The command line.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
    },
    /// A command took too long and was killed, with everything it had started.
    #[error(
        "host {host}: `{command}` took longer than {limit:?}\n--- stdout\n{stdout}--- stderr\n{stderr}"
    )]
    TimedOut {
        /// The host.
        host: String,
        /// The command line.
        command: String,
        /// Its time limit.
        limit: Duration,
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
    },
    /// A daemon did not become ready.
    #[error("host {host}: {daemon} {reason}\n--- log\n{log}")]
    NotReady {
        /// The host.
        host: String,
        /// The daemon.
        daemon: String,
        /// It ended, or was not ready in time.
        reason: String,
        /// Its log.
        log: String,
    },
    /// A daemon or command is not running.
    #[error("host {host}: {what} is not running")]
    NotRunning {
        /// The host.
        host: String,
        /// Its name.
        what: String,
    },
}

/// Adds the attempted operation to a system error.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Attempt<T> for Result<T, E> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|error| LabError::System {
            what: what(),
            error: error.into(),
        })
    }
}
