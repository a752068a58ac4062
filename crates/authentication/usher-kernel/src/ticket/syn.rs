//! Reads a held SYN from its copy, and sends it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use usher_base::ConnectionTuple;
use usher_bpf::Table;

use crate::KernelError;
use crate::shared::key;

const PROTOCOL_TCP: u8 = 6;
const IPV6_HEADER: usize = 40;
const LEAST_TCP_HEADER: usize = 20;
const FLAGS_AT: usize = 13;
const CHECKSUM_AT: usize = 16;
const SYN_FLAG: u8 = 0x02;
const ACK_OR_RST: u8 = 0x14;

/// A SYN without data in its wire form, from the IP header on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syn {
    to: IpAddr,
    packet: Vec<u8>,
    /// The mark of the SYN's socket.
    mark: u32,
}

impl Syn {
    /// Reads the copy of a packet, whose TCP checksum the kernel has left to the network card. Returns none
    /// if it is not a plain SYN: it carries data (TCP Fast Open; the kernel sends another one without data at
    /// once), is enciphered, has headers between those of IPv6 and TCP, or has other endpoints than its
    /// connection (NAT).
    pub(super) fn complete(copy: &[u8], connection: &ConnectionTuple, mark: u32) -> Option<Self> {
        let mut packet = copy.to_vec();
        let (from, to, addresses, at): (IpAddr, IpAddr, &[u8], usize) = match copy.first()? >> 4 {
            4 if *copy.get(9)? == PROTOCOL_TCP => {
                let [from, to] = [12, 16].map(|at| address_at::<4>(copy, at).map(Ipv4Addr::from));
                let header = usize::from(copy[0] & 15) * 4;
                (from?.into(), to?.into(), copy.get(12..20)?, header)
            }
            6 if *copy.get(6)? == PROTOCOL_TCP => {
                let [from, to] = [8, 24].map(|at| address_at::<16>(copy, at).map(Ipv6Addr::from));
                (from?.into(), to?.into(), copy.get(8..40)?, IPV6_HEADER)
            }
            _ => return None,
        };
        let segment = packet.get_mut(at..)?;
        if segment.len() < LEAST_TCP_HEADER
            || segment.len() != usize::from(segment[12] >> 4) * 4
            || segment[FLAGS_AT] & (SYN_FLAG | ACK_OR_RST) != SYN_FLAG
        {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
        let (client, server) = ((from, port(0)).into(), (to, port(2)).into());
        if *connection != (ConnectionTuple { client, server }) {
            return None;
        }
        segment[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
        let length = u32::try_from(segment.len()).ok()?;
        // The pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1).
        let sum = sum(addresses) + u32::from(PROTOCOL_TCP) + length + sum(segment);
        segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&folded(sum).to_be_bytes());
        Some(Self { to, packet, mark })
    }
}

fn address_at<const SIZE: usize>(packet: &[u8], at: usize) -> Option<[u8; SIZE]> {
    packet.get(at..)?.first_chunk().copied()
}

/// The sum of 16-bit words, most significant byte first; a SYN's sum cannot overflow.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8; 2]| u32::from(u16::from_be_bytes(*pair));
    bytes.as_chunks().0.iter().map(word).sum()
}

/// The ones' complement of the ones' complement sum (RFC 1071).
fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Sends held SYNs, from raw sockets that receive nothing (IPPROTO_RAW). Packets that the programs have
/// not reported cannot leave (`may_be_sent` in bpf/authentication/ticket/holding.h).
///
/// There is one for each mark that classes of IPsec have, because the mark decides how the SYN is
/// protected, and cannot be set without a privilege.
#[derive(Debug)]
pub struct SynSender(Vec<Sender>);

/// The sockets with one mark.
#[derive(Debug)]
struct Sender {
    mark: u32,
    ipv4: OwnedFd,
    /// None if the kernel lacks IPv6.
    ipv6: Option<OwnedFd>,
}

impl SynSender {
    /// Opens the sockets, for marks of these bits, and enters them as senders. Needs CAP_NET_RAW; sending
    /// needs nothing.
    pub(super) fn open(senders: &Table<u32, u32>, class_bits: u32) -> Result<Self, KernelError> {
        let marks = marks(class_bits);
        let opened: Result<Vec<Sender>, _> = marks.map(Sender::unrestricted).collect();
        let opened = opened?;
        for socket in opened.iter().flat_map(Sender::sockets) {
            senders.set(&key(socket.as_fd()), &0)?;
        }
        Ok(Self(opened))
    }

    /// Whether the sockets can be opened here, for `usher doctor`.
    pub(crate) fn can_open() -> Result<(), KernelError> {
        Sender::unrestricted(0).map(drop)
    }

    /// Sends a SYN for its socket, with the socket's mark.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a mark that belongs to no class; otherwise the kernel's error, `EAGAIN` when its
    /// queue is full. The kernel sends the SYN again by itself, a second later.
    pub fn send(&self, syn: &Syn) -> Result<(), KernelError> {
        let sender = self.0.iter().find(|sender| sender.mark == syn.mark);
        let to = SocketAddr::new(syn.to, 0);
        sender
            .ok_or(Errno::OPNOTSUPP)
            .and_then(|sender| match syn.to {
                IpAddr::V4(_) => Ok(&sender.ipv4),
                IpAddr::V6(_) => sender.ipv6.as_ref().ok_or(Errno::AFNOSUPPORT),
            })
            .and_then(|socket| rustix::net::sendto(socket, &syn.packet, SendFlags::empty(), &to))
            .map(drop)
            .map_err(KernelError::system("send a SYN"))
    }
}

impl Sender {
    fn unrestricted(mark: u32) -> Result<Self, KernelError> {
        let raw = |family| {
            let socket = rustix::net::socket_with(
                family,
                SocketType::RAW,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                Some(ipproto::RAW),
            )?;
            if mark != 0 {
                let marked = setsockopt(&socket, sockopt::Mark, &mark);
                marked.map_err(|error| Errno::from_raw_os_error(error as i32))?;
            }
            Ok(socket)
        };
        let failed = KernelError::system("open a raw socket");
        let ipv6 = match raw(AddressFamily::INET6) {
            Ok(socket) => Some(socket),
            Err(Errno::AFNOSUPPORT) => None,
            Err(error) => return Err(failed(error)),
        };
        Ok(Self {
            mark,
            ipv4: raw(AddressFamily::INET).map_err(failed)?,
            ipv6,
        })
    }

    fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        std::iter::once(&self.ipv4).chain(&self.ipv6)
    }
}

/// The marks of all class numbers, at most sixteen. The first is 0: no class.
fn marks(class_bits: u32) -> impl Iterator<Item = u32> {
    let shift = class_bits.trailing_zeros();
    let highest = class_bits.checked_shr(shift).unwrap_or(0).min(15);
    (0..=highest).map(move |class| class.checked_shl(shift).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 10.9.0.1:40000 to 10.9.0.2:143, with one option and a checksum that is wrong.
    const COPY: [u8; 44] = [
        0x45, 0, 0, 44, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, // IPv4
        0x9c, 0x40, 0, 143, 0, 0, 0, 9, 0, 0, 0, 0, 0x60, 2, 0xfa, 0xf0, 0xde, 0xad, 0,
        0, // TCP
        2, 4, 5, 0xb4, // MSS
    ];

    fn connection() -> ConnectionTuple {
        let (client, server) = (([10, 9, 0, 1], 40_000).into(), ([10, 9, 0, 2], 143).into());
        ConnectionTuple::new(client, server).unwrap()
    }

    fn complete(change: impl FnOnce(&mut Vec<u8>)) -> Option<Syn> {
        let mut copy = COPY.to_vec();
        change(&mut copy);
        Syn::complete(&copy, &connection(), 0)
    }

    #[test]
    fn the_checksum_is_that_of_the_whole_segment() {
        let syn = complete(|_| ()).unwrap();
        // The checksum was computed apart from this code.
        assert_eq!(syn.packet[36..38], [0xec, 0x48]);
        assert_eq!(
            (&syn.packet[..36], &syn.packet[38..]),
            (&COPY[..36], &COPY[38..])
        );
        // A receiver's check: with the pseudo-header everything sums to zero.
        let pseudo = sum(&COPY[12..20]) + 6 + 24;
        assert_eq!(folded(pseudo + sum(&syn.packet[20..])), 0);
    }

    #[test]
    fn what_is_no_mere_syn_of_the_connection_is_left_to_the_kernel() {
        assert!(complete(|_| ()).is_some());
        let changes: [fn(&mut Vec<u8>); 9] = [
            |copy| copy.push(0),
            |copy| copy.truncate(43),
            |copy| copy.truncate(0),
            |copy| copy[33] |= 0x10,
            |copy| copy[33] = 0x04,
            |copy| copy[9] = 50,
            |copy| copy[15] = 9,
            |copy| copy[20] = 0,
            |copy| copy[0] = 0x65,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(complete(change), None, "change {number}");
        }
        for length in 0..COPY.len() {
            assert_eq!(
                complete(|copy| copy.truncate(length)),
                None,
                "{length} bytes"
            );
        }
    }

    #[test]
    fn every_class_number_has_a_mark() {
        assert!(marks(0).eq([0]));
        assert!(marks(0x00f0_0000).eq((0..16).map(|class| class << 20)));
        assert!(marks(0xf000_0000).eq((0..16).map(|class| class << 28)));
    }
}
