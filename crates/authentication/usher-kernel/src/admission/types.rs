//! The data that the keeper and the admission programs exchange.

use std::time::Duration;

use usher_base::{ConnectionTuple, HostName, UserName};
use usher_proto::{ChainTip, Refusal, SessionId, TokenElement};

use crate::KernelError;

/// The sizes of the tables. Set when the tables are made, and kept while they are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open sessions.
    pub sessions: u32,
    /// Announced and living connections.
    pub admissions: u32,
    /// Queues: pairs of service and user.
    pub listeners: u32,
    /// Sessions whose connections may carry a token in the SYN; at most
    /// [`usher_proto::token::TokenSlot::COUNT`].
    pub tokens: u32,
}

impl Default for Limits {
    /// 65,536 sessions, all of which may have tokens; 65,536 connections; 4,096 queues. About 40 MB of kernel
    /// memory.
    fn default() -> Self {
        Self {
            sessions: 65_536,
            admissions: 65_536,
            listeners: 4096,
            tokens: 65_536,
        }
    }
}

/// An announcement of a connection, besides its two endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// The session that announces the connection.
    pub session: SessionId,
    /// The service whose port the connection goes to.
    pub service: u32,
    /// The local account of the session's user.
    pub uid: u32,
    /// The time for which a SYN is admitted, from now on. A handshake that began in time may end later.
    pub lifetime: Duration,
}

/// Reasons that a connection is not announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The table of connections is full.
    #[error("the table of connections is full")]
    Full,
    /// The same connection is announced or established, or a handshake of it may be pending.
    #[error("the connection is announced already")]
    AlreadyAnnounced,
    /// An endpoint that no socket has: an unspecified address, port 0.
    #[error("{0} is no connection")]
    NoConnection(ConnectionTuple),
    /// Another error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Reasons that a session is not opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is already a session with this id.
    #[error("the session exists already")]
    Exists,
    /// The table of sessions is full.
    #[error("the table of sessions is full")]
    Full,
    /// Another error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The state of an announced connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdmissionState {
    /// No SYN has come.
    Announced,
    /// A SYN has been admitted, and the handshake is not over.
    SynReceived,
    /// The handshake is over, and the connection is not closed.
    Established,
    /// Withdrawn after a SYN was admitted: that handshake may complete, no other SYN is admitted.
    Withdrawn,
}

/// One entry of the table of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionRow {
    /// The two endpoints.
    pub connection: ConnectionTuple,
    /// The session that announced the connection.
    pub session: SessionId,
    /// The service.
    pub service: u32,
    /// The local account.
    pub uid: u32,
    /// The state of the connection.
    pub state: AdmissionState,
    /// Whether a token made the entry, rather than an announcement.
    pub by_token: bool,
    /// The time since the connection was established.
    pub established: Option<Duration>,
}

/// An entry of the table of connections that no version of these programs has written, such as one that root
/// has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadableRow {
    /// The two endpoints; none if no connection can have them.
    pub connection: Option<ConnectionTuple>,
    /// The session that the entry names.
    pub session: SessionId,
}

/// A session in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The local account of the user.
    pub uid: u32,
    /// The service.
    pub service: u32,
    /// The user.
    pub user: UserName,
    /// The host that opened the session.
    pub host: HostName,
    /// The last accepted element of the chain.
    pub tip: ChainTip,
    /// The length of either chain.
    pub chain_length: u32,
    /// The chains' salt.
    pub chain_salt: [u8; 16],
    /// `t[0]` of the token chain.
    pub token_anchor: TokenElement,
    /// Fingerprint of the key that signed for the session: SHA-256, as `ssh-keygen -l` shows it.
    pub key_fingerprint: [u8; 32],
    /// Whether a certificate makes that key the user's: see [`super::Admission::certificate`].
    pub certified: bool,
    /// [`usher_proto::HostPublicKey::number`] of the host's key at that time.
    pub host_number: u64,
    /// When the session was opened, in seconds since 1970.
    pub opened: u64,
    /// When the session ends, in seconds since 1970.
    pub expires: u64,
    /// The time and reason of the session's end; kept for a while to detect a replayed authenticator.
    pub ended: Option<Ended>,
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Seconds since 1970; never 0.
    pub at: u64,
    /// The reason.
    pub reason: Refusal,
    /// Whether the log has this end.
    pub recorded: bool,
}
