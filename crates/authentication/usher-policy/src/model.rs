//! The contents of a policy, with names resolved: the daemons' view.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_language::{Name, Need, Origin, words};
use usher_mac_blocks::MacBlock;
use usher_protection::{Application, IkePublicKey, Kind, MarkMask, Names, common_algorithm};
use usher_proto::HostPublicKey;

use crate::client::Client;
use crate::destinations::Destinations;
use crate::limits::DEFAULT_EACH_USER_PROCESSES;
use crate::members::{Members, Users};

/// A whole policy. From [`crate::parse_policy`] it is complete: every name in it is defined in it, but for
/// those of services of other hosts ([`crate::ClientService::service`]), of hosts that the caller looks up
/// ([`Policy::look_up_names`]), and of users whom groups or certificates may have
/// ([`Expectation::user`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The machines that this policy knows. Addresses and keys are unique over all of them.
    pub hosts: BTreeMap<HostName, Host>,
    /// The named sets of users.
    pub users: BTreeMap<Name, Users>,
    /// The services that this host offers. Ports and identifiers are unique over all of them.
    pub services: BTreeMap<ServiceName, Service>,
    /// The services to which local users may authenticate.
    pub clients: BTreeMap<Name, Client>,
    /// How the traffic of programs is to be protected, in the order of the text.
    pub applications: Vec<Application>,
    /// The settings of modules of mandatory access control, in the order of the text.
    pub mac: Vec<MacBlock>,
    /// The limits of each user's processes, over all services that this host offers.
    pub each_user: ProcessLimits,
    /// The bits of packets' marks that are Usher's, where IPsec protects traffic.
    pub marks: MarkMask,
    /// The policy's tests, in the order of the text: connections that it is expected to permit or
    /// to refuse. An analyser runs them; they decide nothing.
    pub expectations: Vec<Expectation>,
    /// The addresses of names that stand in `network` statements and have no `host` block, as
    /// [`Policy::look_up_names`] has found them.
    pub names: Names,
    /// The features that enforce the policy.
    pub needs: Needs,
}

/// The features that enforce a text, in its order. The rest of the policy determines them, so any two are
/// equal.
#[derive(Clone, Debug, Default, Eq)]
pub struct Needs(pub Vec<Need>);

impl PartialEq for Needs {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Needs {
    /// The features that this version of Usher uses, where the kernel has them.
    const ENFORCED: [&str; 5] = [
        "LSM programs",
        "Landlock",
        "PAM",
        usher_protection::IPSEC,
        usher_mac_blocks::FRAMEWORK,
    ];

    /// The needs that this version cannot meet: the first text of each kind.
    pub fn unmet(&self) -> Vec<&Need> {
        let mut unmet: Vec<&Need> = Vec::new();
        for need in &self.0 {
            let is_new = unmet.iter().all(|other| other.needs != need.needs);
            if is_new && !Self::ENFORCED.contains(&need.needs.as_str()) {
                unmet.push(need);
            }
        }
        unmet
    }
}

impl Policy {
    /// The policy as it is at a time, in seconds since 1970: guests whose time is over are no longer
    /// users ([`Users::former`]). Shared `Arc`s of users stay shared.
    pub fn at(&self, now: u64) -> Self {
        let mut policy = self.clone();
        for users in policy.users.values_mut() {
            let guests = std::mem::take(&mut users.guests).into_iter();
            let (over, left): (BTreeMap<_, _>, _) =
                guests.partition(|(_, until)| until.unix_time() <= now);
            users.guests = left;
            users.former.extend(over);
        }
        let mut changed = BTreeMap::new();
        let services = policy.services.values_mut();
        let services = services.map(|service| &mut service.users);
        let clients = policy.clients.values_mut();
        let clients = clients.flat_map(|client| &mut client.services);
        for members in services.chain(clients.map(|entry| &mut entry.users)) {
            if members.has_any_over(now) {
                // The original policy keeps the old members, so no others get their address.
                let left = changed
                    .entry(Arc::as_ptr(members).addr())
                    .or_insert_with(|| Arc::new(members.at(now)));
                *members = Arc::clone(left);
            }
        }
        policy
    }
}

/// A `host` block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The block's name.
    pub name: HostName,
    /// 1 to [`MAXIMUM_HOST_ADDRESSES`] unicast addresses, in the order of the text: the order in
    /// which they are tried. No IPv4-mapped ones, none with a scope.
    pub addresses: Vec<IpAddr>,
    /// The host's Ed25519 key. While it is replaced there are two, at most
    /// [`MAXIMUM_HOST_KEYS`](crate::MAXIMUM_HOST_KEYS), and either is accepted. In the order of the text.
    pub keys: Vec<HostPublicKey>,
    /// The keys by which the host's IKE daemon authenticates itself to those of other hosts, of each algorithm
    /// at most [`MAXIMUM_IKE_KEYS`](crate::MAXIMUM_IKE_KEYS), in the order of the text. None of them is a
    /// host's [`keys`](Self::keys), which sign TLS handshakes only. While a key is replaced there are
    /// two, and either is accepted. Two hosts authenticate each other by one algorithm, Ed25519 if both have
    /// it; without one in common they have no IPsec.
    pub ike_keys: Vec<IkePublicKey>,
    /// Whether, once the host has had SAs of an `optional` class, traffic of that class with it never again
    /// passes in the clear.
    pub is_held: bool,
    /// For a host without Usher that knows no security labels: the only class of SAs with it, in the standard
    /// profile. None: SAs have the label of their class, so there may be SAs of each class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlabelled: Option<Kind>,
    /// TCP port of the host's control channel.
    pub control: u16,
    /// Addresses of 127.0.0.0/8 on which the local proxy stands for this host; may be empty.
    pub loopback: Vec<Ipv4Addr>,
}

impl Host {
    /// Returns whether this host and another can authenticate each other to negotiate SAs.
    pub fn shares_ike(&self, other: &Self) -> bool {
        common_algorithm(&self.ike_keys, &other.ike_keys).is_some()
    }
}

words! {
    /// The number of connections for which a service's process is made.
    pub enum Style {
        /// One process for each connection. A [`ServedBy::Program`] has it as its standard input and
        /// output (inetd).
        Connection = "connection",
        /// One process for each user, to which the user's later connections come as well. A
        /// [`ServedBy::Program`] accepts from the user's own listener (LISTEN_FDS).
        User = "user",
        /// One process for all users, which runs as an account of the service's own and accepts their
        /// connections from one listener (LISTEN_FDS). Always a [`ServedBy::Backend`], or a
        /// [`ServedBy::Program`] with an [`account`](Program::account), which no other style has.
        Shared = "shared",
    }

    /// The form in which the server of a shared service gets the user's name.
    pub enum Identification {
        /// By a header of the PROXY protocol, version 2, before the client's first byte.
        ProxyProtocol = "proxy-protocol",
        /// By a header of each request of HTTP/1.1.
        Http = "http",
        /// By a header of each request of HTTP/2, without TLS.
        Http2 = "http2",
        /// By the command XCLIENT of SMTP, before the client's first command.
        Xclient = "xclient",
    }

    /// Rights to files. The user's own rights limit them in any case.
    pub enum FileAccess {
        /// Read files, list folders, execute programs.
        Read = "read",
        /// Read, and change, make and remove files and folders.
        Write = "write",
    }
}

impl Style {
    /// Whether one process serves a whole queue, and accepts its connections by itself.
    pub fn serves_queue(self) -> bool {
        self != Self::Connection
    }
}

/// A `service` block: a service that this host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The block's name.
    pub name: ServiceName,
    /// [`service_id`] of the name.
    pub id: u32,
    /// The processes that serve its users.
    pub served_by: ServedBy,
    /// TCP port on which clients reach it.
    pub listen: u16,
    /// Names of the `users` blocks that it admits.
    pub user_blocks: BTreeSet<Name>,
    /// The users of these blocks; shared by all that name the same ones.
    pub users: Arc<Members>,
    /// The policy says `hosts any`.
    pub any_host: bool,
    /// The hosts from which it admits users; with [`any_host`](Self::any_host) all of the policy.
    pub hosts: BTreeSet<HostName>,
    /// The number of connections for which each of its processes is made.
    pub style: Style,
    /// [`Style::User`]: a process ends after this long without a connection. Whole seconds.
    pub idle: Duration,
    /// A session never lasts longer. Whole seconds, at most [`MAXIMUM_DURATION`].
    pub session: Duration,
    /// The purpose of the keys that it admits: only the user's keys with this purpose. None: only keys
    /// without a purpose.
    pub keys: Option<Name>,
    /// A user is authenticated again at least this often, or the session ends. Whole seconds,
    /// [`MINIMUM_REAUTHENTICATION`] to [`MAXIMUM_DURATION`].
    pub reauthenticate: Option<Duration>,
    /// A connection whose client host has answered nothing for this long ends. Whole seconds,
    /// [`MINIMUM_KEEPALIVE`](crate::MINIMUM_KEEPALIVE) to
    /// [`MAXIMUM_KEEPALIVE`](crate::MAXIMUM_KEEPALIVE).
    pub keepalive: Duration,
    /// [`Style::Connection`]: most processes of one user at once.
    pub connections: u32,
    /// Limit of processes and threads of one user at once, with all that they start (pids.max of
    /// cgroups(7)).
    pub processes: u32,
    /// Limit of memory of one user's processes together, in bytes (memory.max of cgroups(7)); none: as
    /// much as there is.
    pub memory: Option<u64>,
    /// Limit of processor time of one user's processes together, in percent of one processor (cpu.max
    /// of cgroups(7)); none: as much as there is.
    pub cpu: Option<u32>,
    /// The destinations to which its processes may connect; none: all that the user may reach.
    pub connect: Option<Destinations>,
    /// How IPsec must protect its connections; none: the policy does not demand it.
    pub protection: Option<RequiredProtection>,
}

impl Service {
    /// The account as which one process serves all users, with [`Style::Shared`]; none for other styles.
    pub fn shared_account(&self) -> Option<&UserName> {
        match &self.served_by {
            ServedBy::Program(program) => program.account.as_ref(),
            ServedBy::Backend(backend) => Some(&backend.account),
            ServedBy::Account(_) => None,
        }
    }

    /// The account of the service's own processes; none if they all run as its users.
    pub fn account(&self) -> Option<&UserName> {
        match &self.served_by {
            ServedBy::Program(_) | ServedBy::Backend(_) => self.shared_account(),
            ServedBy::Account(account) => Some(account),
        }
    }

    /// The limits of one user's processes at this service.
    pub fn limits(&self) -> ProcessLimits {
        ProcessLimits {
            processes: self.processes,
            memory: self.memory,
            cpu: self.cpu,
        }
    }
}

/// Limits of one user's processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Limit of processes and threads at once, 1 to [`MAXIMUM_PROCESSES`].
    pub processes: u32,
    /// Limit of memory in bytes, [`MINIMUM_MEMORY`] to [`MAXIMUM_MEMORY`]; none: as much as there is.
    pub memory: Option<u64>,
    /// Limit of processor time in percent of one processor, 1 to [`MAXIMUM_CPU`]; none: as much as
    /// there is.
    pub cpu: Option<u32>,
}

impl Default for ProcessLimits {
    /// The limits of a user over all services, where policy does not say otherwise.
    fn default() -> Self {
        Self {
            processes: DEFAULT_EACH_USER_PROCESSES,
            memory: None,
            cpu: None,
        }
    }
}

/// `protection` of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredProtection {
    /// The kind that connections need at least.
    pub kind: Kind,
    /// Its place in the text.
    pub origin: Origin,
}

/// The processes that serve the users of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// Workers that the keeper starts, as the user; of [`Style::Shared`], as the program's account.
    Program(Program),
    /// Processes that run as this local account, which the service manager started; each becomes its user by
    /// the calls of usher_accept_by_user(3). Never root, never one of [`Service::users`]: a process that has
    /// become such a user would look like one that has not.
    Account(UserName),
    /// A server that its own account runs, and a process of Usher's that passes connections on to it. With
    /// [`Style::Shared`] only.
    Backend(Backend),
}

/// The server of a shared service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The local account as which connections are passed on, which must be able to reach the socket. Never
    /// root, never one of [`Service::users`].
    pub account: UserName,
    /// The form in which the server gets the user's name.
    pub identification: Identification,
    /// The absolute path of the local socket at which it listens.
    pub socket: String,
    /// The header with the name; for [`Identification::Http`] and [`Identification::Http2`] only.
    pub header: Option<String>,
}

impl std::fmt::Display for Backend {
    /// As `identify` has it, without quotation marks.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.identification, self.socket)?;
        match &self.header {
            Some(header) => write!(formatter, " header {header}"),
            None => Ok(()),
        }
    }
}

/// A program that the keeper starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its absolute path.
    pub path: String,
    /// Its arguments, without the program's own name.
    pub arguments: Vec<String>,
    /// The local account as which it serves all users, with [`Style::Shared`] only. Never root, never one of
    /// [`Service::users`]: that user's processes could use everybody's connections.
    pub account: Option<UserName>,
    /// Added to a worker's environment, in the order of the text; names are unique.
    pub environment: Vec<(String, String)>,
    /// The files that its processes may use; none: all that the user may use.
    pub files: Option<Vec<FileRule>>,
    /// Permissions that new files of its processes lack (umask(2)); the processes may change it.
    pub umask: u16,
    /// Whether programs that its processes execute may become another user or group by their set-user-ID and
    /// set-group-ID bits. Never with `files`: the kernel confines only processes that cannot.
    pub setuid: bool,
    /// Whether each process runs inside a PAM session (pam_open_session(3)). PAM's account phase is
    /// asked in any case.
    pub pam_session: bool,
}

/// The access of a service's processes to a file, or to a folder and everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRule {
    /// Where: an absolute path, or one in the home of the user (`~`, `~/...`); no path twice.
    pub path: String,
    /// The access that the processes get to the path.
    pub access: FileAccess,
}

impl FileRule {
    /// The path for a user with this home.
    pub fn path_for(&self, home: &Path) -> PathBuf {
        match self.path.strip_prefix('~') {
            None => self.path.clone().into(),
            Some("") => home.into(),
            Some(below) => home.join(below.trim_start_matches('/')),
        }
    }
}

/// The number of a service in maps and addresses: never zero, below 2^31.
///
/// A hash of the name alone (FNV-1a, 32 bits, upper bit cleared; 1 in place of 0), so that adding,
/// removing or reordering blocks never gives a running service another's number. Two services of
/// one policy with the same number are an error in [`crate::parse_policy`].
pub fn service_id(name: &ServiceName) -> u32 {
    let hash = name.as_ref().bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash & 0x7fff_ffff).max(1)
}

/// An `expect` statement: what should come of a user who wants to reach a service.
///
/// A part that is left out stands for every possible one: `expect permit user alice service imap`
/// expects alice to be permitted from some host, to imap of some host, on the port that it has
/// there; with `refuse`, from none and to none. This crate does not try expectations. It warns of
/// names in them that the policy lacks ([`crate::Policy::unknown_names`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expectation {
    /// `permit`; otherwise `refuse`.
    pub permit: bool,
    /// The user.
    pub user: UserName,
    /// The host from which the user comes.
    pub from: Option<HostName>,
    /// The service.
    pub service: ServiceName,
    /// The host that offers the service.
    pub at: Option<HostName>,
    /// The TCP port on which the service is reached.
    pub port: Option<u16>,
    /// Its place in the text.
    pub origin: Origin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_are_stable() {
        let id = |name: &str| service_id(&name.parse().expect("a service name"));
        // FNV-1a by its published parameters, computed apart from this code.
        assert_eq!(id("imap"), 0x3fda_04ea);
        assert_eq!(id("a"), 0x640c_292c);
        assert_ne!(id("imap"), id("imaq"));
    }
}
