//! Verifier to keeper and back: fixed-size records on a SOCK_SEQPACKET socket.
//!
//! The verifier parses the network and must be thought of as taken over. What it can say to the
//! keeper is therefore one size, few types, validated names and numbers; the keeper checks every
//! permission again from its own policy. Behind the record that opens a session stands what the
//! recorder is to keep, which the keeper does not read.

use crate::chain::ChainElement;
use crate::codec::{Reader, put_padded_name, put_string};
use crate::log_record::MAX_LOG_RECORD;
use crate::opening::Opening;
use crate::token::TokenKey;
use crate::{
    Announcement, ConnectionTuple, DecodeError, HostName, Refusal, SessionId, TokenSlot, verdict,
};

/// Bytes of every record, in both directions.
pub const KEEPER_RECORD_SIZE: usize = 1344;

/// Longest request in bytes: a record, and what the recorder is to keep.
pub const MAX_KEEPER_REQUEST: usize = KEEPER_RECORD_SIZE + 4 + MAX_LOG_RECORD;

/// The version of the records: keeper and verifier are restarted apart.
pub const KEEPER_RECORD_VERSION: u8 = 6;

/// Bytes of a key's fingerprint: SHA-256 of its OpenSSH wire form, as `ssh-keygen -l` shows it.
pub const KEY_FINGERPRINT_SIZE: usize = 32;

const OPEN: u8 = 1;
const ANNOUNCE: u8 = 2;
const WITHDRAW: u8 = 3;
const CLOSE: u8 = 4;
const TOKENS: u8 = 5;
const REAUTHENTICATE: u8 = 6;
const VERDICT: u8 = 129;
const SESSION_ENDED: u8 = 130;
const SLOT: u8 = 131;
const REAUTHENTICATE_WANTED: u8 = 132;

/// What the verifier asks of the keeper. Each is answered by one [`KeeperReply::Verdict`], or by a
/// [`KeeperReply::Slot`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeeperRequest {
    /// A session, its authenticator verified, and perhaps its first connection. Granted when the
    /// recorder has kept the authenticator and says the same of it.
    Open {
        /// Number of the request, the verifier's.
        request: u64,
        /// From which host, by the server's name for it.
        host: HostName,
        /// What the authenticator says.
        opening: Box<Opening>,
        /// The first connection, announced when the session is open.
        first: Option<Announcement>,
        /// What the recorder is to keep, at most [`MAX_LOG_RECORD`] bytes: see
        /// [`crate::log_record`].
        record: Vec<u8>,
    },
    /// A connection of a session; the keeper checks the chain element.
    Announce {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// Whose control channel asked: the session must be this host\'s.
        host: HostName,
        /// The connection.
        announcement: Announcement,
    },
    /// An announcement taken back.
    Withdraw {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// Whose control channel asked: the session must be this host\'s.
        host: HostName,
        /// The connection.
        connection: ConnectionTuple,
    },
    /// The end of a session, on the client's wish.
    Close {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// Whose control channel asked: the session must be this host's.
        host: HostName,
    },
    /// SYNs of the session's connections will carry tokens.
    Tokens {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// Whose control channel asked: the session must be this host's.
        host: HostName,
        /// What masks them.
        key: TokenKey,
    },
    /// The user is still there; the keeper checks the chain element.
    Reauthenticate {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// Whose control channel asked: the session must be this host's.
        host: HostName,
        /// The next element of the session's chain.
        element: ChainElement,
    },
}

/// What the keeper answers or tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeeperReply {
    /// Answers a request, with the true reason: the verifier discloses less to the network.
    Verdict {
        /// Number of the request.
        request: u64,
        /// Granted, or why not.
        verdict: Result<(), Refusal>,
    },
    /// Grants tokens.
    Slot {
        /// Number of the request.
        request: u64,
        /// What the session is called in them.
        slot: TokenSlot,
    },
    /// The keeper ended a session: the verifier tells the host that opened it.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Whose control channel is to be told.
        host: HostName,
        /// Why.
        reason: Refusal,
    },
    /// The user is to be authenticated again: the verifier tells the host that opened the session.
    Reauthenticate {
        /// The session.
        session: SessionId,
        /// Whose control channel is to be told.
        host: HostName,
    },
}

fn begin(kind: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(KEEPER_RECORD_SIZE);
    out.extend_from_slice(&[KEEPER_RECORD_VERSION, kind]);
    out
}

/// The longest record: `Open`, with a first connection.
const _: () = assert!(
    2 + 8 + (1 + HostName::MAXIMUM_LENGTH) + (1 + Announcement::SIZE) + Opening::MAX_SIZE
        <= KEEPER_RECORD_SIZE
);

/// Pads with zeros. Nothing is ever cut.
fn finish(out: &[u8]) -> [u8; KEEPER_RECORD_SIZE] {
    let mut record = [0; KEEPER_RECORD_SIZE];
    record[..out.len()].copy_from_slice(out);
    record
}

fn start(record: &[u8; KEEPER_RECORD_SIZE]) -> Result<(Reader<'_>, u8), DecodeError> {
    let mut reader = Reader::new(record);
    if reader.u8()? != KEEPER_RECORD_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    let kind = reader.u8()?;
    Ok((reader, kind))
}

impl KeeperRequest {
    /// The record, and what stands behind it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut packet = self.record().to_vec();
        if let Self::Open { record, .. } = self {
            put_string(&mut packet, record);
        }
        packet
    }

    fn record(&self) -> [u8; KEEPER_RECORD_SIZE] {
        match self {
            Self::Open {
                request,
                host,
                opening,
                first,
                record: _,
            } => {
                let mut out = begin(OPEN);
                out.extend_from_slice(&request.to_be_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                out.push(first.is_some().into());
                if let Some(first) = first {
                    first.put(&mut out);
                }
                opening.put(&mut out);
                finish(&out)
            }
            Self::Announce {
                request,
                session,
                host,
                announcement,
            } => {
                let mut out = begin(ANNOUNCE);
                out.extend_from_slice(&request.to_be_bytes());
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                announcement.put(&mut out);
                finish(&out)
            }
            Self::Withdraw {
                request,
                session,
                host,
                connection,
            } => {
                let mut out = begin(WITHDRAW);
                out.extend_from_slice(&request.to_be_bytes());
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                out.extend_from_slice(&connection.encode());
                finish(&out)
            }
            Self::Close {
                request,
                session,
                host,
            } => {
                let mut out = begin(CLOSE);
                out.extend_from_slice(&request.to_be_bytes());
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                finish(&out)
            }
            Self::Tokens {
                request,
                session,
                host,
                key,
            } => {
                let mut out = begin(TOKENS);
                out.extend_from_slice(&request.to_be_bytes());
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                out.extend_from_slice(key.bytes());
                finish(&out)
            }
            Self::Reauthenticate {
                request,
                session,
                host,
                element,
            } => {
                let mut out = begin(REAUTHENTICATE);
                out.extend_from_slice(&request.to_be_bytes());
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                element.put(&mut out);
                finish(&out)
            }
        }
    }

    /// Reads a record of exactly [`KEEPER_RECORD_SIZE`] bytes, and what stands behind it.
    ///
    /// # Errors
    /// [`DecodeError`]; set padding is one.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (record, behind) = packet.split_first_chunk().ok_or(DecodeError::Truncated)?;
        let (mut reader, kind) = start(record)?;
        if !(OPEN..=REAUTHENTICATE).contains(&kind) {
            return Err(DecodeError::UnknownType);
        }
        let request = reader.u64()?;
        if kind == OPEN {
            return Self::open(reader, request, behind);
        }
        if !behind.is_empty() {
            return Err(DecodeError::Oversized);
        }
        let session = SessionId::from_bytes(reader.array()?);
        let decoded = match kind {
            ANNOUNCE => Self::Announce {
                request,
                session,
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
                announcement: Announcement::read(&mut reader)?,
            },
            WITHDRAW => Self::Withdraw {
                request,
                session,
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
                connection: ConnectionTuple::decode(&reader.array()?)?,
            },
            CLOSE => Self::Close {
                request,
                session,
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
            },
            REAUTHENTICATE => Self::Reauthenticate {
                request,
                session,
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
                element: ChainElement::read(&mut reader)?,
            },
            _ => Self::Tokens {
                request,
                session,
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
                key: TokenKey::from_bytes(reader.array()?),
            },
        };
        reader.zero_padding()?;
        Ok(decoded)
    }

    fn open(mut reader: Reader<'_>, request: u64, behind: &[u8]) -> Result<Self, DecodeError> {
        let mut behind = Reader::bounded(behind, MAX_KEEPER_REQUEST - KEEPER_RECORD_SIZE)?;
        let decoded = Self::Open {
            request,
            host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
            first: match reader.u8()? {
                0 => None,
                1 => Some(Announcement::read(&mut reader)?),
                _ => return Err(DecodeError::Malformed { field: "first" }),
            },
            opening: Box::new(Opening::read(&mut reader)?),
            record: behind.string(MAX_LOG_RECORD)?.to_vec(),
        };
        reader.zero_padding()?;
        behind.finish()?;
        Ok(decoded)
    }

    /// The number that the answer will carry.
    #[must_use]
    pub const fn request(&self) -> u64 {
        match self {
            Self::Open { request, .. }
            | Self::Announce { request, .. }
            | Self::Withdraw { request, .. }
            | Self::Close { request, .. }
            | Self::Tokens { request, .. }
            | Self::Reauthenticate { request, .. } => *request,
        }
    }
}

impl KeeperReply {
    /// The record.
    #[must_use]
    pub fn encode(&self) -> [u8; KEEPER_RECORD_SIZE] {
        match self {
            Self::Verdict { request, verdict } => {
                let mut out = begin(VERDICT);
                out.extend_from_slice(&request.to_be_bytes());
                verdict::put(&mut out, *verdict);
                finish(&out)
            }
            Self::Slot { request, slot } => {
                let mut out = begin(SLOT);
                out.extend_from_slice(&request.to_be_bytes());
                slot.put(&mut out);
                finish(&out)
            }
            Self::SessionEnded {
                session,
                host,
                reason,
            } => {
                let mut out = begin(SESSION_ENDED);
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                out.extend_from_slice(&reason.code().to_be_bytes());
                finish(&out)
            }
            Self::Reauthenticate { session, host } => {
                let mut out = begin(REAUTHENTICATE_WANTED);
                out.extend_from_slice(session.as_bytes());
                put_padded_name(&mut out, host.as_str(), HostName::MAXIMUM_LENGTH);
                finish(&out)
            }
        }
    }

    /// Reads a record of exactly [`KEEPER_RECORD_SIZE`] bytes.
    ///
    /// # Errors
    /// [`DecodeError`]; set padding is one.
    pub fn decode(record: &[u8]) -> Result<Self, DecodeError> {
        let (record, behind) = record.split_first_chunk().ok_or(DecodeError::Truncated)?;
        if !behind.is_empty() {
            return Err(DecodeError::Oversized);
        }
        let (mut reader, kind) = start(record)?;
        let decoded = match kind {
            VERDICT => Self::Verdict {
                request: reader.u64()?,
                verdict: verdict::read(&mut reader)?,
            },
            SESSION_ENDED => Self::SessionEnded {
                session: SessionId::from_bytes(reader.array()?),
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
                reason: verdict::read_refusal(&mut reader)?,
            },
            SLOT => Self::Slot {
                request: reader.u64()?,
                slot: TokenSlot::read(&mut reader)?,
            },
            REAUTHENTICATE_WANTED => Self::Reauthenticate {
                session: SessionId::from_bytes(reader.array()?),
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
            },
            _ => return Err(DecodeError::UnknownType),
        };
        reader.zero_padding()?;
        Ok(decoded)
    }
}
