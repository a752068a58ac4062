//! Signer to a process that lends it the user's ssh-agent, and back: one packet each, in the
//! conversation that [`LocalRequest::Lend`](crate::LocalRequest::Lend) has begun.
//!
//! What is asked for is named whole, so that nothing but authenticators is ever signed for the
//! signer: what the agent is given to sign, the lender makes of the statement.

use crate::local::LOCAL_VERSION;
use crate::{MAX_PUBLIC_KEY_SIZE, MAX_SIGNATURE_SIZE, MAX_STATEMENT_SIZE, Refusal};
use usher_base::codec::{Bytes, messages, packets};

/// Longest packet in bytes, in both directions.
pub const MAX_LENDING_PACKET: usize = 4640;

messages! {
    /// What the signer says to the lender.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum ToLender {
        /// No, or no longer; the conversation is over.
        130 => Refused(refusal: Refusal),
        /// The agent is lent until the conversation ends.
        133 => Lent,
        /// Sign this, soon.
        134 => Sign {
            /// With which key: its wire form (RFC 4253 section 6.6).
            public_key: Vec<u8> as Bytes<MAX_PUBLIC_KEY_SIZE>,
            /// [`Statement::encode`](crate::Statement::encode)'s bytes.
            statement: Vec<u8> as Bytes<MAX_STATEMENT_SIZE>,
        },
        /// Another process of the user lends from now on; the conversation is over.
        135 => Replaced,
    }
}

messages! {
    /// What the lender answers to [`ToLender::Sign`].
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum FromLender {
        /// The agent's signature (RFC 4253 section 6.6). Nothing is promised about it.
        6 => Signature(signature: Vec<u8> as Bytes<MAX_SIGNATURE_SIZE>),
        /// The agent does not sign.
        7 => NotSigned,
    }
}

packets!(LOCAL_VERSION, MAX_LENDING_PACKET, ToLender, FromLender);
