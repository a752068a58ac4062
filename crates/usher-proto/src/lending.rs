//! Signer to a process that lends it the user's ssh-agent, and back: one packet each, in the
//! conversation that [`LocalRequest::Lend`](crate::LocalRequest::Lend) has begun.
//!
//! What is asked for is named whole, so that nothing but authenticators is ever signed for the
//! signer: what the agent is given to sign, the lender makes of the statement.

use crate::codec::{Reader, put_string};
use crate::local::LOCAL_VERSION;
use crate::{
    DecodeError, MAX_PUBLIC_KEY_SIZE, MAX_SIGNATURE_SIZE, MAX_STATEMENT_SIZE, Refusal, verdict,
};

/// Longest packet in bytes, in both directions.
pub const MAX_LENDING_PACKET: usize = 4640;

const SIGNATURE: u8 = 6;
const NOT_SIGNED: u8 = 7;
const REFUSED: u8 = 130;
const LENT: u8 = 133;
const SIGN: u8 = 134;
const REPLACED: u8 = 135;

/// What the signer says to the lender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ToLender {
    /// The agent is lent until the conversation ends.
    Lent,
    /// Sign this, soon.
    Sign {
        /// With which key: its wire form (RFC 4253 section 6.6).
        public_key: Vec<u8>,
        /// [`Statement::encode`](crate::Statement::encode)'s bytes.
        statement: Vec<u8>,
    },
    /// Another process of the user lends from now on; the conversation is over.
    Replaced,
    /// No, or no longer; the conversation is over.
    Refused(Refusal),
}

/// What the lender answers to [`ToLender::Sign`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FromLender {
    /// The agent's signature (RFC 4253 section 6.6). Nothing is promised about it.
    Signature(Vec<u8>),
    /// The agent does not sign.
    NotSigned,
}

fn start(packet: &[u8]) -> Result<(Reader<'_>, u8), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_LENDING_PACKET)?;
    if reader.u8()? != LOCAL_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    let kind = reader.u8()?;
    Ok((reader, kind))
}

impl ToLender {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Lent => vec![LOCAL_VERSION, LENT],
            Self::Sign {
                public_key,
                statement,
            } => {
                let mut out = vec![LOCAL_VERSION, SIGN];
                put_string(&mut out, public_key);
                put_string(&mut out, statement);
                out
            }
            Self::Replaced => vec![LOCAL_VERSION, REPLACED],
            Self::Refused(refusal) => {
                let mut out = vec![LOCAL_VERSION, REFUSED];
                out.extend_from_slice(&refusal.code().to_be_bytes());
                out
            }
        }
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, kind) = start(packet)?;
        let decoded = match kind {
            LENT => Self::Lent,
            SIGN => Self::Sign {
                public_key: reader.string(MAX_PUBLIC_KEY_SIZE)?.to_vec(),
                statement: reader.string(MAX_STATEMENT_SIZE)?.to_vec(),
            },
            REPLACED => Self::Replaced,
            REFUSED => Self::Refused(verdict::read_refusal(&mut reader)?),
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

impl FromLender {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Signature(signature) => {
                let mut out = vec![LOCAL_VERSION, SIGNATURE];
                put_string(&mut out, signature);
                out
            }
            Self::NotSigned => vec![LOCAL_VERSION, NOT_SIGNED],
        }
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, kind) = start(packet)?;
        let decoded = match kind {
            SIGNATURE => Self::Signature(reader.string(MAX_SIGNATURE_SIZE)?.to_vec()),
            NOT_SIGNED => Self::NotSigned,
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(decoded)
    }
}
