//! Application to signer and back: one packet each on a local SOCK_SEQPACKET socket.
//!
//! Who asks is told by the kernel (SO_PEERCRED), never by the packet. The socket to be bound and
//! announced travels beside the request as a descriptor (SCM_RIGHTS).

use crate::codec::{Reader, put_short_name, put_socket_address};
use crate::{DecodeError, HostName, Refusal, ServiceName, verdict};
use std::net::SocketAddr;

/// Longest packet in bytes, in both directions.
pub const MAX_LOCAL_PACKET: usize = 256;

/// The version of the packets: programs link against a library older than the signer.
pub const LOCAL_VERSION: u8 = 1;

const CONNECT: u8 = 1;
const CONNECT_ON_BEHALF: u8 = 2;
const DONE: u8 = 3;
const CONNECT_WITH_TICKET: u8 = 4;
const LEND: u8 = 5;
const READY: u8 = 129;
const REFUSED: u8 = 130;
const FINISHED: u8 = 131;
const TICKET: u8 = 132;

/// What an application asks of the signer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocalRequest {
    /// Prepare the accompanying TCP socket for a connection of the asking user.
    Connect {
        /// To which host, by local policy's name.
        host: HostName,
        /// To which of its services.
        service: ServiceName,
    },
    /// The same for the user at the other end of a second accompanying descriptor, a loopback
    /// connection the proxy accepted. Only the proxy's account may ask this.
    ConnectOnBehalf {
        /// To which host.
        host: HostName,
        /// To which service.
        service: ServiceName,
    },
    /// As [`Self::Connect`], of a program that knows tickets: where the user has one, it is told
    /// instead ([`LocalReply::Ticket`]) and nothing is announced. When connecting with it fails,
    /// the program goes on with [`Self::Connect`].
    ConnectWithTicket {
        /// To which host.
        host: HostName,
        /// To which of its services.
        service: ServiceName,
    },
    /// The connection is made, or failed: the announcement is to be withdrawn.
    Done {
        /// Whether connect(2) succeeded.
        connected: bool,
    },
    /// Have the user's ssh-agent sign, through the asking process, while the conversation lasts:
    /// see [`crate::lending`].
    Lend,
}

/// What the signer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalReply {
    /// The socket is bound and announced: connect it there, within ten seconds.
    Ready {
        /// Address and port of the service.
        server: SocketAddr,
    },
    /// No; the undisguised reason, it is the user's own machine.
    Refused(Refusal),
    /// The announcement is withdrawn; the exchange is over.
    Finished,
    /// The user's connections to this address carry tokens: draw one for the socket and connect it
    /// there.
    Ticket {
        /// Address and port of the service.
        server: SocketAddr,
    },
}

fn begin(kind: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_LOCAL_PACKET);
    out.extend_from_slice(&[LOCAL_VERSION, kind]);
    out
}

fn start(packet: &[u8]) -> Result<(Reader<'_>, u8), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_LOCAL_PACKET)?;
    if reader.u8()? != LOCAL_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    let kind = reader.u8()?;
    Ok((reader, kind))
}

impl LocalRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, host, service) = match self {
            Self::Connect { host, service } => (CONNECT, host, service),
            Self::ConnectOnBehalf { host, service } => (CONNECT_ON_BEHALF, host, service),
            Self::ConnectWithTicket { host, service } => (CONNECT_WITH_TICKET, host, service),
            Self::Done { connected } => {
                let mut out = begin(DONE);
                out.push(u8::from(*connected));
                return out;
            }
            Self::Lend => return begin(LEND),
        };
        let mut out = begin(kind);
        put_short_name(&mut out, host.as_str());
        put_short_name(&mut out, service.as_str());
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, kind) = start(packet)?;
        let decoded = match kind {
            CONNECT => Self::Connect {
                host: reader.short_name("host")?,
                service: reader.short_name("service")?,
            },
            CONNECT_ON_BEHALF => Self::ConnectOnBehalf {
                host: reader.short_name("host")?,
                service: reader.short_name("service")?,
            },
            CONNECT_WITH_TICKET => Self::ConnectWithTicket {
                host: reader.short_name("host")?,
                service: reader.short_name("service")?,
            },
            DONE => Self::Done {
                connected: match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(DecodeError::Malformed { field: "connected" }),
                },
            },
            LEND => Self::Lend,
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

impl LocalReply {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready { server } => {
                let mut out = begin(READY);
                put_socket_address(&mut out, *server);
                out
            }
            Self::Refused(refusal) => {
                let mut out = begin(REFUSED);
                out.extend_from_slice(&refusal.code().to_be_bytes());
                out
            }
            Self::Finished => begin(FINISHED),
            Self::Ticket { server } => {
                let mut out = begin(TICKET);
                put_socket_address(&mut out, *server);
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
            READY => Self::Ready {
                server: reader.socket_address("server")?,
            },
            REFUSED => Self::Refused(verdict::read_refusal(&mut reader)?),
            FINISHED => Self::Finished,
            TICKET => Self::Ticket {
                server: reader.socket_address("server")?,
            },
            _ => return Err(DecodeError::UnknownType),
        };
        reader.finish()?;
        Ok(decoded)
    }
}
