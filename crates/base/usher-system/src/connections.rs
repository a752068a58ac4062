//! Live TCP connections, through the kernel's socket diagnosis (sock_diag(7)), and their urgent and
//! unacknowledged bytes (tcp(7)).
//!
//! If a connection does not exist, a query for it returns the listener that a SYN would reach
//! (inet_diag_find_one_icsk), and SOCK_DESTROY would then close that listener. So a connection is
//! destroyed in two steps: query it, and destroy the found socket by its cookie, unless it listens.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

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

/// Timers (idiag_timer of struct inet_diag_msg, sock_diag(7)): of packets that are sent again, of keepalive, and
/// of probes for room at a peer that does not read.
const RETRANSMISSION_TIMER: u8 = 1;
const KEEPALIVE_TIMER: u8 = 2;
const WINDOW_TIMER: u8 = 4;

/// The attribute with struct tcp_info (INET_DIAG_INFO, linux/inet_diag.h), and the bit that asks for it.
const INFO: u16 = 2;
const WITH_INFO: u8 = 1 << (INFO - 1);
/// Bytes of struct nlattr.
const ATTRIBUTE: usize = 4;
/// Offset of tcpi_last_ack_recv in struct tcp_info (linux/tcp.h).
const LAST_ACK_AT: usize = 56;

type Cookie = [u8; 8];
/// Matches any socket with these addresses (INET_DIAG_NOCOOKIE).
const NO_COOKIE: Cookie = [0xff; 8];

/// The owner of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user who made the socket.
    pub uid: u32,
    /// The socket's inode; never 0.
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

/// How often and how long a peer has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// Probes of keepalive that were sent since the peer answered last.
    pub probes: u8,
    /// How many times the same data, or a probe for room at a peer that does not read, was sent again since
    /// the peer answered last. Meanwhile there are no probes of keepalive.
    pub again: u8,
    /// The time since the peer's last ACK; none if the kernel does not say.
    pub lasts: Option<Duration>,
}

/// The silence of the client of a connection of this host; none if there is no such connection.
///
/// # Errors
/// When the kernel does not answer.
pub fn silence_of_client(connection: &ConnectionTuple) -> Result<Option<Silence>, SystemError> {
    let answer = ask_kernel_for(SOCK_DIAG_BY_FAMILY, connection, NO_COOKIE, WITH_INFO)?;
    Ok(match answer {
        Answer::Socket(socket) if HELD.contains(&socket.state) => Some(socket.silence),
        _ => None,
    })
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
    silence: Silence,
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

/// The question about the socket of the connection's server. `extensions`: the attributes that it asks for.
fn request(kind: u16, connection: &ConnectionTuple, cookie: Cookie, extensions: u8) -> Vec<u8> {
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
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, extensions, 0]);
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
    ask_kernel_for(kind, connection, cookie, 0)
}

fn ask_kernel_for(
    kind: u16,
    connection: &ConnectionTuple,
    cookie: Cookie,
    extensions: u8,
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
    let question = request(kind, &connection, cookie, extensions);
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

/// Decodes the kernel's answer; none if it is cut short.
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
            let timer = *message.get(TIMER_AT)?;
            let of = |timers: &[u8]| if timers.contains(&timer) { retries } else { 0 };
            let silence = Silence {
                probes: of(&[KEEPALIVE_TIMER]),
                again: of(&[RETRANSMISSION_TIMER, WINDOW_TIMER]),
                lasts: last_ack(&payload[MESSAGE..]),
            };
            Ok(Answer::Socket(Socket {
                state: *message.get(STATE_AT)?,
                silence,
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

/// The time since the last ACK, among these attributes.
fn last_ack(mut attributes: &[u8]) -> Option<Duration> {
    loop {
        let number = |at: usize| {
            let bytes = attributes.get(at..)?.first_chunk().copied();
            bytes.map(u16::from_ne_bytes).map(usize::from)
        };
        let (length, kind) = (number(0)?, number(2)?);
        let value = attributes.get(ATTRIBUTE..length)?;
        if kind == usize::from(INFO) {
            let milliseconds = value.get(LAST_ACK_AT..)?.first_chunk().copied();
            return milliseconds
                .map(|bytes| Duration::from_millis(u32::from_ne_bytes(bytes).into()));
        }
        attributes = attributes.get(length.next_multiple_of(ATTRIBUTE)..)?;
    }
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
        // With the client's half closed, the connection still waits.
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

    /// A connection on loopback: its client, its server, and the pair of addresses.
    fn connected() -> (TcpStream, TcpStream, ConnectionTuple) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, address) = listener.accept().unwrap();
        let tuple = ConnectionTuple {
            client: address,
            server: server.local_addr().unwrap(),
        };
        (client, server, tuple)
    }

    /// The kernel probes for room, and each answer ends the silence. So does each answer to data.
    #[test]
    fn a_client_that_does_not_read_is_not_silent() {
        let (_client, server, tuple) = connected();
        server.set_nonblocking(true).unwrap();
        while send(&server, &[0; 65_536], SendFlags::empty()).is_ok() {}
        let silence = || silence_of_client(&tuple).unwrap().expect("it is there");
        let lasts = || silence().lasts.expect("this kernel says how long");
        let mut former = lasts();
        let mut answers = 0;
        while answers < 3 {
            let present = lasts();
            answers += u32::from(present < former);
            former = present;
            assert!(
                former < Duration::from_secs(60),
                "no answer: {:?}",
                silence()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn attributes_cut_short_have_no_time() {
        let mut attributes = vec![0; 8 + ATTRIBUTE + LAST_ACK_AT + 4];
        // Before it, an attribute of another kind with a padded value.
        attributes[..2].copy_from_slice(&5_u16.to_ne_bytes());
        attributes[2..4].copy_from_slice(&8_u16.to_ne_bytes());
        let info = ATTRIBUTE + LAST_ACK_AT + 4;
        attributes[8..10].copy_from_slice(&(info as u16).to_ne_bytes());
        attributes[10..12].copy_from_slice(&INFO.to_ne_bytes());
        attributes[8 + info - 4..].copy_from_slice(&1500_u32.to_ne_bytes());
        assert_eq!(last_ack(&attributes), Some(Duration::from_millis(1500)));
        for length in 0..attributes.len() {
            assert_eq!(last_ack(&attributes[..length]), None, "{length}");
        }
        // An attribute of length 0 would be read for ever.
        assert_eq!(last_ack(&[0; 64]), None);
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
