//! What the keeper tells the admission programs, and what it hears from them.

use std::time::Duration;

use usher_proto::{
    ChainTip, ConnectionTuple, HostName, Refusal, SessionId, TokenElement, UserName,
};

use crate::KernelError;

/// How many entries the tables take. Set when the tables are made; kept as long as they are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open sessions.
    pub sessions: u32,
    /// Announced and living connections.
    pub admissions: u32,
    /// Queues: pairs of service and user.
    pub listeners: u32,
    /// Sessions whose connections may come with a token in the SYN; at most
    /// [`usher_proto::token::TokenSlot::COUNT`].
    pub tokens: u32,
}

impl Default for Limits {
    /// 65,536 sessions, with tokens, and connections, 4,096 queues: about 40 MB of kernel memory.
    fn default() -> Self {
        Self {
            sessions: 65_536,
            admissions: 65_536,
            listeners: 4096,
            tokens: 65_536,
        }
    }
}

/// What is announced of a connection, besides its two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// The session that announces it.
    pub session: SessionId,
    /// The service whose port it goes to.
    pub service: u32,
    /// The local account of the session's user.
    pub uid: u32,
    /// How long a SYN is admitted, from now on. A handshake that began in time may end later.
    pub lifetime: Duration,
}

/// Why a connection is not announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The table of connections is full.
    #[error("the table of connections is full")]
    Full,
    /// The same connection is announced or established, or a handshake of it may be pending.
    #[error("the connection is announced already")]
    AlreadyAnnounced,
    /// Something else.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Why a session is not opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is a session of this id.
    #[error("the session exists already")]
    Exists,
    /// The table of sessions is full.
    #[error("the table of sessions is full")]
    Full,
    /// Something else.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Why a listener is not entered.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// The table of listeners is full.
    #[error("the table of listeners is full")]
    Full,
    /// Something else.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// How far an announced connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdmissionState {
    /// No SYN has come.
    Announced,
    /// A SYN has been admitted, the handshake is not over.
    SynReceived,
    /// The handshake is over, the connection not closed.
    Established,
    /// Withdrawn after a SYN was admitted: that handshake may end, no other SYN is admitted.
    Withdrawn,
}

/// One entry of the table of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionRow {
    /// The two ends.
    pub connection: ConnectionTuple,
    /// The session that announced it.
    pub session: SessionId,
    /// The service.
    pub service: u32,
    /// The local account.
    pub uid: u32,
    /// How far it has come.
    pub state: AdmissionState,
    /// Whether a token made it, and not an announcement.
    pub by_token: bool,
    /// How long it has been established.
    pub established: Option<Duration>,
}

/// A session as the table keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The local account of the user.
    pub uid: u32,
    /// The service.
    pub service: u32,
    /// The user.
    pub user: UserName,
    /// The host that opened it.
    pub host: HostName,
    /// The last accepted element of the chain.
    pub tip: ChainTip,
    /// How many elements either chain has.
    pub chain_length: u32,
    /// The chains' salt.
    pub chain_salt: [u8; 16],
    /// `t[0]` of the token chain.
    pub token_anchor: TokenElement,
    /// Fingerprint of the key that signed for it: SHA-256, as `ssh-keygen -l` shows it.
    pub key_fingerprint: [u8; 32],
    /// Whether that key is the user's by a certificate: see [`super::Admission::certificate`].
    pub certified: bool,
    /// [`usher_proto::HostPublicKey::number`] of the host, by the key that it had then.
    pub host_number: u64,
    /// When it was opened, in seconds since 1970.
    pub opened: u64,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
    /// When and why it has ended; kept a while so that a replayed authenticator meets it.
    pub ended: Option<Ended>,
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Seconds since 1970; never 0.
    pub at: u64,
    /// Why.
    pub reason: Refusal,
    /// Whether the log has it that it ended so.
    pub recorded: bool,
}

/// What the programs have counted since the tables were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// SYNs (and ACKs to SYN cookies) let through.
    pub admitted: u64,
    /// SYNs of connections that nobody announced.
    pub refused_unannounced: u64,
    /// SYNs that came after the announcement had expired.
    pub refused_late: u64,
    /// SYNs of connections that were withdrawn or established, or announced for another service.
    pub refused_state: u64,
    /// SYNs whose user has no listener.
    pub refused_no_listener: u64,
    /// Handshakes of announced connections that ended.
    pub established: u64,
    /// Announced connections that closed.
    pub closed: u64,
    /// Connections to a service that nobody had announced.
    pub untracked: u64,
    /// SYNs admitted for their token.
    pub token_accepted: u64,
    /// SYNs with a token whose connection had an entry already: retransmissions, and connections
    /// announced on the control channel.
    pub token_repeated: u64,
    /// SYNs with a token of a slot that is not open.
    pub token_unknown: u64,
    /// SYNs with a token of a session at another service.
    pub token_other_service: u64,
    /// SYNs with a token of a session that has expired.
    pub token_expired: u64,
    /// SYNs with a token that was not made for this connection with the key of its slot.
    pub token_foreign: u64,
    /// SYNs with a token whose position the chain does not have.
    pub token_out_of_range: u64,
    /// SYNs with a token that was used before.
    pub token_replayed: u64,
    /// SYNs with a token that is not the chain's at its position, or too far from the newest.
    pub token_mismatch: u64,
    /// SYNs with a good token for which the table of connections had no room.
    pub token_table_full: u64,
    /// SYNs with a good token whose session was closed while they were looked at.
    pub token_withdrawn: u64,
    /// SYNs with a token from an address that is not the session's host's.
    pub token_other_address: u64,
    /// SYNs with a token of a user who has used up his share of connections that have not come.
    pub token_overloaded: u64,
    /// Entries that ended because another SYN came between the same ends than the one they are for.
    pub token_other_syn: u64,
    /// SYNs refused for a token's entry because the filter at the interface had not read them to be
    /// the token's own.
    pub refused_unread: u64,
    /// Entries that a good token of another connection between the same ends has replaced.
    pub token_replaced: u64,
}

impl Counters {
    /// Names and numbers, for views.
    #[must_use]
    pub fn named(&self) -> [(String, u64); 24] {
        [
            ("admitted".into(), self.admitted),
            ("refused_unannounced".into(), self.refused_unannounced),
            ("refused_late".into(), self.refused_late),
            ("refused_state".into(), self.refused_state),
            ("refused_no_listener".into(), self.refused_no_listener),
            ("established".into(), self.established),
            ("closed".into(), self.closed),
            ("untracked".into(), self.untracked),
            ("token_accepted".into(), self.token_accepted),
            ("token_repeated".into(), self.token_repeated),
            ("token_unknown".into(), self.token_unknown),
            ("token_other_service".into(), self.token_other_service),
            ("token_expired".into(), self.token_expired),
            ("token_foreign".into(), self.token_foreign),
            ("token_out_of_range".into(), self.token_out_of_range),
            ("token_replayed".into(), self.token_replayed),
            ("token_mismatch".into(), self.token_mismatch),
            ("token_table_full".into(), self.token_table_full),
            ("token_withdrawn".into(), self.token_withdrawn),
            ("token_other_address".into(), self.token_other_address),
            ("token_overloaded".into(), self.token_overloaded),
            ("token_other_syn".into(), self.token_other_syn),
            ("refused_unread".into(), self.refused_unread),
            ("token_replaced".into(), self.token_replaced),
        ]
    }
}
