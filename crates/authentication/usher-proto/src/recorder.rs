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
use usher_base::codec::{Codec, Message, Reader, messages};

/// Longest packet in bytes.
pub const MAX_RECORDER_PACKET: usize = HEADER + Opening::MAX_SIZE + 4 + MAX_LOG_RECORD;

/// Bytes of an answer.
pub const RECORDER_REPLY_SIZE: usize = HEADER + 2;

/// The version of the packets.
pub const RECORDER_VERSION: u8 = 4;

/// Version, type, number of the request.
const HEADER: usize = 1 + 1 + 8;

/// A request to keep something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecorderRequest {
    /// The number that the answer will carry.
    pub request: u64,
    /// The thing to keep.
    pub keep: Keep,
}

messages! {
    /// A thing to keep.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum Keep {
        /// The record of an authentication.
        1 => Authentication(authentication: Box<Authentication>),
        /// The end of a session.
        2 => End(end: SessionEnd as Signed),
    }
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

messages! {
    enum Reply {
        129 => Kept(verdict: Result<(), Refusal> as Granted),
    }
}

fn packet(request: u64, message: &impl Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + Opening::MAX_SIZE);
    out.extend_from_slice(&[RECORDER_VERSION, message.kind()]);
    u64::put(&request, &mut out);
    message.put(&mut out);
    out
}

fn unpack<T: Message>(packet: &[u8]) -> Result<(u64, T), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_RECORDER_PACKET)?;
    reader.version(RECORDER_VERSION)?;
    let (kind, request) = (reader.u8()?, reader.u64()?);
    let message = T::read(kind, &mut reader)?;
    reader.finish()?;
    Ok((request, message))
}

impl Keep {
    /// The packet of a request with this number.
    #[must_use]
    pub fn packet(&self, request: u64) -> Vec<u8> {
        packet(request, self)
    }
}

impl RecorderRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.keep.packet(self.request)
    }

    /// Reads a packet.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (request, keep) = unpack(packet)?;
        Ok(Self { request, keep })
    }
}

impl RecorderReply {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        packet(self.request, &Reply::Kept(self.verdict))
    }

    /// Reads a packet.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (request, Reply::Kept(verdict)) = unpack(packet)?;
        Ok(Self { request, verdict })
    }
}
