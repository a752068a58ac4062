//! Signer to courier and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The courier speaks TLS and holds no user's key; it carries frames without reading them. The
//! signer holds the keys and must think of the courier as taken over: what comes back is bounded
//! here and decoded as a [`ServerFrame`](crate::ServerFrame) there.

use crate::frame::{FRAME_LENGTH_SIZE, MAX_FRAME};
use crate::{HostPublicKey, Refusal};
use std::net::SocketAddr;
use usher_base::codec::{Bytes, Codec, Reader, messages, packets};
use usher_base::{DecodeError, HostName};

/// Longest packet in bytes, in both directions.
pub const MAX_RELAY_PACKET: usize = 9000;

/// Most addresses of one host's verifier.
pub const MAX_CONTROL_ADDRESSES: usize = 8;

/// The version of the packets.
pub const RELAY_VERSION: u8 = 1;

messages! {
    /// What the signer asks of the courier.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum RelayRequest {
        /// Send a frame on the control channel to a host; make the channel if there is none.
        1 => Forward {
            /// The channel: the local name of the host.
            channel: HostName,
            /// The key the host must prove to hold.
            server_host_key: HostPublicKey,
            /// Where its verifier listens, in order of preference; 1 to
            /// [`MAX_CONTROL_ADDRESSES`].
            control: Vec<SocketAddr> as Addresses,
            /// The encoded [`ClientFrame`](crate::ClientFrame), length included.
            frame: Vec<u8> as Bytes<{ FRAME_LENGTH_SIZE + MAX_FRAME }>,
        },
    }
}

messages! {
    /// What the courier tells the signer.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum RelayReply {
        /// A frame came from a host.
        129 => Frame {
            /// The channel it came on.
            channel: HostName,
            /// The payload of a [`ServerFrame`](crate::ServerFrame), without the length.
            frame: Vec<u8> as Bytes<MAX_FRAME>,
        },
        /// The channel could not be made, or broke: no request on it will be answered any more.
        130 => ChannelLost {
            /// The channel.
            channel: HostName,
            /// Why.
            refusal: Refusal,
        },
    }
}

packets!(RELAY_VERSION, MAX_RELAY_PACKET, RelayRequest, RelayReply);

/// One byte of count, and the addresses.
struct Addresses;

impl Codec<Vec<SocketAddr>> for Addresses {
    fn put(value: &Vec<SocketAddr>, out: &mut Vec<u8>) {
        out.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
        for address in value {
            SocketAddr::put(address, out);
        }
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Vec<SocketAddr>, DecodeError> {
        match usize::from(reader.u8()?) {
            0 => Err(DecodeError::Malformed { field }),
            count @ 1..=MAX_CONTROL_ADDRESSES => (0..count)
                .map(|_| SocketAddr::read(reader, field))
                .collect(),
            _ => Err(DecodeError::Oversized),
        }
    }
}
