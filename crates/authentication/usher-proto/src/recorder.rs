//! Keeper to recorder and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The recorder keeps a client's record ([`crate::log_record`]) if it matches the verifier's claim;
//! the keeper does not read it. The recorder itself signs ends of sessions, on the keeper's word.

use crate::log_record::MAX_LOG_RECORD;
use crate::opening::{Authentication, Opening};
use crate::refusal::Granted;
use crate::session_end::Signed;
use crate::{Refusal, SessionEnd};
use usher_base::DecodeError;
use usher_base::codec::{Codec, Reader};

/// Longest packet in bytes.
pub const MAX_RECORDER_PACKET: usize = HEADER + Opening::MAX_SIZE + 4 + MAX_LOG_RECORD;

/// Bytes of an answer.
pub const RECORDER_REPLY_SIZE: usize = HEADER + 2;

/// The version of the packets.
pub const RECORDER_VERSION: u8 = 4;

/// Version, type, number of the request.
const HEADER: usize = 1 + 1 + 8;

const KEEP: u8 = 1;
const KEEP_END: u8 = 2;
const KEPT: u8 = 129;

/// A request to keep something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderRequest {
    /// The number that the answer will carry.
    pub request: u64,
    /// The thing to keep.
    pub keep: Keep,
}

/// A thing to keep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// The record of an authentication.
    Authentication(Box<Authentication>),
    /// How a session has ended.
    End(SessionEnd),
}

/// The recorder's answer. When granted, the record is on disk, and the record of an authentication has
/// a valid signature and matches the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecorderReply {
    /// The number of the request.
    pub request: u64,
    /// [`Refusal::RecorderUnavailable`] when the disk is full or fails; [`Refusal::Malformed`] for
    /// bytes that are not a record, have no valid signature or differ from the claim; and those of
    /// certificates.
    pub verdict: Result<(), Refusal>,
}

fn packet(kind: u8, request: u64, put_body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + Opening::MAX_SIZE);
    out.extend_from_slice(&[RECORDER_VERSION, kind]);
    u64::put(&request, &mut out);
    put_body(&mut out);
    out
}

fn start(packet: &[u8]) -> Result<(u8, u64, Reader<'_>), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_RECORDER_PACKET)?;
    reader.version(RECORDER_VERSION)?;
    Ok((reader.u8()?, reader.u64()?, reader))
}

impl RecorderRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match &self.keep {
            Keep::Authentication(authentication) => {
                Self::authentication(self.request, authentication)
            }
            Keep::End(end) => Self::end(self.request, end),
        }
    }

    /// The packet of an authentication.
    #[must_use]
    pub fn authentication(request: u64, authentication: &Authentication) -> Vec<u8> {
        packet(KEEP, request, |out| {
            Authentication::put(authentication, out)
        })
    }

    /// The packet of the end of a session.
    #[must_use]
    pub fn end(request: u64, end: &SessionEnd) -> Vec<u8> {
        packet(KEEP_END, request, |out| Signed::put(end, out))
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (kind, request, mut reader) = start(packet)?;
        let keep = match kind {
            KEEP => Keep::Authentication(Box::read(&mut reader, "authentication")?),
            KEEP_END => Keep::End(Signed::read(&mut reader, "end")?),
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
        packet(KEPT, self.request, |out| Granted::put(&self.verdict, out))
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (kind, request, mut reader) = start(packet)?;
        if kind != KEPT {
            return Err(DecodeError::UnknownType);
        }
        let verdict = Granted::read(&mut reader, "verdict")?;
        reader.finish()?;
        Ok(Self { request, verdict })
    }
}
