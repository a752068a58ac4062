//! Live TCP connections, through the kernel's socket diagnosis (sock_diag(7)), and queries on one besides its bytes
//! (tcp(7)).
//!
//! If a connection does not exist, a query for it returns the listener that a SYN would reach
//! (inet_diag_find_one_icsk), and SOCK_DESTROY would then close that listener. So a connection is
//! destroyed in two steps: query it, and destroy the found socket by its cookie, unless it listens.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use usher_base::ConnectionTuple;

use crate::SystemError;

// linux/netlink.h, linux/sock_diag.h
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

// net/tcp_states.h
/// Established, and after one side has closed: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
const HELD: [u8; 4] = [1, 4, 5, 8];
/// The states in which no process can have closed it: ESTABLISHED, CLOSE_WAIT.
const OPEN: [u8; 2] = [1, 8];
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

/// Bytes of struct nlmsghdr.
const HEADER: usize = 16;
/// Bytes of struct inet_diag_req_v2 and, in it, before struct inet_diag_sockid.
const REQUEST: usize = 56;
const BEFORE_SOCKET_ID: usize = 8;
/// Bytes of struct inet_diag_msg.
const MESSAGE: usize = 72;
/// Offsets in struct inet_diag_msg.
const STATE_AT: usize = 1;
const TIMER_AT: usize = 2;
const RETRIES_AT: usize = 3;
const COOKIE_AT: usize = 44;
const UID_AT: usize = 64;
const INODE_AT: usize = 68;

/// The timer of keepalive (idiag_timer of struct inet_diag_msg, sock_diag(7)).
const KEEPALIVE_TIMER: u8 = 2;

type Cookie = [u8; 8];
/// Matches any socket with these addresses (INET_DIAG_NOCOOKIE).
const NO_COOKIE: Cookie = [0xff; 8];

/// The owner of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user who made the socket.
    pub uid: u32,
    /// Its inode; never 0.
    pub inode: u32,
}

/// The owner of this host's socket whose own address is `local` and whose peer is `remote`.
/// `None` if there is none, if its handshake is under way, or if no process holds it any more (its
/// inode is then 0 and its owner unknown). A half-closed connection still has its owner.
///
/// # Errors
/// When the kernel does not answer.
pub fn owner(local: SocketAddr, remote: SocketAddr) -> Result<Option<Owner>, SystemError> {
    let (client, server) = (remote, local);
    let connection = ConnectionTuple { client, server };
    Ok(
        match ask_kernel(SOCK_DIAG_BY_FAMILY, &connection, NO_COOKIE)? {
            Answer::Socket(socket) if HELD.contains(&socket.state) && socket.owner.inode != 0 => {
                Some(socket.owner)
            }
            _ => None,
        },
    )
}

/// How many probes the server's side of a connection has sent since its peer answered last; none if there is
/// no such connection. 0 while the peer owes no answer, or owes one to data.
///
/// # Errors
/// When the kernel does not answer.
pub fn unanswered_probes(connection: &ConnectionTuple) -> Result<Option<u8>, SystemError> {
    Ok(
        match ask_kernel(SOCK_DIAG_BY_FAMILY, connection, NO_COOKIE)? {
            Answer::Socket(socket) if HELD.contains(&socket.state) => {
                Some(socket.unanswered_probes)
            }
            _ => None,
        },
    )
}

/// Whether the server's side of a connection waits to be accepted: it is open, and no process holds it.
///
/// # Errors
/// When the kernel does not answer.
pub fn is_unaccepted(connection: &ConnectionTuple) -> Result<bool, SystemError> {
    Ok(
        match ask_kernel(SOCK_DIAG_BY_FAMILY, connection, NO_COOKIE)? {
            Answer::Socket(socket) => OPEN.contains(&socket.state) && socket.owner.inode == 0,
            Answer::Done | Answer::Nothing => false,
        },
    )
}

/// Destroys the server's side of a connection: the peer gets a RST, the process that holds the
/// socket ECONNABORTED. This includes a connection whose handshake is under way, and one that is not
/// accepted yet, which is then accepted as closed. Returns whether there was one.
///
/// # Errors
/// When the kernel refuses: without CAP_NET_ADMIN or CONFIG_INET_DIAG_DESTROY (`EOPNOTSUPP`).
pub fn destroy(connection: &ConnectionTuple) -> Result<bool, SystemError> {
    let Answer::Socket(socket) = ask_kernel(SOCK_DIAG_BY_FAMILY, connection, NO_COOKIE)? else {
        return Ok(false);
    };
    if matches!(socket.state, LISTEN | TIME_WAIT) {
        return Ok(false);
    }
    match ask_kernel(SOCK_DESTROY, connection, socket.cookie)? {
        Answer::Done => Ok(true),
        Answer::Nothing => Ok(false),
        Answer::Socket(_) => Err(SystemError::Netlink),
    }
}

/// Whether this kernel has SOCK_DESTROY, and lets the caller use it.
///
/// # Errors
/// The kernel's error: `EOPNOTSUPP`, `EPERM`.
pub fn can_destroy() -> Result<(), SystemError> {
    // No socket has this cookie, so none can be destroyed.
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let (client, server) = (nobody, nobody);
    ask_kernel(SOCK_DESTROY, &ConnectionTuple { client, server }, [0; 8]).map(drop)
}

#[derive(Debug, Clone, Copy)]
struct Socket {
    state: u8,
    unanswered_probes: u8,
    cookie: Cookie,
    owner: Owner,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Socket(Socket),
    /// The operation succeeded.
    Done,
    /// There is no such socket.
    Nothing,
}

/// The question about the socket of the connection's server.
fn request(kind: u16, connection: &ConnectionTuple, cookie: Cookie) -> Vec<u8> {
    let (local, remote) = (connection.server, connection.client);
    let flags = if kind == SOCK_DESTROY {
        NLM_F_REQUEST | NLM_F_ACK
    } else {
        NLM_F_REQUEST
    };
    let family = if local.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]); // sequence number, port
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes()); // states: all
    debug_assert_eq!(bytes.len(), HEADER + BEFORE_SOCKET_ID);
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    bytes.extend(address_bytes(local.ip()));
    bytes.extend(address_bytes(remote.ip()));
    bytes.extend([0; 4]); // any interface
    bytes.extend(cookie);
    debug_assert_eq!(bytes.len(), HEADER + REQUEST);
    bytes
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    }
}

fn ask_kernel(
    kind: u16,
    connection: &ConnectionTuple,
    cookie: Cookie,
) -> Result<Answer, SystemError> {
    const WHAT: &str = "ask for a connection (sock_diag)";
    // An IPv4 connection of a dual-stack socket is found under its IPv4 addresses.
    let Ok(connection) = ConnectionTuple::new(connection.client, connection.server) else {
        return Ok(Answer::Nothing);
    };
    let failed = SystemError::call(WHAT);
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .map_err(failed)?;
    // The kernel has already answered when send(2) returns.
    let question = request(kind, &connection, cookie);
    rustix::net::send(&socket, &question, SendFlags::empty()).map_err(failed)?;
    let mut bytes = [0; 4096];
    let (length, _) =
        rustix::net::recv(&socket, &mut bytes, RecvFlags::DONTWAIT).map_err(failed)?;
    decode(&bytes[..length])
        .unwrap_or(Err(SystemError::Netlink))
        .map_err(|error| match error {
            SystemError::Call { error, .. } => SystemError::Call { what: WHAT, error },
            other => other,
        })
}

/// `None` if the answer is cut short.
fn decode(bytes: &[u8]) -> Option<Result<Answer, SystemError>> {
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let payload = bytes.get(HEADER..)?;
    Some(match kind {
        SOCK_DIAG_BY_FAMILY => {
            let message = payload.get(..MESSAGE)?;
            let number = |at: usize| {
                message
                    .get(at..)?
                    .first_chunk()
                    .copied()
                    .map(u32::from_ne_bytes)
            };
            let retries = *message.get(RETRIES_AT)?;
            let is_probing = *message.get(TIMER_AT)? == KEEPALIVE_TIMER;
            Ok(Answer::Socket(Socket {
                state: *message.get(STATE_AT)?,
                unanswered_probes: if is_probing { retries } else { 0 },
                cookie: *message.get(COOKIE_AT..)?.first_chunk()?,
                owner: Owner {
                    uid: number(UID_AT)?,
                    inode: number(INODE_AT)?,
                },
            }))
        }
        NLMSG_ERROR => match -i32::from_ne_bytes(*payload.first_chunk()?) {
            0 => Ok(Answer::Done),
            // ESTALE: another socket has these addresses now.
            libc::ENOENT | libc::ESTALE => Ok(Answer::Nothing),
            errno => Err(SystemError::Call {
                what: "sock_diag",
                error: io::Error::from_raw_os_error(errno),
            }),
        },
        _ => Err(SystemError::Netlink),
    })
}

pub use usher_system_ffi::{is_at_urgent_byte, unacknowledged};

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{SendFlags, send};

    use super::*;

    #[test]
    fn a_connection_is_unaccepted_until_it_is_accepted() {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let stream = TcpStream::connect(server).unwrap();
        let client = stream.local_addr().unwrap();
        let connection = ConnectionTuple { client, server };
        assert!(is_unaccepted(&connection).unwrap());
        // The client's half is closed: it still waits.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_unaccepted(&connection).unwrap());
        let _accepted = listener.accept().unwrap();
        assert!(!is_unaccepted(&connection).unwrap());
        // The query finds the listener.
        let other = ConnectionTuple {
            client: ([127, 0, 0, 1], 1).into(),
            server,
        };
        assert!(!is_unaccepted(&other).unwrap());
    }

    #[test]
    fn answers_cut_short_are_none() {
        let mut answer = vec![0; HEADER + MESSAGE];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert!(matches!(decode(&answer), Some(Ok(Answer::Socket(_)))));
        for length in 0..answer.len() {
            assert!(decode(&answer[..length]).is_none(), "{length}");
        }
        answer.truncate(HEADER + 4);
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert!(matches!(decode(&answer), Some(Ok(Answer::Done))));
        assert!(decode(&answer[..HEADER + 3]).is_none());
    }

    #[test]
    fn an_urgent_byte_is_found_behind_what_was_sent_before() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        send(&sender, b"ab", SendFlags::empty()).unwrap();
        send(&sender, b"!", SendFlags::OOB).unwrap();
        while unacknowledged(&sender).unwrap() > 0 {
            std::thread::yield_now();
        }
        let mut byte = [0];
        assert!(!is_at_urgent_byte(&receiver).unwrap());
        receiver.read_exact(&mut byte).unwrap();
        assert!(!is_at_urgent_byte(&receiver).unwrap());
        receiver.read_exact(&mut byte).unwrap();
        assert!(is_at_urgent_byte(&receiver).unwrap());
    }
}
