//! Keeper to recorder and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The recorder keeps what clients have signed when that is what the verifier says: a record is so
//! many bytes to the keeper; see [`crate::log_record`]. How a session ended it signs itself, by the
//! keeper's word.

use crate::codec::{Reader, put_string};
use crate::log_record::MAX_LOG_RECORD;
use crate::opening::Opening;
use crate::{DecodeError, MAX_SESSION_END_SIZE, Refusal, SessionEnd, verdict};

/// Longest packet in bytes.
pub const MAX_RECORDER_PACKET: usize = HEADER + Opening::MAX_SIZE + 4 + MAX_LOG_RECORD;

/// Bytes of an answer.
pub const RECORDER_REPLY_SIZE: usize = HEADER + 2;

/// The version of the packets.
pub const RECORDER_VERSION: u8 = 4;

const KEEP: u8 = 1;
const KEEP_END: u8 = 2;
const KEPT: u8 = 129;

/// Version, type, number of the request.
const HEADER: usize = 1 + 1 + 8;

/// Something to be kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderRequest {
    /// The number that the answer will carry.
    pub request: u64,
    /// What.
    pub keep: Keep,
}

/// What the recorder is to keep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// The record of an authentication.
    Authentication {
        /// What it says, by the verifier's word.
        opening: Box<Opening>,
        /// The record, at most [`MAX_LOG_RECORD`] bytes.
        record: Vec<u8>,
    },
    /// How a session has ended.
    End(SessionEnd),
}

/// Whether it is kept: on the disk, and an authentication's signature good and what was said of it
/// said by it, when the verdict says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecorderReply {
    /// The number of the request.
    pub request: u64,
    /// [`Refusal::RecorderUnavailable`] when the disk is full or fails, [`Refusal::Malformed`] for
    /// what is no record, was not signed or says something else, and those of certificates.
    pub verdict: Result<(), Refusal>,
}

fn begin(kind: u8, request: u64, more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + more);
    out.extend_from_slice(&[RECORDER_VERSION, kind]);
    out.extend_from_slice(&request.to_be_bytes());
    out
}

fn start(packet: &[u8]) -> Result<(Reader<'_>, u8, u64), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_RECORDER_PACKET)?;
    if reader.u8()? != RECORDER_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    let kind = reader.u8()?;
    let request = reader.u64()?;
    Ok((reader, kind, request))
}

impl RecorderRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match &self.keep {
            Keep::Authentication { opening, record } => {
                Self::authentication(self.request, opening, record)
            }
            Keep::End(end) => Self::end(self.request, end),
        }
    }

    /// The packet of the record of an authentication.
    #[must_use]
    pub fn authentication(request: u64, opening: &Opening, record: &[u8]) -> Vec<u8> {
        let mut out = begin(KEEP, request, Opening::MAX_SIZE + 4 + record.len());
        opening.put(&mut out);
        put_string(&mut out, record);
        out
    }

    /// The packet of the end of a session.
    #[must_use]
    pub fn end(request: u64, end: &SessionEnd) -> Vec<u8> {
        let mut out = begin(KEEP_END, request, 4 + MAX_SESSION_END_SIZE);
        put_string(&mut out, &end.encode());
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, kind, request) = start(packet)?;
        let keep = match kind {
            KEEP => Keep::Authentication {
                opening: Box::new(Opening::read(&mut reader)?),
                record: reader.string(MAX_LOG_RECORD)?.to_vec(),
            },
            KEEP_END => Keep::End(SessionEnd::decode(reader.string(MAX_SESSION_END_SIZE)?)?),
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(Self { request, keep })
    }
}

impl RecorderReply {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = begin(KEPT, self.request, RECORDER_REPLY_SIZE - HEADER);
        verdict::put(&mut out, self.verdict);
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, kind, request) = start(packet)?;
        if kind != KEPT {
            return Err(DecodeError::UnknownType);
        }
        let decoded = Self {
            request,
            verdict: verdict::read(&mut reader)?,
        };
        reader.finish()?;
        Ok(decoded)
    }
}
