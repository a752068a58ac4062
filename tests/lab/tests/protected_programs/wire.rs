//! The connections between two hosts, as a capture shows them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use usher_lab::Host;

use crate::capture::{Packet, Sa};
use crate::{ECHO, is_of};

const SYN: u8 = 0x02;
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Ports of IKE.
const IKE: [u16; 2] = [500, 4500];

/// A connection of TCP: the client's address, both ports, the lower first, and its packets with their
/// source port and flags.
#[derive(Debug)]
pub struct Connection<'a> {
    pub ports: (u16, u16),
    segments: Vec<(&'a Packet, u16, u8)>,
}

impl Connection<'_> {
    /// Its packets, from the SYN to the last ACK, had this protection.
    pub fn is_whole_and(&self, sa: Option<Sa>) {
        let segments = &self.segments;
        assert!(
            segments.iter().all(|(packet, ..)| packet.sa == sa),
            "{self:?}"
        );
        let (_, _, first) = segments[0];
        assert_eq!(first & (SYN | ACK), SYN, "its first packet: {self:?}");
        if segments.iter().any(|(.., flags)| flags & RST != 0) {
            return;
        }
        let (low, high) = self.ports;
        for end in [low, high] {
            let mut own = segments.iter().filter(|(_, source, _)| *source == end);
            assert!(
                own.any(|(.., flags)| flags & FIN != 0),
                "no FIN from {end}: {self:?}"
            );
        }
        let (_, _, last) = segments[segments.len() - 1];
        assert_eq!(last & (ACK | FIN | SYN), ACK, "its last packet: {self:?}");
    }
}

/// The connections between two hosts, but for those of the program that no policy governs.
pub fn connections<'a>(packets: &'a [Packet], server: &Host, client: &Host) -> Vec<Connection<'a>> {
    let mut connections: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for packet in packets.iter().filter(|packet| !packet.is_at(ECHO)) {
        let (Some(peer), Some(segment)) = (peer_of(packet, server, client), packet.segment) else {
            continue;
        };
        let Some(flags) = segment.flags else {
            continue;
        };
        let ports = (
            segment.source.min(segment.destination),
            segment.source.max(segment.destination),
        );
        let connection = connections.entry((peer, ports)).or_default();
        connection.push((packet, segment.source, flags));
    }
    let connections = connections.into_iter();
    connections
        .map(|((_, ports), segments)| Connection { ports, segments })
        .collect()
}

/// The client's address in a packet between these hosts.
fn peer_of(packet: &Packet, server: &Host, client: &Host) -> Option<IpAddr> {
    let (from, to) = (packet.source, packet.destination);
    if is_of(server, to) && is_of(client, from) {
        return Some(from);
    }
    (is_of(server, from) && is_of(client, to)).then_some(to)
}

/// Between these hosts only IKE and the program that no policy governs have spoken in the clear.
pub fn nothing_is_plain(packets: &[Packet], server: &Host, client: &Host) {
    for packet in packets.iter().filter(|packet| packet.sa.is_none()) {
        if peer_of(packet, server, client).is_some() && packet.segment.is_some() {
            let may_be = packet.is_at(ECHO) || IKE.iter().any(|port| packet.is_at(*port));
            assert!(may_be, "{packet:?}");
        }
    }
}

/// Returns whether a packet from or to this host shows the text on the wire.
pub fn shows(packets: &[Packet], host: &Host, text: &str) -> bool {
    let mut of = packets
        .iter()
        .filter(|packet| is_of(host, packet.source) || is_of(host, packet.destination));
    of.any(|packet| packet.shows(text))
}
