//! Signer to courier and back: one packet each on a SOCK_SEQPACKET socket.
//!
//! The courier speaks TLS, holds no keys of users, and carries frames without reading them. The signer
//! holds the keys and treats the courier as subverted: answers are bounded here, and the signer
//! decodes them as [`ServerFrame`](crate::ServerFrame)s.

use crate::frame::{FRAME_LENGTH_SIZE, MAX_FRAME};
use crate::host_key::MAX_HOST_KEYS;
use crate::{HostPublicKey, Refusal};
use std::net::SocketAddr;
use usher_base::codec::{Bytes, Codec, Reader, messages, packets};
use usher_base::{DecodeError, HostName};

/// Longest packet in bytes, in both directions.
pub const MAX_RELAY_PACKET: usize = 9000;

/// Limit of channels at one time; the signer's policy has no more hosts.
pub const MAX_CHANNELS: usize = 1024;

/// Limit of addresses of one host's verifier.
pub const MAX_CONTROL_ADDRESSES: usize = 8;

/// The version of the packets.
pub const RELAY_VERSION: u8 = 2;

messages! {
    /// Requests of the signer to the courier.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum RelayRequest {
        /// Send a frame on the control channel to a host; open the channel if there is none.
        1 => Forward {
            /// The channel: the local name of the host.
            channel: HostName,
            /// The keys of which the host must prove to hold one; 1 to [`MAX_HOST_KEYS`].
            server_host_keys: Vec<HostPublicKey> as Keys,
            /// The addresses of the host's verifier, in order of preference; 1 to [`MAX_CONTROL_ADDRESSES`].
            control: Vec<SocketAddr> as Addresses,
            /// The encoded [`ClientFrame`](crate::ClientFrame), length included.
            frame: Vec<u8> as Bytes<{ FRAME_LENGTH_SIZE + MAX_FRAME }>,
        },
    }
}

messages! {
    /// Messages of the courier to the signer.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum RelayReply {
        /// A frame came from a host.
        129 => Frame {
            /// The channel on which the frame came.
            channel: HostName,
            /// The payload of a [`ServerFrame`](crate::ServerFrame), without the length.
            frame: Vec<u8> as Bytes<MAX_FRAME>,
        },
        /// The channel could not be opened, or broke: its open requests will get no answers.
        130 => ChannelLost {
            /// The channel.
            channel: HostName,
            /// The reason.
            refusal: Refusal,
        },
        /// The channel is open.
        131 => ChannelOpen {
            /// The channel.
            channel: HostName,
            /// The address of the verifier that has answered: one of those of the request.
            address: SocketAddr,
            /// The key that the host has proven to hold: one of those of the request.
            key: HostPublicKey,
        },
    }
}

packets!(RELAY_VERSION, MAX_RELAY_PACKET, RelayRequest, RelayReply);

/// One byte of count, and the addresses.
struct Addresses;

impl Codec<Vec<SocketAddr>> for Addresses {
    fn put(value: &Vec<SocketAddr>, out: &mut Vec<u8>) {
        put_counted(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Vec<SocketAddr>, DecodeError> {
        read_counted(MAX_CONTROL_ADDRESSES, reader, field)
    }
}

/// One byte of count, and the keys.
struct Keys;

impl Codec<Vec<HostPublicKey>> for Keys {
    fn put(value: &Vec<HostPublicKey>, out: &mut Vec<u8>) {
        put_counted(value, out);
    }

    fn read(
        reader: &mut Reader<'_>,
        field: &'static str,
    ) -> Result<Vec<HostPublicKey>, DecodeError> {
        read_counted(MAX_HOST_KEYS, reader, field)
    }
}

fn put_counted<T: Codec>(value: &[T], out: &mut Vec<u8>) {
    out.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
    for each in value {
        T::put(each, out);
    }
}

fn read_counted<T: Codec>(
    most: usize,
    reader: &mut Reader<'_>,
    field: &'static str,
) -> Result<Vec<T>, DecodeError> {
    match usize::from(reader.u8()?) {
        0 => Err(DecodeError::Malformed { field }),
        count if count <= most => (0..count).map(|_| T::read(reader, field)).collect(),
        _ => Err(DecodeError::Oversized),
    }
}
