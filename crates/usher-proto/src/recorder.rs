//! Keeper to recorder and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The recorder keeps what clients have signed when that is what the verifier says: a record is so
//! many bytes to the keeper; see [`crate::log_record`].

use crate::codec::{Reader, put_string};
use crate::log_record::MAX_LOG_RECORD;
use crate::opening::Opening;
use crate::{DecodeError, Refusal, verdict};

/// Longest packet in bytes.
pub const MAX_RECORDER_PACKET: usize = HEADER + Opening::MAX_SIZE + 4 + MAX_LOG_RECORD;

/// Bytes of an answer.
pub const RECORDER_REPLY_SIZE: usize = HEADER + 2;

/// The version of the packets.
pub const RECORDER_VERSION: u8 = 3;

const KEEP: u8 = 1;
const KEPT: u8 = 129;

/// Version, type, number of the request.
const HEADER: usize = 1 + 1 + 8;

/// A record to be kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderRequest {
    /// The number that the answer will carry.
    pub request: u64,
    /// What it says, by the verifier's word.
    pub opening: Box<Opening>,
    /// The record, at most [`MAX_LOG_RECORD`] bytes.
    pub record: Vec<u8>,
}

/// Whether a record is kept. It is on the disk, its signature good, and it says what was said of it,
/// when the verdict says so.
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
        Self::packet(self.request, &self.opening, &self.record)
    }

    /// The packet of these.
    #[must_use]
    pub fn packet(request: u64, opening: &Opening, record: &[u8]) -> Vec<u8> {
        let mut out = begin(KEEP, request, Opening::MAX_SIZE + 4 + record.len());
        opening.put(&mut out);
        put_string(&mut out, record);
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
            opening: Box::new(Opening::read(&mut reader)?),
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
        let mut out = begin(KEPT, self.request, RECORDER_REPLY_SIZE - HEADER);
        verdict::put(&mut out, self.verdict);
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
            verdict: verdict::read(&mut reader)?,
        };
        reader.finish()?;
        Ok(decoded)
    }
}
