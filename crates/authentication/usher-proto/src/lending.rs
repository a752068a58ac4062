//! Signer to a process that lends it the user's ssh-agent, and back: one packet each, in the
//! conversation that [`LocalRequest::Lend`](crate::LocalRequest::Lend) begins.
//!
//! The signer sends the whole statement, and the lender itself makes from it the bytes that the agent
//! signs. So the signer can get signatures of authenticators only.

use crate::local::LOCAL_VERSION;
use crate::{MAX_PUBLIC_KEY_SIZE, MAX_SIGNATURE_SIZE, MAX_STATEMENT_SIZE, Refusal};
use usher_base::codec::{Bytes, messages, packets};

/// Longest packet in bytes, in both directions.
pub const MAX_LENDING_PACKET: usize = 4640;

messages! {
    /// Messages of the signer to the lender.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum ToLender {
        /// The loan is refused, or ended; the conversation is over.
        130 => Refused(refusal: Refusal),
        /// The agent is lent until the conversation ends.
        133 => Lent,
        /// Sign this, soon.
        134 => Sign {
            /// The key to sign with, in its wire form (RFC 4253 section 6.6).
            public_key: Vec<u8> as Bytes<MAX_PUBLIC_KEY_SIZE>,
            /// The bytes of [`Statement::encode`](crate::Statement::encode).
            statement: Vec<u8> as Bytes<MAX_STATEMENT_SIZE>,
        },
        /// Another process of the user lends from now on; the conversation is over.
        135 => Replaced,
    }
}

messages! {
    /// Answers of the lender to [`ToLender::Sign`].
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum FromLender {
        /// The agent's signature (RFC 4253 section 6.6), unchecked.
        6 => Signature(signature: Vec<u8> as Bytes<MAX_SIGNATURE_SIZE>),
        /// The agent did not sign.
        7 => NotSigned,
    }
}

packets!(LOCAL_VERSION, MAX_LENDING_PACKET, ToLender, FromLender);
