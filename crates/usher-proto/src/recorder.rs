//! Keeper to recorder and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The recorder keeps what clients have signed, and says what that was: a record is so many bytes to
//! the keeper; see [`crate::log_record`].

use crate::codec::{Reader, put_string};
use crate::log_record::MAX_LOG_RECORD;
use crate::opening::Opening;
use crate::{DecodeError, Refusal, verdict};

/// Longest packet in bytes, in both directions.
pub const MAX_RECORDER_PACKET: usize = HEADER + 4 + MAX_LOG_RECORD;

/// The version of the packets.
pub const RECORDER_VERSION: u8 = 2;

const KEEP: u8 = 1;
const KEPT: u8 = 129;

/// Version, type, number of the request.
const HEADER: usize = 1 + 1 + 8;

/// A record to be kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderRequest {
    /// The number that the answer will carry.
    pub request: u64,
    /// The record, at most [`MAX_LOG_RECORD`] bytes.
    pub record: Vec<u8>,
}

/// Whether a record is kept. It is on the disk, and its signature good, when the verdict says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderReply {
    /// The number of the request.
    pub request: u64,
    /// What the record says; [`Refusal::RecorderUnavailable`] when the disk is full or fails,
    /// [`Refusal::Malformed`] for what is no record or was not signed, and those of certificates.
    pub verdict: Result<Box<Opening>, Refusal>,
}

fn begin(kind: u8, request: u64, more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + more);
    out.extend_from_slice(&[RECORDER_VERSION, kind]);
    out.extend_from_slice(&request.to_be_bytes());
    out
}

fn start(packet: &[u8], kind: u8) -> Result<(Reader<'_>, u64), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_RECORDER_PACKET)?;
    if reader.u8()? != RECORDER_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    if reader.u8()? != kind {
        return Err(DecodeError::UnknownType);
    }
    let request = reader.u64()?;
    Ok((reader, request))
}

impl RecorderRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = begin(KEEP, self.request, 4 + self.record.len());
        put_string(&mut out, &self.record);
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, request) = start(packet, KEEP)?;
        let decoded = Self {
            request,
            record: reader.string(MAX_LOG_RECORD)?.to_vec(),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

impl RecorderReply {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = begin(KEPT, self.request, 2 + Opening::MAX_SIZE);
        verdict::put(
            &mut out,
            self.verdict.as_ref().map(drop).map_err(|refusal| *refusal),
        );
        if let Ok(opening) = &self.verdict {
            opening.put(&mut out);
        }
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, request) = start(packet, KEPT)?;
        let decoded = Self {
            request,
            verdict: match verdict::read(&mut reader)? {
                Ok(()) => Ok(Box::new(Opening::read(&mut reader)?)),
                Err(refusal) => Err(refusal),
            },
        };
        reader.finish()?;
        Ok(decoded)
    }
}
