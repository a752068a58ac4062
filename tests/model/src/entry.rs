//! The entry of a connection in the kernel's table, and the only ways in which it changes.

use std::fmt;

/// `enum usher_admission_state` in bpf/include/usher_shared.h. `Gone` stands for no entry, and for
/// REMOVED, a state that an entry has only for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryState {
    /// No entry.
    Gone,
    /// A SYN may come.
    Announced,
    /// A SYN was admitted.
    SynReceived,
    /// Withdrawn while the handshake was under way, which may still complete.
    Withdrawn,
    /// The handshake has ended.
    Established,
}

impl fmt::Display for EntryState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Gone => "(gone)",
            Self::Announced => "ANNOUNCED",
            Self::SynReceived => "SYN_RECEIVED",
            Self::Withdrawn => "WITHDRAWN",
            Self::Established => "ESTABLISHED",
        })
    }
}

/// The cause of an entry's change. The documentation of each names the function in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The keeper enters an announcement: `Admission::announce`.
    Announced,
    /// A SYN carries a valid token: `admit` (bpf/authentication/admission/token.bpf.h).
    Token,
    /// A SYN, or the ACK that answers a SYN cookie, is admitted: `take_syn`, called by
    /// `choose_queue` (bpf/authentication/admission/admission.bpf.c).
    Syn,
    /// The handshake ends: `establish`, called by `follow`.
    LastAck,
    /// The connection closes: `closed`, called by `follow`.
    Closed,
    /// The session withdraws the announcement: `remove` with USHER_WITHDRAW.
    Withdrawn,
    /// Its time is over, 70 s later for a handshake: `remove` with USHER_EXPIRE.
    Expired,
    /// Another connection's SYN comes between the same endpoints: `claim` (bpf/authentication/admission/token.bpf.h).
    OtherSyn,
    /// Another connection's SYN comes with a valid token: `end_older`.
    OtherToken,
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Announced => "announced",
            Self::Token => "token",
            Self::Syn => "SYN",
            Self::LastAck => "last ACK",
            Self::Closed => "closed",
            Self::Withdrawn => "withdrawn",
            Self::Expired => "expired",
            Self::OtherSyn => "another SYN",
            Self::OtherToken => "another token",
        })
    }
}

/// One change.
pub type Transition = (EntryState, Cause, EntryState);

/// All possible changes. A test compares them with the table in ARCHITECTURE.md.
pub const TRANSITIONS: [Transition; 17] = {
    use Cause as C;
    use EntryState::{Announced, Established, Gone, SynReceived, Withdrawn};
    [
        (Gone, C::Announced, Announced),
        (Gone, C::Token, Announced),
        (Announced, C::Syn, SynReceived),
        (Announced, C::Withdrawn, Gone),
        (Announced, C::Expired, Gone),
        (Announced, C::OtherSyn, Gone),
        (Announced, C::OtherToken, Gone),
        (SynReceived, C::Syn, SynReceived),
        (SynReceived, C::LastAck, Established),
        (SynReceived, C::Withdrawn, Withdrawn),
        (SynReceived, C::Expired, Gone),
        (SynReceived, C::OtherSyn, Withdrawn),
        (SynReceived, C::OtherToken, Gone),
        (Withdrawn, C::LastAck, Established),
        (Withdrawn, C::Expired, Gone),
        (Withdrawn, C::OtherToken, Gone),
        (Established, C::Closed, Gone),
    ]
};

/// The fields of `struct usher_admission` that matter for decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its state.
    pub state: EntryState,
    /// The user of its session, and of the queue that it leads to.
    pub user: u8,
    /// The element for which it was made, by the socket that drew it (`by_token`).
    pub element: Option<usize>,
    /// The socket whose SYN it is for, as its sequence number. None: any.
    pub syn: Option<usize>,
    /// True if SYNs are no longer admitted (`expires_ns`).
    pub expired: bool,
    /// The channel that announced it.
    pub channel: Channel,
}

/// The channel of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// The current one.
    Newest,
    /// A former one whose end the verifier has not seen yet.
    Older,
    /// One that the verifier does not know.
    None,
}
