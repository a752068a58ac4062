//! Answers to control requests. `usher --json` prints most of them as they are.

use serde::{Deserialize, Serialize};
use usher_base::{HostName, ServiceName, UserName};

/// A configuration that has come in force.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct ReloadedView {
    /// Its generation.
    pub generation: u64,
    /// Sessions that ended because it does not permit them, with the connections that were cut;
    /// oldest first.
    pub ended: Vec<EndingView>,
    /// Sessions and connections that it forbids and that have not ended yet, each for an
    /// administrator.
    #[serde(default)]
    pub unfinished: Vec<String>,
}

/// The daemon would take the configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct PreparedView {}

/// The connections that a configuration would end.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct WouldEndView {
    /// Sessions with their connections, oldest first.
    pub ended: Vec<EndingView>,
}

/// The users who sign by an ssh-agent.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct AgentsView {
    /// In the order of their names.
    pub agents: Vec<AgentView>,
}

/// The services that could not serve their users.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct TroublesView {
    /// In the order of their names.
    pub troubles: Vec<TroubleView>,
}

/// Live state of the keeper.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct WhoView {
    /// Sessions, oldest first.
    pub sessions: Vec<SessionView>,
    /// Running workers.
    pub workers: Vec<WorkerView>,
    /// Services that could not serve their users.
    #[serde(default)]
    pub troubles: Vec<TroubleView>,
}

/// A service that could not serve its users at some time since the keeper started.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct TroubleView {
    /// The service.
    pub service: ServiceName,
    /// How many times a process could not be started, or ended at once.
    pub failed_starts: u64,
    /// How many connections were reset unserved.
    pub refused_connections: u64,
    /// The user of the last failure.
    pub user: UserName,
    /// The reason of the last failure.
    pub reason: String,
    /// Its time, in seconds since 1970.
    pub at: u64,
    /// Whether the service has served since.
    pub over: bool,
}

/// The answer to [`super::Failures`].
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct FailuresView {
    /// The last failure of each user at each service, oldest first.
    pub failures: Vec<FailureView>,
}

/// A connection of a user of this host whose program on the server has ended at once, and has failed.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct FailureView {
    /// The user.
    pub user: UserName,
    /// The server's host.
    pub host: HostName,
    /// The service.
    pub service: ServiceName,
    /// How the program has ended: "with status 89", "by signal 11".
    pub ended: String,
    /// When this host learned it, in seconds since 1970.
    pub at: u64,
}

/// A user who signs by an ssh-agent.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct AgentView {
    /// The user.
    pub user: UserName,
    /// Fingerprint of the key that the agent must have, as `ssh-keygen -l` shows it.
    pub key: String,
    /// Whether a process of the user lends it.
    pub lent: bool,
}

/// One session.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct SessionView {
    /// Session id, hexadecimal.
    pub session: String,
    /// Remote user.
    pub user: UserName,
    /// Host the user comes from.
    pub host: HostName,
    /// Service used.
    pub service: ServiceName,
    /// Local account the user is here.
    pub uid: u32,
    /// Fingerprint of the key that opened it, as `ssh-keygen -l` shows it.
    #[serde(default)]
    pub key: String,
    /// The certificate that makes the key the user's; none for a listed key.
    #[serde(default)]
    pub certificate: Option<CertificateView>,
    /// When it was opened, seconds since 1970.
    pub opened: u64,
    /// When it ends, seconds since 1970.
    pub expires: u64,
    /// Chain elements that announcements have used.
    pub used: u32,
    /// Elements that tokens have used; none where connections are announced only.
    #[serde(default)]
    pub tokens: Option<u32>,
    /// Length of either chain.
    pub chain_length: u32,
    /// Its connections.
    pub connections: Vec<ConnectionView>,
}

/// A session that ends because a configuration does not permit it. A session that its client has
/// closed is among them while it has connections.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct EndingView {
    /// The session and its connections, with names of the former configuration.
    #[serde(flatten)]
    pub session: SessionView,
    /// The name of the refusal that ends it.
    #[serde(default)]
    pub reason: String,
    /// The reason, for people.
    #[serde(default)]
    pub text: String,
}

/// The certificate of a session.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct CertificateView {
    /// Fingerprint of the authority's key.
    pub authority: String,
    /// The authority's serial number for it; 0: none.
    pub serial: u64,
    /// Names that its holder may use.
    pub principals: Vec<String>,
    /// When it expires, in seconds since 1970.
    pub valid_before: u64,
}

/// The sessions that have ended last.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct RecentView {
    /// Oldest first.
    pub ended: Vec<EndedView>,
}

/// The end of a session. A session that its client had closed ends again when its connections are
/// cut.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct EndedView {
    /// Session id, hexadecimal.
    pub session: String,
    /// Remote user.
    pub user: UserName,
    /// Host the user came from.
    pub host: HostName,
    /// Service used.
    pub service: ServiceName,
    /// Local account the user was here.
    pub uid: u32,
    /// When it was opened, seconds since 1970.
    pub opened: u64,
    /// When it ended, seconds since 1970.
    pub ended: u64,
    /// The name of the refusal that ends it.
    pub reason: String,
    /// The reason, for people.
    pub text: String,
}

/// One connection of a session.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct ConnectionView {
    /// Remote address and port.
    pub client: String,
    /// Local address and port.
    pub server: String,
    /// `announced`, `syn_received`, `withdrawn` or `established`.
    pub state: String,
    /// How long it has been established, seconds.
    pub seconds: Option<f64>,
}

/// One worker process.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct WorkerView {
    /// Service it serves.
    pub service: ServiceName,
    /// User it runs as.
    pub user: UserName,
    /// The id of that user.
    pub uid: u32,
    /// Its process.
    pub pid: u32,
    /// How long it has run, seconds.
    pub seconds: f64,
}
