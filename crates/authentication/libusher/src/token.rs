//! Tokens in the SYN, for processes without any privilege.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use usher_base::address_bytes;

use crate::process;

/// The option that the ticket programs answer (bpf/include/usher_ticket.h).
const LEVEL: i32 = 0x5573;
const DRAW: i32 = 1;
const PROGRAM: i32 = 2;

/// Puts a token of the caller's ticket for `server` into the SYN of `socket`'s connection to it. Call it
/// once, before connect(2). A connection to another address has no token.
///
/// # Errors
/// `ENOPROTOOPT`: this host holds no tickets (or the caller is a program of 32 bits);
/// `ENOENT`: the caller (its real uid) has no ticket for this server; `EKEYEXPIRED`: it has
/// expired; `ESTALE`: all its elements are drawn, more may come; `EISCONN`: the socket is not
/// unconnected; `EOPNOTSUPP`: it is no TCP socket (an MPTCP socket is none); `ENOMEM`. The socket
/// can be connected all the same, without a token.
pub fn draw_token(socket: BorrowedFd<'_>, server: SocketAddr) -> io::Result<()> {
    let mut destination = [0; 20];
    destination[..16].copy_from_slice(&address_bytes(server.ip()));
    destination[16..18].copy_from_slice(&server.port().to_be_bytes());
    process::set_option(socket, LEVEL, DRAW, &destination).map_err(io::Error::from)
}

/// Has the kernel choose a lasting source address for an IPv6 connection, not a temporary one (RFC 5014): the
/// server takes tokens only from addresses that its policy has for this host. No effect on IPv4.
pub(crate) fn prefer_lasting_source(socket: BorrowedFd<'_>) -> io::Result<()> {
    // linux/in6.h; no safe crate has it.
    const IPV6_ADDR_PREFERENCES: i32 = 72;
    const IPV6_PREFER_SRC_PUBLIC: i32 = 2;
    let value = IPV6_PREFER_SRC_PUBLIC.to_ne_bytes();
    process::set_option(socket, libc::IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, &value)
        .map_err(io::Error::from)
}

/// Makes the kernel tell the signer which program made `socket`. Policy may demand that.
///
/// # Errors
/// `ENOPROTOOPT`: this host does not tell programs apart (or the caller is a program of 32 bits);
/// `ENOENT`: the socket is of another network namespace; `ENOMEM`. The signer then knows of no
/// program.
pub fn tell_program(socket: BorrowedFd<'_>) -> io::Result<()> {
    process::set_option(socket, LEVEL, PROGRAM, &[0; 4]).map_err(io::Error::from)
}
