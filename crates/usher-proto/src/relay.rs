//! Signer to courier and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The courier speaks TLS and holds no user's key; it carries frames without reading them. The
//! signer holds the keys and must think of the courier as taken over: what comes back is bounded
//! here and decoded as a [`ServerFrame`](crate::ServerFrame) there.

use crate::codec::{Reader, SOCKET_ADDRESS_SIZE, put_short_name, put_socket_address, put_string};
use crate::frame::{FRAME_LENGTH_SIZE, MAX_FRAME};
use crate::{DecodeError, HostName, HostPublicKey, Refusal, verdict};
use std::net::SocketAddr;

/// Longest packet in bytes, in both directions.
pub const MAX_RELAY_PACKET: usize = 9000;

/// Most addresses of one host's verifier.
pub const MAX_CONTROL_ADDRESSES: usize = 8;

/// The version of the packets.
pub const RELAY_VERSION: u8 = 1;

const FORWARD: u8 = 1;
const FRAME: u8 = 129;
const CHANNEL_LOST: u8 = 130;

/// What the signer asks of the courier.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RelayRequest {
    /// Send a frame on the control channel to a host; make the channel if there is none.
    Forward {
        /// The channel: the local name of the host.
        channel: HostName,
        /// The key the host must prove to hold.
        server_host_key: HostPublicKey,
        /// Where its verifier listens, in order of preference; 1 to [`MAX_CONTROL_ADDRESSES`].
        control: Vec<SocketAddr>,
        /// The encoded [`ClientFrame`](crate::ClientFrame), length included.
        frame: Vec<u8>,
    },
}

/// What the courier tells the signer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RelayReply {
    /// A frame came from a host.
    Frame {
        /// The channel it came on.
        channel: HostName,
        /// The payload of a [`ServerFrame`](crate::ServerFrame), without the length.
        frame: Vec<u8>,
    },
    /// The channel could not be made, or broke: no request on it will be answered any more.
    ChannelLost {
        /// The channel.
        channel: HostName,
        /// Why.
        refusal: Refusal,
    },
}

fn begin(kind: u8, channel: &HostName) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL_PACKET);
    out.extend_from_slice(&[RELAY_VERSION, kind]);
    put_short_name(&mut out, channel.as_str());
    out
}

/// Room for the usual packet, an announcement.
const USUAL_PACKET: usize = 256;

fn start(packet: &[u8]) -> Result<(Reader<'_>, u8), DecodeError> {
    let mut reader = Reader::bounded(packet, MAX_RELAY_PACKET)?;
    if reader.u8()? != RELAY_VERSION {
        return Err(DecodeError::UnknownVersion);
    }
    let kind = reader.u8()?;
    Ok((reader, kind))
}

impl RelayRequest {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self::Forward {
            channel,
            server_host_key,
            control,
            frame,
        } = self;
        let mut out = begin(FORWARD, channel);
        out.extend_from_slice(server_host_key.as_bytes());
        out.push(u8::try_from(control.len()).unwrap_or(u8::MAX));
        for address in control {
            put_socket_address(&mut out, *address);
        }
        put_string(&mut out, frame);
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, kind) = start(packet)?;
        if kind != FORWARD {
            return Err(DecodeError::UnknownType);
        }
        let channel = reader.short_name("channel")?;
        let server_host_key = HostPublicKey::from_bytes(reader.array()?);
        let count = usize::from(reader.u8()?);
        if count == 0 {
            return Err(DecodeError::Malformed { field: "control" });
        }
        if count > MAX_CONTROL_ADDRESSES {
            return Err(DecodeError::Oversized);
        }
        let mut addresses = Reader::new(reader.take(count * SOCKET_ADDRESS_SIZE)?);
        let mut control = Vec::with_capacity(count);
        for _ in 0..count {
            control.push(addresses.socket_address("control")?);
        }
        let frame = reader.string(FRAME_LENGTH_SIZE + MAX_FRAME)?.to_vec();
        reader.finish()?;
        Ok(Self::Forward {
            channel,
            server_host_key,
            control,
            frame,
        })
    }
}

impl RelayReply {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Frame { channel, frame } => {
                let mut out = begin(FRAME, channel);
                put_string(&mut out, frame);
                out
            }
            Self::ChannelLost { channel, refusal } => {
                let mut out = begin(CHANNEL_LOST, channel);
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
        if kind != FRAME && kind != CHANNEL_LOST {
            return Err(DecodeError::UnknownType);
        }
        let channel = reader.short_name("channel")?;
        let decoded = if kind == FRAME {
            Self::Frame {
                channel,
                frame: reader.string(MAX_FRAME)?.to_vec(),
            }
        } else {
            Self::ChannelLost {
                channel,
                refusal: verdict::read_refusal(&mut reader)?,
            }
        };
        reader.finish()?;
        Ok(decoded)
    }
}
