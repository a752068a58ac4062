//! The control channel: frames between a client host's courier and a server host's verifier,
//! inside TLS.
//!
//! `be32 length | u8 type | be64 request | body`; the length counts what follows it. The peer is
//! authenticated by its host key and still not trusted: everything is bounded.

use crate::chain::{CHAIN_ELEMENT_SIZE, ChainElement};
use crate::codec::{Reader, put_string};
use crate::statement::MAX_STATEMENT_SIZE;
use crate::token::TokenKey;
use crate::{
    Authenticator, CONNECTION_TUPLE_SIZE, ConnectionTuple, DecodeError, MAX_SIGNATURE_SIZE,
    Refusal, SessionId, TokenSlot, verdict,
};

/// Longest payload of a frame: what the length field may say, in bytes.
pub const MAX_FRAME: usize = 8192;

/// Bytes of the length field before the payload.
pub const FRAME_LENGTH_SIZE: usize = 4;

/// Shortest payload: a type and a request number.
const MIN_FRAME: usize = 1 + 8;

const OPEN: u8 = 1;
const ANNOUNCE: u8 = 2;
const WITHDRAW: u8 = 3;
const CLOSE: u8 = 4;
const PING: u8 = 5;
const TOKENS: u8 = 6;
const REAUTHENTICATE: u8 = 7;
const REPLY: u8 = 129;
const SESSION_ENDED: u8 = 130;
const PONG: u8 = 131;
const SLOT: u8 = 132;
const REAUTHENTICATE_WANTED: u8 = 133;

/// "This connection is about to be made": the chain element that proves it and the 4-tuple it is
/// good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announcement {
    /// The next element of the session's chain.
    pub element: ChainElement,
    /// The connection.
    pub connection: ConnectionTuple,
}

impl Announcement {
    /// Bytes of its encoding.
    pub(crate) const SIZE: usize = 4 + CHAIN_ELEMENT_SIZE + CONNECTION_TUPLE_SIZE;

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.element.put(out);
        out.extend_from_slice(&self.connection.encode());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let element = ChainElement::read(reader)?;
        let connection = ConnectionTuple::decode(&reader.array()?)?;
        Ok(Self {
            element,
            connection,
        })
    }
}

/// What a client host asks. Every frame is answered by one [`ServerFrame`] with its `request`;
/// the client chooses these numbers and uses each once a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientFrame {
    /// Opens a session and, where there is one already, announces its first connection in the same
    /// round trip.
    Open {
        /// Number of the request.
        request: u64,
        /// The signed statement.
        authenticator: Authenticator,
        /// The session's first connection, with the chain's first element.
        first: Option<Announcement>,
    },
    /// Announces another connection of a session.
    Announce {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// The connection.
        announcement: Announcement,
    },
    /// Takes an announcement back: the connection will not be made, or has been made and no
    /// second one from the same port may be.
    Withdraw {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// The connection.
        connection: ConnectionTuple,
    },
    /// Ends a session; its established connections are cut.
    Close {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
    },
    /// Asks whether the verifier lives.
    Ping {
        /// Number of the request.
        request: u64,
    },
    /// From now on SYNs of the session's connections carry tokens. Answered with
    /// [`ServerFrame::Slot`] where the server's kernel reads them.
    Tokens {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// What masks them.
        key: TokenKey,
    },
    /// The user is still there. Answers [`ServerFrame::Reauthenticate`], and is answered itself.
    Reauthenticate {
        /// Number of the request.
        request: u64,
        /// The session.
        session: SessionId,
        /// The next element of the session's chain.
        element: ChainElement,
    },
}

/// What a server host answers or tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerFrame {
    /// Answers a request.
    Reply {
        /// Number of the request.
        request: u64,
        /// Granted, or why not.
        verdict: Result<(), Refusal>,
    },
    /// A session ended on the server's side; nobody asked (request number 0 on the wire).
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Why.
        reason: Refusal,
    },
    /// Answers a ping.
    Pong {
        /// Number of the request.
        request: u64,
    },
    /// Grants tokens.
    Slot {
        /// Number of the request.
        request: u64,
        /// What the session is called in them.
        slot: TokenSlot,
    },
    /// The user is to be authenticated again: another element of the session's chain is wanted, or
    /// the session ends (request number 0 on the wire).
    Reauthenticate {
        /// The session.
        session: SessionId,
    },
}

fn begin(kind: u8, request: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(&[0; FRAME_LENGTH_SIZE]);
    out.push(kind);
    out.extend_from_slice(&request.to_be_bytes());
    out
}

fn finish(mut out: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(out.len() - FRAME_LENGTH_SIZE).unwrap_or(u32::MAX);
    out[..FRAME_LENGTH_SIZE].copy_from_slice(&length.to_be_bytes());
    out
}

impl ClientFrame {
    /// The whole frame, length included.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        finish(match self {
            Self::Open {
                request,
                authenticator,
                first,
            } => {
                let mut out = begin(OPEN, *request);
                put_string(&mut out, &authenticator.statement);
                put_string(&mut out, &authenticator.signature);
                if let Some(first) = first {
                    first.put(&mut out);
                }
                out
            }
            Self::Announce {
                request,
                session,
                announcement,
            } => {
                let mut out = begin(ANNOUNCE, *request);
                out.extend_from_slice(session.as_bytes());
                announcement.put(&mut out);
                out
            }
            Self::Withdraw {
                request,
                session,
                connection,
            } => {
                let mut out = begin(WITHDRAW, *request);
                out.extend_from_slice(session.as_bytes());
                out.extend_from_slice(&connection.encode());
                out
            }
            Self::Close { request, session } => {
                let mut out = begin(CLOSE, *request);
                out.extend_from_slice(session.as_bytes());
                out
            }
            Self::Ping { request } => begin(PING, *request),
            Self::Tokens {
                request,
                session,
                key,
            } => {
                let mut out = begin(TOKENS, *request);
                out.extend_from_slice(session.as_bytes());
                out.extend_from_slice(key.bytes());
                out
            }
            Self::Reauthenticate {
                request,
                session,
                element,
            } => {
                let mut out = begin(REAUTHENTICATE, *request);
                out.extend_from_slice(session.as_bytes());
                element.put(&mut out);
                out
            }
        })
    }

    /// Reads a payload: what follows the length.
    ///
    /// The statement and the signature inside an authenticator are bounded here, not read.
    ///
    /// # Errors
    /// [`DecodeError`]; the channel is then not usable any further.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(payload, MAX_FRAME)?;
        let kind = reader.u8()?;
        let request = reader.u64()?;
        let frame = match kind {
            OPEN => Self::Open {
                request,
                authenticator: Authenticator {
                    statement: reader.string(MAX_STATEMENT_SIZE)?.to_vec(),
                    signature: reader.string(MAX_SIGNATURE_SIZE)?.to_vec(),
                },
                first: if reader.is_empty() {
                    None
                } else {
                    Some(Announcement::read(&mut reader)?)
                },
            },
            ANNOUNCE => Self::Announce {
                request,
                session: SessionId::from_bytes(reader.array()?),
                announcement: Announcement::read(&mut reader)?,
            },
            WITHDRAW => Self::Withdraw {
                request,
                session: SessionId::from_bytes(reader.array()?),
                connection: ConnectionTuple::decode(&reader.array()?)?,
            },
            CLOSE => Self::Close {
                request,
                session: SessionId::from_bytes(reader.array()?),
            },
            PING => Self::Ping { request },
            TOKENS => Self::Tokens {
                request,
                session: SessionId::from_bytes(reader.array()?),
                key: TokenKey::from_bytes(reader.array()?),
            },
            REAUTHENTICATE => Self::Reauthenticate {
                request,
                session: SessionId::from_bytes(reader.array()?),
                element: ChainElement::read(&mut reader)?,
            },
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(frame)
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
            | Self::Reauthenticate { request, .. }
            | Self::Ping { request } => *request,
        }
    }
}

impl ServerFrame {
    /// The whole frame, length included. Reasons go out as [`Refusal::disclosed`] gives them, so
    /// that no caller can forget it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        finish(match self {
            Self::Reply { request, verdict } => {
                let mut out = begin(REPLY, *request);
                verdict::put(&mut out, verdict.map_err(Refusal::disclosed));
                out
            }
            Self::SessionEnded { session, reason } => {
                let mut out = begin(SESSION_ENDED, 0);
                out.extend_from_slice(session.as_bytes());
                out.extend_from_slice(&reason.disclosed().code().to_be_bytes());
                out
            }
            Self::Pong { request } => begin(PONG, *request),
            Self::Slot { request, slot } => {
                let mut out = begin(SLOT, *request);
                slot.put(&mut out);
                out
            }
            Self::Reauthenticate { session } => {
                let mut out = begin(REAUTHENTICATE_WANTED, 0);
                out.extend_from_slice(session.as_bytes());
                out
            }
        })
    }

    /// Reads a payload: what follows the length.
    ///
    /// # Errors
    /// [`DecodeError`]; the channel is then not usable any further.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(payload, MAX_FRAME)?;
        let kind = reader.u8()?;
        let request = reader.u64()?;
        let frame = match kind {
            REPLY => {
                let verdict = match verdict::read(&mut reader)? {
                    Ok(()) => Ok(()),
                    Err(reason) => Err(as_disclosed(reason)?),
                };
                Self::Reply { request, verdict }
            }
            SESSION_ENDED => {
                unasked(request)?;
                Self::SessionEnded {
                    session: SessionId::from_bytes(reader.array()?),
                    reason: as_disclosed(verdict::read_refusal(&mut reader)?)?,
                }
            }
            REAUTHENTICATE_WANTED => {
                unasked(request)?;
                Self::Reauthenticate {
                    session: SessionId::from_bytes(reader.array()?),
                }
            }
            PONG => Self::Pong { request },
            SLOT => Self::Slot {
                request,
                slot: TokenSlot::read(&mut reader)?,
            },
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(frame)
    }
}

/// What answers nothing has no number of a request.
fn unasked(request: u64) -> Result<(), DecodeError> {
    if request == 0 {
        Ok(())
    } else {
        Err(DecodeError::Malformed { field: "request" })
    }
}

/// Reasons that are never sent to another host are not accepted from one either.
fn as_disclosed(reason: Refusal) -> Result<Refusal, DecodeError> {
    if reason.disclosed() == reason {
        Ok(reason)
    } else {
        Err(DecodeError::Malformed { field: "refusal" })
    }
}

/// Puts frames together from the pieces a byte stream delivers. No I/O.
///
/// After each [`push`](Self::push), call [`next`](Self::next) until it gives `Ok(None)`. A wrong
/// length is an error as soon as its four bytes are there, before room for the frame is made; the
/// error stays, because a stream that lost its frame borders cannot be read on.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Where the first unread byte is.
    start: usize,
    failed: Option<DecodeError>,
}

impl FrameBuffer {
    /// Most bytes that may wait unread, whatever the caller pushes.
    pub const CAPACITY: usize = 16 * (FRAME_LENGTH_SIZE + MAX_FRAME);

    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends what the stream delivered. More than [`Self::CAPACITY`] unread bytes are not kept:
    /// [`next`](Self::next) then fails with [`DecodeError::Oversized`].
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        if bytes.len() > Self::CAPACITY - self.bytes.len() {
            self.fail(DecodeError::Oversized);
            return;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The payload of the next whole frame, nothing while it is not whole.
    ///
    /// # Errors
    /// [`DecodeError::Oversized`] or [`DecodeError::Truncated`] for a length that no frame has;
    /// the same error again ever after.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not be asked again"
    )]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, DecodeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let unread = &self.bytes[self.start..];
        let Some((length, rest)) = unread.split_first_chunk::<FRAME_LENGTH_SIZE>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(self.fail(DecodeError::Oversized));
        }
        if length < MIN_FRAME {
            return Err(self.fail(DecodeError::Truncated));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.start += FRAME_LENGTH_SIZE + length;
        Ok(Some(payload))
    }

    /// Number of bytes received and not yet given out as frames.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn fail(&mut self, error: DecodeError) -> DecodeError {
        self.failed = Some(error);
        self.bytes = Vec::new();
        self.start = 0;
        error
    }
}
