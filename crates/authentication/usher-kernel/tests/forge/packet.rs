//! The bytes of packets.

use std::net::{IpAddr, SocketAddr};

use usher_base::ConnectionTuple;

use crate::world::token::{TOKEN_EXPERIMENT, TOKEN_OPTION_KIND, TOKEN_OPTION_SIZE};

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;
pub const RST: u8 = 0x04;
pub const FIN: u8 = 0x01;

pub fn option(token: &[u8; 16]) -> [u8; 20] {
    let mut option = [0; 20];
    option[..2].copy_from_slice(&[TOKEN_OPTION_KIND, TOKEN_OPTION_SIZE]);
    option[2..4].copy_from_slice(&TOKEN_EXPERIMENT.to_be_bytes());
    option[4..].copy_from_slice(token);
    option
}

pub fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IP packet, `options` padded to words with zeros.
pub fn ip(connection: &ConnectionTuple, flags: u8, options: &[u8]) -> Vec<u8> {
    ip_of(connection.client, connection.server, flags, options)
}

/// As [`ip`], between endpoints that need not be canonical.
pub fn ip_of(client: SocketAddr, server: SocketAddr, flags: u8, options: &[u8]) -> Vec<u8> {
    let tcp = segment(client, server, flags, (1, 0), options);
    let mut packet = Vec::new();
    match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(20 + tcp.len()).unwrap().to_be_bytes();
            packet.extend([0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, 6, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = checksum(&[&packet]).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(tcp.len()).unwrap().to_be_bytes();
            packet.extend([0x60, 0, 0, 0, length[0], length[1], 6, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        _ => panic!("ends of two families"),
    }
    packet.extend(tcp);
    packet
}

/// A TCP segment without data, `options` padded to words with zeros. `numbers`: its sequence and
/// acknowledgement numbers.
pub fn segment(
    client: SocketAddr,
    server: SocketAddr,
    flags: u8,
    numbers: (u32, u32),
    options: &[u8],
) -> Vec<u8> {
    let mut options = options.to_vec();
    options.resize(options.len().next_multiple_of(4), 0);
    let size = 20 + options.len();
    let mut tcp = Vec::new();
    tcp.extend(client.port().to_be_bytes());
    tcp.extend(server.port().to_be_bytes());
    tcp.extend(numbers.0.to_be_bytes());
    tcp.extend(numbers.1.to_be_bytes());
    tcp.extend([u8::try_from(size * 4).unwrap(), flags]);
    tcp.extend([0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(options);
    let length = u16::try_from(size).unwrap().to_be_bytes();
    let sum = match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            checksum(&[&from.octets(), &to.octets(), &[0, 6], &length, &tcp])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            checksum(&[&from.octets(), &to.octets(), &length, &[0, 6], &tcp])
        }
        _ => panic!("ends of two families"),
    };
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    tcp
}

/// The same packet with another sequence number. Its checksum is then wrong, which does not matter
/// for a packet passed directly to the program.
pub fn numbered(mut packet: Vec<u8>, sequence: u32) -> Vec<u8> {
    let tcp = if packet[0] >> 4 == 4 { 20 } else { 40 };
    packet[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
    packet
}

/// A packet without IP options with these numbers and the right checksum.
pub fn summed(packet: Vec<u8>, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut packet = numbered(packet, sequence);
    let (at, addresses) = if packet[0] >> 4 == 4 {
        (20, 12..20)
    } else {
        (40, 8..40)
    };
    packet[at + 8..at + 12].copy_from_slice(&acknowledged.to_be_bytes());
    packet[at + 16..at + 18].fill(0);
    let length = u16::try_from(packet.len() - at).unwrap().to_be_bytes();
    let sum = checksum(&[&packet[addresses], &[0, 6], &length, &packet[at..]]);
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// An IP packet in an Ethernet frame.
pub fn ethernet(packet: &[u8]) -> Vec<u8> {
    let protocol = if packet[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    [&[0; 12], &protocol[..], packet].concat()
}
