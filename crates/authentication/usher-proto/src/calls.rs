//! Service process to keeper and back: the calls of netAuth (USENIX Security 2008, section 4),
//! one packet each on a local SOCK_SEQPACKET socket.
//!
//! The kernel identifies the caller (SO_PEERCRED), never the packet. Only the user's listener travels
//! as a descriptor, beside [`CallReply::Queue`] (SCM_RIGHTS).

use crate::key::KEY_FINGERPRINT_SIZE;
use crate::{Principals, Refusal};
use usher_base::codec::{Codec, Reader, fields, messages, packets, plain_bytes};
use usher_base::{ConnectionTuple, DecodeError, HostName, Padded, ServiceName, UserName};

/// Longest packet in bytes, in both directions.
pub const MAX_CALL_PACKET: usize = 1024;

/// Limit of supplementary groups of a user whom a process becomes by the calls: the kernel program
/// compares that many in one step.
pub const MAX_GROUPS: usize = 128;

/// Bytes of a reservation's name.
pub const RESERVATION_SIZE: usize = 16;

/// The version of the packets: a program may use a library that is older than the keeper.
pub const CALLS_VERSION: u8 = 2;

plain_bytes! {
    /// Names the reservation of a user for one process. Random, drawn by the keeper: a process knows
    /// only the reservations that it or its parent was given.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ReservationId([u8; RESERVATION_SIZE]);
}

impl std::fmt::Debug for ReservationId {
    /// Leaves out the bytes, which are the credential.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ReservationId")
    }
}

messages! {
    /// Requests of a service's process to the keeper.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum CallRequest {
        /// The process serves the service at this port of the host.
        1 => Attach {
            /// The port its listening socket is bound to; never zero.
            port: u16 as Port,
        },
        /// Wait for a user without a process; answered when there is one. After `Attach`.
        2 => PreAccept,
        /// Let the asking process become the reserved user. The first packet of a connection.
        3 => SetNetUser {
            /// The reservation.
            reservation: ReservationId,
        },
        /// The asking process has become the user: hand over the queue.
        4 => Settled,
        /// The process has accepted its connection. In the style `connection` only.
        5 => Accepted,
        /// Asks which user a connection belongs to. The first packet of a connection.
        6 => Info {
            /// The connection's two endpoints.
            connection: ConnectionTuple,
        },
    }
}

messages! {
    /// Answers of the keeper.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum CallReply {
        /// The process may serve.
        129 => Attached {
            /// Whether one process serves all connections of a user.
            process_per_user: bool,
            /// The service's name.
            service: ServiceName,
        },
        /// A user is reserved.
        130 => Reserved {
            /// The reservation, which a process shows to become the user.
            reservation: ReservationId,
            /// The user; never 0.
            uid: u32 as UserId,
        },
        /// The process may become exactly this identity, once.
        131 => Identity {
            /// User id; never 0.
            uid: u32 as UserId,
            /// Group id.
            gid: u32,
            /// Supplementary groups in ascending order, none twice; at most [`MAX_GROUPS`].
            groups: Vec<u32> as Groups,
        },
        /// The user's listener, in the accompanying descriptor.
        132 => Queue,
        /// The user of a connection.
        133 => Connection(connection: ConnectionInfo),
        /// The request is refused.
        134 => Refused(refusal: Refusal),
    }
}

packets!(CALLS_VERSION, MAX_CALL_PACKET, CallRequest, CallReply);

/// The user of a connection, and the session that admitted it.
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
    /// Principals of the key's certificate; none for a plain key.
    pub principals: Principals,
    /// When the session was opened, in seconds since 1970.
    pub opened: u64,
    /// When the session ends at the latest, in seconds since 1970.
    pub expires: u64,
}

fields! {
    ConnectionInfo {
        uid: u32 as UserId,
        user: UserName as Padded,
        service: ServiceName as Padded,
        host: HostName as Padded,
        key_fingerprint: [u8; KEY_FINGERPRINT_SIZE],
        principals: Principals,
        opened: u64,
        expires: u64,
    }
}

/// A port other than zero.
struct Port;

impl Codec<u16> for Port {
    fn put(value: &u16, out: &mut Vec<u8>) {
        u16::put(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<u16, DecodeError> {
        match reader.u16()? {
            0 => Err(DecodeError::Malformed { field }),
            port => Ok(port),
        }
    }
}

/// An account: neither root nor the number that means no account.
struct UserId;

impl Codec<u32> for UserId {
    fn put(value: &u32, out: &mut Vec<u8>) {
        u32::put(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<u32, DecodeError> {
        match reader.u32()? {
            0 | u32::MAX => Err(DecodeError::Malformed { field }),
            uid => Ok(uid),
        }
    }
}

/// Two bytes of count, and the groups in ascending order.
struct Groups;

impl Codec<Vec<u32>> for Groups {
    fn put(value: &Vec<u32>, out: &mut Vec<u8>) {
        u16::put(&u16::try_from(value.len()).unwrap_or(u16::MAX), out);
        for group in value {
            u32::put(group, out);
        }
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Vec<u32>, DecodeError> {
        let count = usize::from(reader.u16()?);
        if count > MAX_GROUPS {
            return Err(DecodeError::Oversized);
        }
        let groups: Vec<u32> = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        if groups.is_sorted_by(|one, next| one < next) {
            Ok(groups)
        } else {
            Err(DecodeError::Malformed { field })
        }
    }
}
