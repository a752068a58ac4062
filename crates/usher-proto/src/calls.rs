//! Service process to keeper and back: the calls of netAuth (USENIX Security 2008, section 4),
//! one packet each on a local SOCK_SEQPACKET socket.
//!
//! Who asks is told by the kernel (SO_PEERCRED), never by the packet. The one descriptor that
//! travels is the user's listener beside [`CallReply::Queue`] (SCM_RIGHTS).

use crate::certificate::{Principals, put_principals, read_principals};
use crate::codec::{Reader, put_padded_name, put_short_name};
use crate::keeper_record::KEY_FINGERPRINT_SIZE;
use crate::{
    CONNECTION_TUPLE_SIZE, ConnectionTuple, DecodeError, HostName, Refusal, ServiceName, UserName,
    verdict,
};

/// Longest packet in bytes, in both directions.
pub const MAX_CALL_PACKET: usize = 1024;

/// Most supplementary groups of a user whom a process becomes by the calls: what the kernel's side
/// compares in one step.
pub const MAX_GROUPS: usize = 128;

/// Bytes of a reservation's name.
pub const RESERVATION_SIZE: usize = 16;

/// The version of the packets: programs link against a library older than the keeper.
pub const CALLS_VERSION: u8 = 2;

const ATTACH: u8 = 1;
const PRE_ACCEPT: u8 = 2;
const SET_NET_USER: u8 = 3;
const SETTLED: u8 = 4;
const ACCEPTED: u8 = 5;
const INFO: u8 = 6;
const ATTACHED: u8 = 129;
const RESERVED: u8 = 130;
const IDENTITY: u8 = 131;
const QUEUE: u8 = 132;
const CONNECTION: u8 = 133;
const REFUSED: u8 = 134;

const STYLE_CONNECTION: u8 = 0;
const STYLE_USER: u8 = 1;

/// A reserved user, for one process: random, so that a process knows those only that it was given
/// or that its parent had.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservationId([u8; RESERVATION_SIZE]);

impl ReservationId {
    /// From its bytes, which the keeper draws at random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; RESERVATION_SIZE]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for ReservationId {
    /// Without its bytes: knowing them is what entitles.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ReservationId")
    }
}

/// What a service's process asks of the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallRequest {
    /// The process serves the service at this port of the host.
    Attach {
        /// The port its listening socket is bound to; never zero.
        port: u16,
    },
    /// Wait for a user without a process; answered when there is one. After `Attach`.
    PreAccept,
    /// Let the asking process become the reserved user. The first packet of a connection.
    SetNetUser {
        /// Which.
        reservation: ReservationId,
    },
    /// The asking process has become the user: hand over the queue.
    Settled,
    /// The process has accepted its connection. In the style `connection` only.
    Accepted,
    /// Who is this connection? The first packet of a connection.
    Info {
        /// Its two ends.
        connection: ConnectionTuple,
    },
}

/// What the keeper answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallReply {
    /// The process may serve.
    Attached {
        /// The service's name.
        service: ServiceName,
        /// Whether one process serves all connections of a user.
        process_per_user: bool,
    },
    /// A user is reserved.
    Reserved {
        /// What a process shows to become the user.
        reservation: ReservationId,
        /// The user; never 0.
        uid: u32,
    },
    /// The process may become exactly this, once.
    Identity {
        /// User id; never 0.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups in ascending order, none twice; at most [`MAX_GROUPS`].
        groups: Vec<u32>,
    },
    /// The user's listener, in the accompanying descriptor.
    Queue,
    /// Who a connection is.
    Connection(ConnectionInfo),
    /// No.
    Refused(Refusal),
}

/// Who a connection is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionInfo {
    /// The local account of the user.
    pub uid: u32,
    /// The user.
    pub user: UserName,
    /// The service.
    pub service: ServiceName,
    /// The client's host, by the server's name for it.
    pub host: HostName,
    /// SHA-256 of the key that signed for the session.
    pub key_fingerprint: [u8; KEY_FINGERPRINT_SIZE],
    /// Principals of its certificate; none for a plain key.
    pub principals: Principals,
    /// When the session was opened, in seconds since 1970.
    pub opened: u64,
    /// When it ends at the latest, in seconds since 1970.
    pub expires: u64,
}

fn begin(kind: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_CALL_PACKET);
    out.extend_from_slice(&[CALLS_VERSION, kind]);
    out
}

fn start(packet: &[u8]) -> Result<(Reader<'_>, u8), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_CALL_PACKET)?;
    if reader.u8()? != CALLS_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    let kind = reader.u8()?;
    Ok((reader, kind))
}

impl CallRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Attach { port } => {
                let mut out = begin(ATTACH);
                out.extend_from_slice(&port.to_be_bytes());
                out
            }
            Self::PreAccept => begin(PRE_ACCEPT),
            Self::SetNetUser { reservation } => {
                let mut out = begin(SET_NET_USER);
                out.extend_from_slice(&reservation.0);
                out
            }
            Self::Settled => begin(SETTLED),
            Self::Accepted => begin(ACCEPTED),
            Self::Info { connection } => {
                let mut out = begin(INFO);
                out.extend_from_slice(&connection.encode());
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
            ATTACH => Self::Attach {
                port: match reader.u16()? {
                    0 => return Err(DecodeError::Malformed { field: "port" }),
                    port => port,
                },
            },
            PRE_ACCEPT => Self::PreAccept,
            SET_NET_USER => Self::SetNetUser {
                reservation: ReservationId(reader.array()?),
            },
            SETTLED => Self::Settled,
            ACCEPTED => Self::Accepted,
            INFO => Self::Info {
                connection: ConnectionTuple::decode(&reader.array::<CONNECTION_TUPLE_SIZE>()?)?,
            },
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

impl CallReply {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Attached {
                service,
                process_per_user,
            } => {
                let mut out = begin(ATTACHED);
                out.push(if *process_per_user {
                    STYLE_USER
                } else {
                    STYLE_CONNECTION
                });
                put_short_name(&mut out, service.as_str());
                out
            }
            Self::Reserved { reservation, uid } => {
                let mut out = begin(RESERVED);
                out.extend_from_slice(&reservation.0);
                out.extend_from_slice(&uid.to_be_bytes());
                out
            }
            Self::Identity { uid, gid, groups } => {
                let mut out = begin(IDENTITY);
                out.extend_from_slice(&uid.to_be_bytes());
                out.extend_from_slice(&gid.to_be_bytes());
                let count = u16::try_from(groups.len()).unwrap_or(u16::MAX);
                out.extend_from_slice(&count.to_be_bytes());
                for group in groups {
                    out.extend_from_slice(&group.to_be_bytes());
                }
                out
            }
            Self::Queue => begin(QUEUE),
            Self::Connection(info) => {
                let mut out = begin(CONNECTION);
                out.extend_from_slice(&info.uid.to_be_bytes());
                put_padded_name(&mut out, info.user.as_str(), UserName::MAXIMUM_LENGTH);
                put_padded_name(&mut out, info.service.as_str(), ServiceName::MAXIMUM_LENGTH);
                put_padded_name(&mut out, info.host.as_str(), HostName::MAXIMUM_LENGTH);
                out.extend_from_slice(&info.key_fingerprint);
                put_principals(&mut out, &info.principals);
                out.extend_from_slice(&info.opened.to_be_bytes());
                out.extend_from_slice(&info.expires.to_be_bytes());
                out
            }
            Self::Refused(refusal) => {
                let mut out = begin(REFUSED);
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
            ATTACHED => Self::Attached {
                process_per_user: match reader.u8()? {
                    STYLE_CONNECTION => false,
                    STYLE_USER => true,
                    _ => return Err(DecodeError::Malformed { field: "style" }),
                },
                service: reader.short_name("service")?,
            },
            RESERVED => Self::Reserved {
                reservation: ReservationId(reader.array()?),
                uid: user_id(&mut reader)?,
            },
            IDENTITY => Self::Identity {
                uid: user_id(&mut reader)?,
                gid: reader.u32()?,
                groups: groups(&mut reader)?,
            },
            QUEUE => Self::Queue,
            CONNECTION => Self::Connection(ConnectionInfo {
                uid: user_id(&mut reader)?,
                user: reader.padded_name(UserName::MAXIMUM_LENGTH, "user")?,
                service: reader.padded_name(ServiceName::MAXIMUM_LENGTH, "service")?,
                host: reader.padded_name(HostName::MAXIMUM_LENGTH, "host")?,
                key_fingerprint: reader.array()?,
                principals: read_principals(&mut reader)?,
                opened: reader.u64()?,
                expires: reader.u64()?,
            }),
            REFUSED => Self::Refused(verdict::read_refusal(&mut reader)?),
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

fn user_id(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    match reader.u32()? {
        0 | u32::MAX => Err(DecodeError::Malformed { field: "uid" }),
        uid => Ok(uid),
    }
}

fn groups(reader: &mut Reader<'_>) -> Result<Vec<u32>, DecodeError> {
    let count = usize::from(reader.u16()?);
    if count > MAX_GROUPS {
        return Err(DecodeError::Oversized);
    }
    let mut groups: Vec<u32> = Vec::with_capacity(count);
    for _ in 0..count {
        let group = reader.u32()?;
        if groups.last().is_some_and(|&last| last >= group) {
            return Err(DecodeError::Malformed { field: "groups" });
        }
        groups.push(group);
    }
    Ok(groups)
}
