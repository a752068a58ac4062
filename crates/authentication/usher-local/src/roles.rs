//! The roles of Usher's processes, in one table: the account and the privileges of each, its sockets,
//! its sandbox, and the requests that it answers. The daemons, the command line, `usher init`, `usher
//! doctor` and the units' test all read it.
//!
//! A request that a role does not answer cannot be written:
//!
//! ```
//! use usher_daemon::control;
//! use usher_local::roles;
//! let answer = control::ask_daemon(roles::Recorder, &control::Status {});
//! ```
//! ```compile_fail,E0277
//! use usher_daemon::control;
//! use usher_local::{requests, roles};
//! let answer = control::ask_daemon(roles::Recorder, &requests::Who {});
//! ```

use usher_system::privileges::Capabilities;
use usher_system::sandbox::{Ability, NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_XFRM};

use crate::paths;
use crate::requests::{
    Agents, Disable, Enable, Failures, Mac, MacLoad, MacLook, MacRefusals, MacUnload, Peers,
    Prepare, Protection, Recent, Reload, Sockets, Troubles, Who, WouldEnd,
};
use usher_daemon::control::Status;
use usher_daemon::role::{Connectors, Duty, Role, Sandbox, Socket};

/// The host offers services.
pub const OFFERS: Duty = Duty("offers");

/// Users of the host reach services of other hosts.
pub const REACHES: Duty = Duty("reaches");

/// The traffic of programs of the host is protected by IPsec.
pub const PROTECTS: Duty = Duty("protects");

/// Modules of mandatory access control decide on the host.
pub const CONFINES: Duty = Duty("confines");

/// The host is watched: its numbers are exported.
pub const WATCHES: Duty = Duty("watches");

/// The account database and its modules, besides the state of Usher.
const ACCOUNTS_AND_STATE: &[&str] = &[paths::STATE_DIRECTORY, "/etc", "/usr", "/lib"];

/// The files that the C library reads to look up names of hosts: its configuration and its modules.
/// The first is often a link to the file of the program that manages the network.
const NAME_SERVICE: &[&str] = &[
    "/etc",
    "/usr",
    "/lib",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
];

/// The capabilities that starting workers takes, and ending them.
const STARTING: Capabilities = Capabilities::SETUID
    .union(Capabilities::SETGID)
    .union(Capabilities::KILL);

/// The defaults of roles of a host that offers services.
const SERVER: Role = Role {
    name: "",
    account: Some("root"),
    duty: OFFERS,
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
    duty: REACHES,
    needed_for: "users of this host to reach services of other hosts",
    ..SERVER
};

// A configuration is put in force in this order: the keeper ends what is no longer permitted, and waits
// for no other daemon.
usher_daemon::roles! {
    /// Owns the admission tables, the listeners and the workers.
    Keeper answers [Status, Prepare, Reload, Disable, Enable, Who, Recent, Troubles, WouldEnd] {
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
        // An answer may list a million sessions.
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
    Verifier answers [Status, Prepare, Reload, Disable, Enable] {
        name: "verifier",
        account: Some("usher-verifier"),
        sandbox: Some(Sandbox {
            // The verifier's listener exists before its sandbox does, and the verifier never connects out.
            abilities: &[],
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
            abilities: &[Ability::WriteFiles],
            reads: &[],
            writes: &[paths::LOG_DIRECTORY],
        }),
        ..SERVER
    }

    /// Keeps the users' keys and signs for them.
    Signer answers [Status, Prepare, Reload, Disable, Enable, Agents, Failures] {
        name: "signer",
        account: Some("usher-signer"),
        sockets: &[
            Socket::new(paths::SIGNER_APPLICATIONS, Connectors::Everybody),
            Socket::of_account(paths::SIGNER_RELAY, "usher-courier"),
            Socket::of_account(paths::SIGNER_HOST_KEY, "usher-courier"),
        ],
        sandbox: Some(Sandbox {
            // The signer asks for routes (datagram sockets) and for the owners of connections, and serves the
            // maps of the ticket programs. The only program that it can run identifies files.
            abilities: &[
                Ability::Datagrams,
                Ability::Netlink(NETLINK_SOCK_DIAG),
                Ability::HeldBpf,
            ],
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
            abilities: &[Ability::Tcp],
            reads: &[],
            writes: &["/run/usher/signer"],
        }),
        ..CLIENT
    }

    /// Serves unmodified programs at local addresses.
    Proxy answers [Status, Prepare, Reload] {
        name: "proxy",
        account: Some("usher-proxy"),
        needed_for: "unmodified programs of this host to reach services of other hosts",
        required: false,
        // A new policy may add addresses with ports below 1024.
        capabilities: Capabilities::NET_BIND_SERVICE,
        sandbox: Some(Sandbox {
            // A new policy may assign addresses to the proxy. The proxy asks for the owners of connections.
            abilities: &[
                Ability::Tcp,
                Ability::Listen,
                Ability::Splice,
                Ability::Netlink(NETLINK_SOCK_DIAG),
            ],
            reads: ACCOUNTS_AND_STATE,
            writes: &[],
        }),
        ..CLIENT
    }

    /// Protects the traffic of programs by IPsec.
    Protector answers [Status, Prepare, Reload, Protection, Sockets, Peers] {
        name: "protector",
        duty: PROTECTS,
        needed_for: "protecting the traffic of programs and services as the policy says",
        // The SPD, sysctls of the network, socket marks (NET_ADMIN); the programs that mark and check
        // packets (BPF), one of which reads the executable of a process (PERFMON).
        capabilities: Capabilities::BPF
            .union(Capabilities::NET_ADMIN)
            .union(Capabilities::PERFMON),
        sandbox: Some(Sandbox {
            // A new policy may be the first that has programs to load. charon has a local socket. Programs
            // of the policy are identified by O_PATH, which Landlock leaves alone. Whether they are scripts
            // is read where packages install programs; the report names files elsewhere. Access control
            // lists say who can replace them.
            abilities: &[
                Ability::LoadBpf,
                Ability::ReadAttributes,
                Ability::Netlink(NETLINK_XFRM),
                Ability::WriteFiles,
            ],
            reads: &[
                paths::STATE_DIRECTORY,
                paths::IKE_DIRECTORY,
                "/sys/kernel/btf",
                "/sys/fs/cgroup",
                "/sys/devices/system/cpu",
                "/usr",
                "/bin",
                "/sbin",
                "/opt",
            ],
            writes: &[
                "/sys/fs/bpf",
                paths::NETWORK_SYSCTLS,
                "/run/usher/protector",
                paths::PROTECTOR_DIRECTORY,
            ],
        }),
        // A page of sockets, each with two paths of up to 4 KiB.
        largest_answer: 64 << 20,
        ..SERVER
    }

    /// Looks up the names in `network` statements for the protector.
    Resolver answers [Status] {
        name: "resolver",
        account: Some("usher-resolver"),
        duty: PROTECTS,
        needed_for: "following the addresses of names in `network` statements",
        required: false,
        sockets: &[Socket::of_account(paths::RESOLVER_NAMES, "root")],
        sandbox: Some(Sandbox {
            // The C library asks by datagrams, by TCP where an answer does not fit, and asks the kernel
            // which addresses this host has (NETLINK_ROUTE) to sort its answer.
            abilities: &[
                Ability::Datagrams,
                Ability::Tcp,
                Ability::Netlink(NETLINK_ROUTE),
            ],
            reads: NAME_SERVICE,
            writes: &[],
        }),
        ..SERVER
    }

    /// Keeps modules of mandatory access control in force.
    Labeller answers [Status, Prepare, Reload, Mac, MacLoad, MacUnload, MacLook, MacRefusals] {
        name: "labeller",
        duty: CONFINES,
        needed_for: "changing which modules decide, and by which settings",
        // The dispatchers and the modules (BPF), which read what they decide about (PERFMON). A module
        // replaces functions of a loaded program, whose types are known by an id (SYS_ADMIN). A rule about
        // root must not keep the administrator from ending its module (DAC_OVERRIDE; FOWNER for the
        // modes of its own files). It writes the labels of new files (SYS_ADMIN), which it opens by their
        // handles (DAC_READ_SEARCH).
        capabilities: Capabilities::BPF
            .union(Capabilities::PERFMON)
            .union(Capabilities::SYS_ADMIN)
            .union(Capabilities::DAC_OVERRIDE)
            .union(Capabilities::DAC_READ_SEARCH)
            .union(Capabilities::FOWNER),
        sandbox: Some(Sandbox {
            // A module may be loaded at any time. Rules name users, groups and file systems. The thread that
            // writes labels has rules of Landlock of its own.
            abilities: &[
                Ability::ReplaceBpf,
                Ability::WriteFiles,
                Ability::LabelFiles,
                Ability::Show,
                // Lists the interfaces whose packets modules are asked about.
                Ability::Netlink(NETLINK_ROUTE),
            ],
            reads: &[
                paths::STATE_DIRECTORY,
                "/etc",
                "/usr",
                "/lib",
                "/sys/kernel/btf",
                "/sys/kernel/security",
                "/sys/devices/system/cpu",
            ],
            writes: &[
                "/sys/fs/bpf",
                "/run/usher/labeller",
                paths::LABELLER_DIRECTORY,
            ],
        }),
        // Thousands of kinds of refusals, each with two elements of labels and a line.
        largest_answer: 16 << 20,
        ..SERVER
    }

    /// Answers a Prometheus with the numbers of the other daemons. These read nothing from it.
    Exporter answers [Status] {
        name: "exporter",
        account: Some("usher-exporter"),
        duty: WATCHES,
        needed_for: "watching this host by Prometheus",
        required: false,
        sandbox: Some(Sandbox {
            // The exporter's listener exists before its sandbox does, and the exporter connects to local
            // sockets only.
            abilities: &[],
            reads: &[],
            writes: &[],
        }),
        ..SERVER
    }

    /// Lets a user's ssh-agent sign for the signer.
    Agent answers [] {
        name: "agent",
        account: None,
        required: false,
        ..CLIENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_daemon::control::Request;
    use usher_daemon::role::RUNTIME_DIRECTORY;

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
    fn sockets_are_in_their_roles_folders_for_known_accounts() {
        for role in ROLES {
            for socket in role.sockets {
                let folder = format!("{}/{}/", RUNTIME_DIRECTORY, role.name);
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
        assert_eq!(
            names,
            [
                "keeper",
                "verifier",
                "signer",
                "proxy",
                "protector",
                "labeller"
            ]
        );
    }
}
