//! Requests, answers and notices about a session: the same bytes on the control channel between hosts
//! and between the daemons of the server's host.

use crate::chain::ChainElement;
use crate::program_end::ProgramEnd;
use crate::refusal::Granted;
use crate::token::TokenKey;
use crate::{CHAIN_ELEMENT_SIZE, Refusal, SessionId, TokenSlot};
use std::net::SocketAddr;
use usher_base::codec::{fields, messages};
use usher_base::{CONNECTION_TUPLE_SIZE, ConnectionTuple};

/// "This connection is about to be made": its endpoints, and the chain element that proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announcement {
    /// The next element of the session's chain.
    pub element: ChainElement,
    /// The connection.
    pub connection: ConnectionTuple,
}

fields! { Announcement { element: ChainElement, connection: ConnectionTuple } }

impl Announcement {
    /// Bytes of an encoded announcement.
    pub(crate) const SIZE: usize = 4 + CHAIN_ELEMENT_SIZE + CONNECTION_TUPLE_SIZE;
}

messages! {
    /// Requests of a client host about its session.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum SessionRequest {
        /// Announces another connection of the session.
        2 => Announce(announcement: Announcement),
        /// Withdraws an announcement: the connection will not be made, or has been made and no second
        /// one from the same port may follow.
        3 => Withdraw(connection: ConnectionTuple),
        /// Ends the session. Its established connections continue.
        4 => Close,
        /// From now on SYNs of the session's connections carry tokens, which this key masks. The
        /// verdict is a slot if the server's kernel reads tokens.
        6 => Tokens(key: TokenKey),
        /// Authenticates the user again by the next element of the session's chain. Answers a
        /// [`Notice::Reauthenticate`].
        7 => Reauthenticate(element: ChainElement),
    }
}

/// The answer to a request: granted, with a slot if tokens were requested, or refused.
pub type Verdict = Result<Option<TokenSlot>, Refusal>;

messages! {
    /// A [`Verdict`] on the wire.
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
    /// Notices of a server host about a session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Notice {
        /// The session has ended on the server's side.
        130 => SessionEnded {
            /// The session.
            session: SessionId,
            /// The reason.
            reason: Refusal,
        },
        /// The user must be authenticated again: without another element of the session's chain, the
        /// session ends.
        133 => Reauthenticate {
            /// The session.
            session: SessionId,
        },
        /// The program for a connection of the session's user has ended at once, and has failed.
        134 => ProgramEnded {
            /// A session of the user at the service, from that host.
            session: SessionId,
            /// The client's end of the connection.
            client: SocketAddr,
            /// How the program has ended.
            end: ProgramEnd,
        },
    }
}

impl Notice {
    /// The notice without reasons that a remote host may not learn: see [`Refusal::disclosed`].
    pub(crate) fn disclosed(mut self) -> Self {
        if let Self::SessionEnded { reason, .. } = &mut self {
            *reason = reason.disclosed();
        }
        self
    }
}
