//! The TCP sockets of this network namespace, by `/proc/net/tcp` and `tcp6`.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// States of a socket (net/tcp_states.h).
pub const ESTABLISHED: u8 = 0x01;
pub const LISTEN: u8 = 0x0a;
/// The states of a connection that a process may hold: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
pub const HAS_PEER: [u8; 4] = [ESTABLISHED, 4, 5, 8];

/// A TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// The socket's own endpoint. An IPv4 address of an IPv6 socket is written as IPv4.
    pub local: SocketAddr,
    /// The endpoint of the socket's peer.
    pub remote: SocketAddr,
    pub state: u8,
    pub uid: u32,
    /// 0: no process holds it.
    pub inode: u64,
}

/// All sockets. A kernel without IPv6 has only the first list.
pub fn sockets() -> impl Iterator<Item = Socket> {
    let read = |name| fs::read_to_string(Path::new("/proc/net").join(name)).ok();
    let tables = ["tcp", "tcp6"].into_iter().filter_map(read);
    tables.flat_map(|table| listed(&table))
}

fn listed(table: &str) -> Vec<Socket> {
    let sockets = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(Socket {
            local: endpoint(words.get(1)?)?,
            remote: endpoint(words.get(2)?)?,
            state: u8::from_str_radix(words.get(3)?, 16).ok()?,
            uid: words.get(7)?.parse().ok()?,
            inode: words.get(9)?.parse().ok()?,
        })
    });
    sockets.collect()
}

/// An endpoint as the kernel writes it: words of 32 bits of the address, in the order of this machine's
/// bytes, and the port.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(8 * at..8 * at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    if address.len() == 8 {
        return Some((Ipv4Addr::from(word(0)?), port).into());
    }
    let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some((Ipv6Addr::from(bytes).to_canonical(), port).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_have_endpoints_state_owner_and_inode() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000   107        0 4711 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000001000000:01BB B80D0120000000000000000001000000:C001 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: 0000000000000000FFFF00000100000A:008F 0000000000000000FFFF00000200000A:C002 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1
 not a line\n";
        let socket = |local: &str, remote: &str, state, uid, inode| Socket {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            state,
            uid,
            inode,
        };
        assert_eq!(
            listed(table),
            [
                socket("127.0.0.1:22", "0.0.0.0:0", LISTEN, 107, 4711),
                socket("[::1]:443", "[2001:db8::1]:49153", ESTABLISHED, 0, 4712),
                socket("10.0.0.1:143", "10.0.0.2:49154", ESTABLISHED, 1000, 4713),
            ]
        );
    }
}
