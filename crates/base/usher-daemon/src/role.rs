//! A role of Usher: the account and the privileges of its processes, its sockets, its sandbox.

use std::path::Path;

use serde::Serialize;
use usher_system::SystemError;
use usher_system::privileges::Capabilities;
use usher_system::sandbox::{self, Ability};

/// The daemons' sockets, in one folder for each role. `ROLE/control.sock` takes root's requests (0600);
/// `ROLE/numbers.sock` takes no requests, and sends the exporter the daemon's numbers (0600, usher-exporter).
///
/// Owner: root, 0755. Made by: systemd-tmpfiles, or the daemons.
pub const RUNTIME_DIRECTORY: &str = "/run/usher";

/// One role. `systemctl start usher-NAME` starts it, where it has a unit of the system.
#[derive(Debug)]
pub struct Role {
    /// The role's name, also of its unit, its identifier in the journal, and the folder with its sockets.
    pub name: &'static str,
    /// The account that the role runs as; none: the account of the user who starts it.
    pub account: Option<&'static str>,
    /// The duty of a host that the role serves.
    pub duty: Duty,
    /// The purpose that fails on a host without the role.
    pub needed_for: &'static str,
    /// Whether a host with that duty needs the role.
    pub required: bool,
    /// The role's sockets for other processes, besides its control socket.
    pub sockets: &'static [Socket],
    /// The capabilities that the role holds after its start.
    pub capabilities: Capabilities,
    /// Further capabilities of programs that the role executes as root.
    pub passes_on: Capabilities,
    /// The role's confinement after its start; none: it is not confined.
    pub sandbox: Option<Sandbox>,
    /// Names of the requests that the role answers on its control socket; none: it has no such socket.
    pub answers: &'static [&'static str],
    /// Largest answer that the command line accepts from the role, in bytes.
    pub largest_answer: usize,
}

/// A duty of a host, by the name that its system chooses. A host may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Duty(pub &'static str);

/// A packet socket of a role.
#[derive(Debug, Clone, Copy)]
pub struct Socket {
    /// The socket's path.
    pub path: &'static str,
    /// The processes that may connect.
    pub connectors: Connectors,
}

/// Processes that may connect to a socket, besides root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connectors {
    /// This account.
    Account(&'static str),
    /// Every process of this host.
    Everybody,
    /// Every process of this host; each packet names the process that sent it.
    Processes,
}

/// The confinement of a role.
#[derive(Debug, Clone, Copy)]
pub struct Sandbox {
    /// The abilities that seccomp permits, besides those of every confined role.
    pub abilities: &'static [Ability],
    /// Folders below which the role may read, by Landlock.
    pub reads: &'static [&'static str],
    /// Folders below which the role may read and write, by Landlock.
    pub writes: &'static [&'static str],
}

/// A type that stands for a role.
pub trait HasRole: Send + Sync + 'static {
    /// The role's line of the table.
    const ROLE: &'static Role;
}

impl Socket {
    /// A socket to which these processes may connect.
    #[must_use]
    pub const fn new(path: &'static str, connectors: Connectors) -> Self {
        Self { path, connectors }
    }

    /// A socket to which this account may connect.
    #[must_use]
    pub const fn of_account(path: &'static str, account: &'static str) -> Self {
        Self::new(path, Connectors::Account(account))
    }
}

impl Role {
    /// The role's control socket.
    #[must_use]
    pub fn control_socket(&self) -> String {
        format!("{}/{}/control.sock", RUNTIME_DIRECTORY, self.name)
    }

    /// The socket from which the account that watches the host reads the daemon's numbers.
    #[must_use]
    pub fn numbers_socket(&self) -> String {
        format!("{}/{}/numbers.sock", RUNTIME_DIRECTORY, self.name)
    }

    /// Whether the role answers requests on a control socket.
    #[must_use]
    pub fn is_daemon(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The role's own system account; none: the role runs as root, or as a user.
    #[must_use]
    pub fn own_account(&self) -> Option<&'static str> {
        self.account.filter(|account| *account != "root")
    }
}

impl Sandbox {
    /// Confines this process for good. Call it while the process has one thread.
    ///
    /// # Errors
    /// When the kernel has a filter and refuses it. A kernel without Landlock is no error; the log
    /// says so.
    pub fn enter(&self) -> Result<(), SystemError> {
        let paths = |paths: &'static [&'static str]| -> Vec<&Path> {
            paths.iter().map(Path::new).collect()
        };
        let status = sandbox::landlock(&paths(self.reads), &paths(self.writes))?;
        tracing::info!(?status, "file access confined");
        sandbox::seccomp(self.abilities)
    }
}
