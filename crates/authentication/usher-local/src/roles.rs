//! The roles of Usher's processes, in one table: the account and the privileges of each, its sockets,
//! its sandbox, and the requests that it answers. The daemons, the command line, `usher init`, `usher
//! doctor` and the units' test all read it.
//!
//! A request that a role does not answer cannot be written:
//!
//! ```
//! use usher_local::{control, roles};
//! let answer = control::ask(roles::Recorder, &control::Status {});
//! ```
//! ```compile_fail,E0277
//! use usher_local::{control, roles};
//! let answer = control::ask(roles::Recorder, &control::Who {});
//! ```

use std::path::Path;

use serde::Serialize;
use usher_system::SystemError;
use usher_system::privileges::Capabilities;
use usher_system::sandbox::{self, Profile};

use crate::control::{
    Agents, AnsweredBy, Disable, Enable, Recent, Reload, Request, Status, Troubles, Who, WouldEnd,
};
use crate::paths;

/// One role. `systemctl start usher-NAME` starts it, where it has a unit of the system.
#[derive(Debug)]
pub struct Role {
    /// Its name: of the unit, of the identifier in the journal, of the folder with its sockets.
    pub name: &'static str,
    /// The account that it runs as; none: that of the user who starts it.
    pub account: Option<&'static str>,
    /// The side of a connection that it serves.
    pub side: Side,
    /// What fails on a host where it does not run.
    pub needed_for: &'static str,
    /// Whether a host of that side needs it.
    pub required: bool,
    /// Where other processes reach it, besides its control socket.
    pub sockets: &'static [Socket],
    /// The capabilities that it holds after its start.
    pub capabilities: Capabilities,
    /// The capabilities that programs which it executes as root have besides.
    pub passes_on: Capabilities,
    /// Its confinement after its start; none: it is not confined.
    pub sandbox: Option<Sandbox>,
    /// Names of the requests that it answers on its control socket; none: it has no such socket.
    pub answers: &'static [&'static str],
    /// Largest answer that the command line takes of it, in bytes.
    pub largest_answer: usize,
}

/// A side of a connection. One host may have both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Side {
    /// The host offers services.
    #[serde(rename = "offers")]
    Server,
    /// Users of the host reach services of other hosts.
    #[serde(rename = "reaches")]
    Client,
}

/// A packet socket of a role.
#[derive(Debug, Clone, Copy)]
pub struct Socket {
    /// Its path.
    pub path: &'static str,
    /// Who may connect.
    pub connectors: Connectors,
}

/// Who may connect to a socket, besides root.
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
    /// The system calls that it may make, by seccomp.
    pub profile: Profile,
    /// Folders below which it may read, by Landlock.
    pub reads: &'static [&'static str],
    /// Folders below which it may read and write, by Landlock.
    pub writes: &'static [&'static str],
}

/// The account database and its modules, besides the state of Usher.
const ACCOUNTS_AND_STATE: &[&str] = &[paths::STATE_DIRECTORY, "/etc", "/usr", "/lib"];

/// The capabilities that starting workers takes, and ending them.
const STARTING: Capabilities = Capabilities::SETUID
    .union(Capabilities::SETGID)
    .union(Capabilities::KILL);

/// The defaults of roles of a host that offers services.
const SERVER: Role = Role {
    name: "",
    account: Some("root"),
    side: Side::Server,
    needed_for: "offering services to users of other hosts",
    required: true,
    sockets: &[],
    capabilities: Capabilities::empty(),
    passes_on: Capabilities::empty(),
    sandbox: None,
    answers: &[],
    largest_answer: 4 << 20,
};

/// The defaults of roles of a host whose users reach services of other hosts.
const CLIENT: Role = Role {
    side: Side::Client,
    needed_for: "users of this host to reach services of other hosts",
    ..SERVER
};

/// A type that stands for a role.
pub trait HasRole: Send + Sync + 'static {
    /// The role's line of the table.
    const ROLE: &'static Role;
}

macro_rules! roles {
    ($($(#[$doc:meta])* $type:ident answers [$($request:ident),*] {
        $($field:ident: $value:expr,)*
        ..$defaults:ident
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub struct $type;

            impl HasRole for $type {
                const ROLE: &'static Role = &Role {
                    $($field: $value,)*
                    answers: &[$($request::NAME),*],
                    ..$defaults
                };
            }

            $(impl AnsweredBy<$type> for $request {})*

            impl<D> crate::control_server::Serves<D> for $type
            where
                D: Send + Sync + 'static $(+ crate::control_server::Answers<$request>)*,
            {
                async fn serve(
                    _daemon: &D,
                    asked: crate::control_server::Asked<'_>,
                ) -> std::io::Result<()> {
                    $(if asked.is::<$request>() {
                        return asked.answer::<$request>(_daemon).await;
                    })*
                    asked.refuse(Self::ROLE).await
                }
            }
        )*

        /// All roles. A configuration is put in force in this order: the keeper ends what is no
        /// longer permitted, and waits for no other daemon.
        pub const ROLES: &[&Role] = &[$($type::ROLE),*];
    };
}

roles! {
    /// Owns the admission tables, the listeners and the workers.
    Keeper answers [Status, Reload, Disable, Enable, Who, Recent, Troubles, WouldEnd] {
        name: "keeper",
        sockets: &[
            Socket::of_account(paths::KEEPER_RECORDS, "usher-verifier"),
            Socket::new(paths::KEEPER_CALLS, Connectors::Processes),
            Socket::of_account(paths::KEEPER_HOST_KEY, "usher-verifier"),
        ],
        // Tables, and destroying connections (BPF, NET_ADMIN); listeners on ports below 1024
        // (NET_BIND_SERVICE); starting workers as their users (SETUID, SETGID) without any
        // capability (SETPCAP), and ending them (KILL).
        capabilities: Capabilities::BPF
            .union(Capabilities::NET_ADMIN)
            .union(Capabilities::NET_BIND_SERVICE)
            .union(Capabilities::SETPCAP)
            .union(STARTING),
        // usher-pam: libpam's records of the audit (AUDIT_WRITE), limits and priorities of sessions
        // (SYS_RESOURCE, SYS_NICE: pam_limits), folders that become the users' (CHOWN, FOWNER:
        // pam_mkhomedir).
        passes_on: Capabilities::AUDIT_WRITE
            .union(Capabilities::CHOWN)
            .union(Capabilities::FOWNER)
            .union(Capabilities::SYS_NICE)
            .union(Capabilities::SYS_RESOURCE),
        // It may list a million sessions.
        largest_answer: 1 << 30,
        ..SERVER
    }

    /// Starts the keeper's workers. The keeper starts it.
    Starter answers [] {
        name: "starter",
        capabilities: STARTING,
        ..SERVER
    }

    /// Holds the control group of the users' processes while no keeper runs.
    Workers answers [] {
        name: "workers",
        ..SERVER
    }

    /// Speaks to other hosts and checks what they send.
    Verifier answers [Status, Reload, Disable, Enable] {
        name: "verifier",
        account: Some("usher-verifier"),
        sandbox: Some(Sandbox {
            profile: Profile::Verifier,
            reads: &[paths::STATE_DIRECTORY],
            writes: &["/run/usher/keeper"],
        }),
        ..SERVER
    }

    /// Keeps what clients have signed, in the log.
    Recorder answers [Status] {
        name: "recorder",
        account: Some("usher-recorder"),
        sockets: &[Socket::of_account(paths::RECORDER, "root")],
        sandbox: Some(Sandbox {
            profile: Profile::Recorder,
            reads: &[],
            writes: &[paths::LOG_DIRECTORY],
        }),
        ..SERVER
    }

    /// Keeps the users' keys and signs for them.
    Signer answers [Status, Reload, Disable, Enable, Agents] {
        name: "signer",
        account: Some("usher-signer"),
        sockets: &[
            Socket::new(paths::SIGNER_APPLICATIONS, Connectors::Everybody),
            Socket::of_account(paths::SIGNER_RELAY, "usher-courier"),
            Socket::of_account(paths::SIGNER_HOST_KEY, "usher-courier"),
        ],
        sandbox: Some(Sandbox {
            profile: Profile::Signer,
            reads: ACCOUNTS_AND_STATE,
            writes: &[],
        }),
        ..CLIENT
    }

    /// Carries the signer's messages to other hosts.
    Courier answers [Status] {
        name: "courier",
        account: Some("usher-courier"),
        sandbox: Some(Sandbox {
            profile: Profile::Courier,
            reads: &[],
            writes: &["/run/usher/signer"],
        }),
        ..CLIENT
    }

    /// Serves unmodified programs at local addresses.
    Proxy answers [Status, Reload] {
        name: "proxy",
        account: Some("usher-proxy"),
        needed_for: "unmodified programs of this host to reach services of other hosts",
        required: false,
        // A new policy may add addresses with ports below 1024.
        capabilities: Capabilities::NET_BIND_SERVICE,
        sandbox: Some(Sandbox {
            profile: Profile::Proxy,
            reads: ACCOUNTS_AND_STATE,
            writes: &[],
        }),
        ..CLIENT
    }

    /// Lets a user's ssh-agent sign for the signer.
    Agent answers [] {
        name: "agent",
        account: None,
        required: false,
        ..CLIENT
    }
}

impl Socket {
    const fn new(path: &'static str, connectors: Connectors) -> Self {
        Self { path, connectors }
    }

    const fn of_account(path: &'static str, account: &'static str) -> Self {
        Self::new(path, Connectors::Account(account))
    }
}

impl Role {
    /// Its control socket.
    #[must_use]
    pub fn control_socket(&self) -> String {
        format!("{}/{}/control.sock", paths::RUNTIME_DIRECTORY, self.name)
    }

    /// Whether it answers requests on a control socket.
    #[must_use]
    pub fn is_daemon(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The system account of its own; none: it runs as root, or as a user.
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
        sandbox::seccomp(self.profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_accounts_and_sockets_belong_to_one_role_each() {
        let names = ROLES.iter().map(|role| role.name);
        let accounts = ROLES.iter().filter_map(|role| role.own_account());
        let sockets = ROLES.iter().flat_map(|role| role.sockets);
        let mut all: Vec<&str> = names
            .chain(accounts)
            .chain(sockets.map(|socket| socket.path))
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn sockets_are_in_their_roles_folders_and_open_to_known_accounts() {
        for role in ROLES {
            for socket in role.sockets {
                let folder = format!("{}/{}/", paths::RUNTIME_DIRECTORY, role.name);
                assert!(socket.path.starts_with(&folder), "{socket:?}");
                if let Connectors::Account(account) = socket.connectors {
                    let known = ROLES.iter().any(|role| role.account == Some(account));
                    assert!(known, "{socket:?}");
                }
            }
        }
    }

    #[test]
    fn every_daemon_answers_status_and_the_keeper_reloads_first() {
        for role in ROLES.iter().filter(|role| role.is_daemon()) {
            assert!(role.answers.contains(&Status::NAME), "{}", role.name);
        }
        let reload = ROLES
            .iter()
            .filter(|role| role.answers.contains(&Reload::NAME));
        let names: Vec<_> = reload.map(|role| role.name).collect();
        assert_eq!(names, ["keeper", "verifier", "signer", "proxy"]);
    }
}
