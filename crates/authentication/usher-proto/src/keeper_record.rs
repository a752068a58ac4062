//! Verifier to keeper and back: fixed-size records on a SOCK_SEQPACKET socket.
//!
//! The verifier parses the network, so the keeper treats it as subverted: records have one size, few
//! types, validated names and numbers, and the keeper checks every permission again by its own policy.
//! The log's record follows the keeper record that opens a session; the keeper passes it to the
//! recorder unread.
//!
//! A record about a session is the control channel's frame about it, with the host in front.

use crate::SessionId;
use crate::log_record::MAX_LOG_RECORD;
use crate::opening::{Authentication, Opening};
use crate::session_request::{Announcement, Answer, Notice, SessionRequest, Verdict};
use usher_base::codec::{Codec, Message, Reader, put_string};
use usher_base::{DecodeError, HostName, Padded};

/// Bytes of every record, in both directions.
pub const KEEPER_RECORD_SIZE: usize = 1344;

/// Longest request in bytes: a keeper record, and the log's record.
pub const MAX_KEEPER_REQUEST: usize = KEEPER_RECORD_SIZE + 4 + MAX_LOG_RECORD;

/// The version of the records. Keeper and verifier restart separately.
pub const KEEPER_RECORD_VERSION: u8 = 7;

const OPEN: u8 = 1;

/// The verifier's request. Each is answered by one [`KeeperReply::Answer`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeeperRequest {
    /// The verifier's number for the request.
    pub request: u64,
    /// The host whose control channel asked, by the server's name for it. The session must belong to
    /// this host.
    pub host: HostName,
    /// The request.
    pub body: KeeperBody,
}

/// Requests of the verifier to the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeeperBody {
    /// Opens a session whose authenticator is verified, and may announce its first connection. Granted
    /// when the recorder has kept the authenticator and agrees with the verifier about its contents.
    Open {
        /// The contents of the authenticator, and the log's record.
        authentication: Box<Authentication>,
        /// The first connection, which is announced once the session is open.
        first: Option<Announcement>,
    },
    /// The client host's request about a session. The keeper checks the elements of its chain.
    Session(SessionId, SessionRequest),
}

/// Answers and notices of the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeeperReply {
    /// Answers a request, with the true reason. The verifier discloses less to the network.
    Answer {
        /// Number of the request.
        request: u64,
        /// Granted, or why not.
        verdict: Verdict,
    },
    /// A notice for the host that opened the session.
    Notice {
        /// The other host.
        host: HostName,
        /// The notice.
        notice: Notice,
    },
}

/// The longest record: `Open`, with a first connection.
const _: () = assert!(
    2 + 8 + (1 + HostName::MAXIMUM_LENGTH) + (1 + Announcement::SIZE) + Opening::MAX_SIZE
        <= KEEPER_RECORD_SIZE
);

/// A record, padded with zeros and never cut.
fn record(kind: u8, put_body: impl FnOnce(&mut Vec<u8>)) -> [u8; KEEPER_RECORD_SIZE] {
    let mut out = Vec::with_capacity(KEEPER_RECORD_SIZE);
    out.extend_from_slice(&[KEEPER_RECORD_VERSION, kind]);
    put_body(&mut out);
    let mut record = [0; KEEPER_RECORD_SIZE];
    record[..out.len()].copy_from_slice(&out);
    record
}

/// The type and the body of a record, and the bytes after it.
fn start_record(packet: &[u8]) -> Result<(u8, Reader<'_>, &[u8]), DecodeError> {
    let (record, behind) = packet
        .split_first_chunk::<KEEPER_RECORD_SIZE>()
        .ok_or(DecodeError::Truncated)?;
    let mut reader = Reader::new(record);
    reader.version(KEEPER_RECORD_VERSION)?;
    Ok((reader.u8()?, reader, behind))
}

fn nothing(behind: &[u8]) -> Result<(), DecodeError> {
    if behind.is_empty() {
        Ok(())
    } else {
        Err(DecodeError::Oversized)
    }
}

impl KeeperRequest {
    /// The record, and the bytes after it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let put_head = |out: &mut Vec<u8>| {
            u64::put(&self.request, out);
            Padded::put(&self.host, out);
        };
        match &self.body {
            KeeperBody::Open {
                authentication,
                first,
            } => {
                let mut packet = record(OPEN, |out| {
                    put_head(out);
                    Option::put(first, out);
                    Opening::put(&authentication.opening, out);
                })
                .to_vec();
                put_string(&mut packet, &authentication.record);
                packet
            }
            KeeperBody::Session(session, asked) => record(asked.kind(), |out| {
                put_head(out);
                SessionId::put(session, out);
                asked.put(out);
            })
            .to_vec(),
        }
    }

    /// Reads a record of exactly [`KEEPER_RECORD_SIZE`] bytes, and the bytes after it.
    ///
    /// # Errors
    /// [`DecodeError`], also for padding that is not zero.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut reader, behind) = start_record(packet)?;
        if kind != OPEN && !SessionRequest::KINDS.contains(&kind) {
            return Err(DecodeError::UnknownType);
        }
        let request = reader.u64()?;
        let host = Padded::read(&mut reader, "host")?;
        let body = if kind == OPEN {
            let mut behind = Reader::bounded(behind, MAX_KEEPER_REQUEST - KEEPER_RECORD_SIZE)?;
            let first = Option::read(&mut reader, "first")?;
            let authentication = Box::new(Authentication {
                opening: Opening::read(&mut reader, "opening")?,
                record: behind.string(MAX_LOG_RECORD)?.to_vec(),
            });
            behind.finish()?;
            KeeperBody::Open {
                authentication,
                first,
            }
        } else {
            nothing(behind)?;
            let session = SessionId::read(&mut reader, "session")?;
            KeeperBody::Session(session, SessionRequest::read(kind, &mut reader)?)
        };
        reader.zero_padding()?;
        Ok(Self {
            request,
            host,
            body,
        })
    }
}

impl KeeperReply {
    /// The record.
    #[must_use]
    pub fn encode(&self) -> [u8; KEEPER_RECORD_SIZE] {
        match self {
            Self::Answer { request, verdict } => {
                let answer = Answer::from(*verdict);
                record(answer.kind(), |out| {
                    u64::put(request, out);
                    answer.put(out);
                })
            }
            Self::Notice { host, notice } => record(notice.kind(), |out| {
                Padded::put(host, out);
                notice.put(out);
            }),
        }
    }

    /// Reads a record of exactly [`KEEPER_RECORD_SIZE`] bytes.
    ///
    /// # Errors
    /// [`DecodeError`], also for padding that is not zero.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut reader, behind) = start_record(packet)?;
        nothing(behind)?;
        let reply = if Notice::KINDS.contains(&kind) {
            Self::Notice {
                host: Padded::read(&mut reader, "host")?,
                notice: Notice::read(kind, &mut reader)?,
            }
        } else if Answer::KINDS.contains(&kind) {
            Self::Answer {
                request: reader.u64()?,
                verdict: Answer::read(kind, &mut reader)?.into(),
            }
        } else {
            return Err(DecodeError::UnknownType);
        };
        reader.zero_padding()?;
        Ok(reply)
    }
}
