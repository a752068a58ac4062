//! The entry of a connection in the kernel's table, and the only ways in which it changes.

use std::fmt;

/// `enum usher_admission_state` in bpf/include/usher_shared.h. `Gone` stands for REMOVED, which an
/// entry is for a moment only, and for no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryState {
    /// No entry.
    Gone,
    /// A SYN may come.
    Announced,
    /// A SYN was let through.
    SynReceived,
    /// Taken back while the handshake was under way, which may still end.
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

/// Why an entry changes. The documentation of each names the function in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The keeper enters an announcement: `Admission::announce`.
    Announced,
    /// A SYN carries a good token: `admit` (bpf/admission/token.bpf.h).
    Token,
    /// A SYN, or the ACK that answers a SYN cookie, is let through: `take_syn`, called by
    /// `choose_queue` (bpf/admission/admission.bpf.c).
    Syn,
    /// The handshake ends: `establish`, called by `follow`.
    LastAck,
    /// The connection closes: `closed`, called by `follow`.
    Closed,
    /// The session takes the announcement back: `remove` with USHER_WITHDRAW.
    Withdrawn,
    /// Its time is over, 70 s later for a handshake: `remove` with USHER_EXPIRE.
    Expired,
    /// Another connection's SYN comes between the same ends: `claim` (bpf/admission/token.bpf.h).
    OtherSyn,
    /// Another connection's SYN comes, and carries a good token: `end_older`.
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

/// All changes that there are. A test compares them with the table in ARCHITECTURE.md.
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

/// `struct usher_admission`, as far as it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where it is.
    pub state: EntryState,
    /// Whose session it is of, and whose queue it leads to.
    pub user: u8,
    /// The element that it was made for, by the socket that drew it (`by_token`).
    pub element: Option<usize>,
    /// The socket whose SYN it is for: its sequence number. None: any.
    pub syn: Option<usize>,
    /// Whether no SYN is admitted any more (`expires_ns`).
    pub expired: bool,
    /// Which channel announced it.
    pub channel: Channel,
}

/// The channel that an announcement came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// The one in use.
    Newest,
    /// One that the client has left, and the verifier has not seen the end of.
    Older,
    /// None that the verifier knows.
    None,
}
