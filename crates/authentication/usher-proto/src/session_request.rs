//! What is asked and told about a session: the same on the control channel between hosts and
//! between the daemons of the server's host, in the same bytes.

use crate::chain::ChainElement;
use crate::refusal::Granted;
use crate::token::TokenKey;
use crate::{CHAIN_ELEMENT_SIZE, Refusal, SessionId, TokenSlot};
use usher_base::codec::{fields, messages};
use usher_base::{CONNECTION_TUPLE_SIZE, ConnectionTuple};

/// "This connection is about to be made": the chain element that proves it and the 4-tuple it is
/// good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announcement {
    /// The next element of the session's chain.
    pub element: ChainElement,
    /// The connection.
    pub connection: ConnectionTuple,
}

fields! { Announcement { element: ChainElement, connection: ConnectionTuple } }

impl Announcement {
    /// Bytes of its encoding.
    pub(crate) const SIZE: usize = 4 + CHAIN_ELEMENT_SIZE + CONNECTION_TUPLE_SIZE;
}

messages! {
    /// What a client host asks about a session that it has.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum SessionRequest {
        /// Announces another connection.
        2 => Announce(announcement: Announcement),
        /// Takes an announcement back: the connection will not be made, or has been made and no
        /// second one from the same port may be.
        3 => Withdraw(connection: ConnectionTuple),
        /// Ends the session. Its established connections go on.
        4 => Close,
        /// From now on SYNs of the session's connections carry tokens, which this key masks. The
        /// verdict is a slot where the server's kernel reads them.
        6 => Tokens(key: TokenKey),
        /// The user is still there, as the next element of the session's chain proves. Follows a
        /// [`Notice::Reauthenticate`].
        7 => Reauthenticate(element: ChainElement),
    }
}

/// The answer to a request: granted, with a slot where tokens were asked for; or why not.
pub type Verdict = Result<Option<TokenSlot>, Refusal>;

messages! {
    /// The same, as it travels.
    pub(crate) enum Answer {
        129 => Reply(verdict: Result<(), Refusal> as Granted),
        132 => Slot(slot: TokenSlot),
    }
}

impl From<Verdict> for Answer {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Ok(Some(slot)) => Self::Slot(slot),
            Ok(None) => Self::Reply(Ok(())),
            Err(refusal) => Self::Reply(Err(refusal)),
        }
    }
}

impl From<Answer> for Verdict {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Reply(verdict) => verdict.map(|()| None),
            Answer::Slot(slot) => Ok(Some(slot)),
        }
    }
}

messages! {
    /// What a server host says of a session without being asked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Notice {
        /// The session has ended on the server's side.
        130 => SessionEnded {
            /// The session.
            session: SessionId,
            /// Why.
            reason: Refusal,
        },
        /// The user is to be authenticated again: without another element of the session's chain
        /// the session ends.
        133 => Reauthenticate {
            /// The session.
            session: SessionId,
        },
    }
}

impl Notice {
    /// As a remote host may read it: see [`Refusal::disclosed`].
    pub(crate) fn disclosed(mut self) -> Self {
        if let Self::SessionEnded { reason, .. } = &mut self {
            *reason = reason.disclosed();
        }
        self
    }
}
