//! The control channel: frames between a client host's courier and a server host's verifier,
//! inside TLS.
//!
//! `be32 length | u8 type | be64 request | body`; the length counts the bytes after it. TLS
//! authenticates the peer by its host key, but the peer is not trusted: everything is bounded.

use crate::session_request::{Announcement, Answer, Notice, SessionRequest, Verdict};
use crate::{Authenticator, Refusal, SessionId};
use usher_base::DecodeError;
use usher_base::codec::{Codec, Message, Reader, Rest, USUAL};

/// Longest payload of a frame in bytes: the largest value of the length field.
pub const MAX_FRAME: usize = 8192;

/// Bytes of the length field before the payload.
pub const FRAME_LENGTH_SIZE: usize = 4;

/// Shortest payload: a type and a request number.
const MIN_FRAME: usize = 1 + 8;

const OPEN: u8 = 1;
const PING: u8 = 5;
const PONG: u8 = 131;

/// A client host's request. Every frame is answered by one [`ServerFrame`] with its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientFrame {
    /// Number of the request. The client chooses these numbers and uses each once a channel.
    pub request: u64,
    /// The request.
    pub body: ClientBody,
}

/// Requests of a client host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientBody {
    /// Opens a session. If it already has a first connection, announces that in the same round trip.
    Open {
        /// The signed statement. The frame's decoder checks only its length.
        authenticator: Authenticator,
        /// The session's first connection, with the chain's first element.
        first: Option<Announcement>,
    },
    /// A request about a session.
    Session(SessionId, SessionRequest),
    /// Asks whether the verifier is alive.
    Ping,
}

/// Answers and notices of a server host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerFrame {
    /// Answers a request.
    Answer {
        /// Number of the request.
        request: u64,
        /// Granted, or why not.
        verdict: Verdict,
    },
    /// Reports something about a session that no request asked for (request number 0 on the wire).
    Notice(Notice),
    /// Answers a ping.
    Pong {
        /// Number of the request.
        request: u64,
    },
}

fn frame(kind: u8, request: u64, put_body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL);
    out.extend_from_slice(&[0; FRAME_LENGTH_SIZE]);
    out.push(kind);
    u64::put(&request, &mut out);
    put_body(&mut out);
    let length = u32::try_from(out.len() - FRAME_LENGTH_SIZE).unwrap_or(u32::MAX);
    out[..FRAME_LENGTH_SIZE].copy_from_slice(&length.to_be_bytes());
    out
}

/// Type, request and body of a payload.
fn start_frame(payload: &[u8]) -> Result<(u8, u64, Reader<'_>), DecodeError> {
    let mut reader = Reader::bounded(payload, MAX_FRAME)?;
    Ok((reader.u8()?, reader.u64()?, reader))
}

impl ClientFrame {
    /// The whole frame, length included.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match &self.body {
            ClientBody::Open {
                authenticator,
                first,
            } => frame(OPEN, self.request, |out| {
                Authenticator::put(authenticator, out);
                Rest::put(first, out);
            }),
            ClientBody::Session(session, asked) => frame(asked.kind(), self.request, |out| {
                SessionId::put(session, out);
                asked.put(out);
            }),
            ClientBody::Ping => frame(PING, self.request, |_| {}),
        }
    }

    /// Reads a payload, without the length.
    ///
    /// # Errors
    /// [`DecodeError`]; the channel is then unusable.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let (kind, request, mut reader) = start_frame(payload)?;
        let body = match kind {
            OPEN => ClientBody::Open {
                authenticator: Authenticator::read(&mut reader, "authenticator")?,
                first: Rest::read(&mut reader, "first")?,
            },
            PING => ClientBody::Ping,
            _ if SessionRequest::KINDS.contains(&kind) => ClientBody::Session(
                SessionId::read(&mut reader, "session")?,
                SessionRequest::read(kind, &mut reader)?,
            ),
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(Self { request, body })
    }
}

impl ServerFrame {
    /// The whole frame, length included. Reasons become those of [`Refusal::disclosed`] here, so that no
    /// caller can forget to replace them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self.disclosed() {
            Self::Answer { request, verdict } => {
                let answer = Answer::from(verdict);
                frame(answer.kind(), request, |out| answer.put(out))
            }
            Self::Notice(notice) => frame(notice.kind(), 0, |out| notice.put(out)),
            Self::Pong { request } => frame(PONG, request, |_| {}),
        }
    }

    /// Reads a payload, without the length. Refuses reasons that are never sent to another host.
    ///
    /// # Errors
    /// [`DecodeError`]; the channel is then unusable.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let (kind, request, mut reader) = start_frame(payload)?;
        let frame = if kind == PONG {
            Self::Pong { request }
        } else if Notice::KINDS.contains(&kind) {
            // A notice answers no request.
            if request != 0 {
                return Err(DecodeError::Malformed { field: "request" });
            }
            Self::Notice(Notice::read(kind, &mut reader)?)
        } else {
            let verdict = Answer::read(kind, &mut reader)?.into();
            Self::Answer { request, verdict }
        };
        reader.finish()?;
        if frame != frame.disclosed() {
            return Err(DecodeError::Malformed { field: "refusal" });
        }
        Ok(frame)
    }

    /// The frame without reasons that a remote host may not learn.
    fn disclosed(self) -> Self {
        match self {
            Self::Answer { request, verdict } => Self::Answer {
                request,
                verdict: verdict.map_err(Refusal::disclosed),
            },
            Self::Notice(notice) => Self::Notice(notice.disclosed()),
            pong @ Self::Pong { .. } => pong,
        }
    }
}

/// Assembles frames from the pieces that a byte stream delivers. No I/O.
///
/// After each [`push`](Self::push), call [`next`](Self::next) until it returns `Ok(None)`. A wrong
/// length is an error as soon as its four bytes have arrived, before memory is allocated for the
/// frame. The error is permanent, because the stream has lost its frame borders.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Offset of the first unread byte.
    start: usize,
    failed: Option<DecodeError>,
}

impl FrameBuffer {
    /// Limit of unread bytes.
    pub const CAPACITY: usize = 16 * (FRAME_LENGTH_SIZE + MAX_FRAME);

    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes from the stream. Beyond [`Self::CAPACITY`] unread bytes, [`next`](Self::next)
    /// fails with [`DecodeError::Oversized`].
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

    /// The payload of the next frame; none until all of it has arrived.
    ///
    /// # Errors
    /// [`DecodeError::Oversized`] or [`DecodeError::Truncated`] for a length that no frame has, and
    /// from then on always.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends with its first None"
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

    /// Number of received bytes that [`next`](Self::next) has not returned yet.
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
