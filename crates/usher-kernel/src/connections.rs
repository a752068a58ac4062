//! Live TCP connections, through the kernel's socket diagnosis (sock_diag(7)).

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{AF_INET, AF_INET6, IPPROTO_TCP, SockDiagMessage};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use usher_proto::connection::ConnectionTuple;

use crate::KernelError;

/// `SOCK_DESTROY` (linux/sock_diag.h), in place of `SOCK_DIAG_BY_FAMILY`.
const SOCK_DESTROY: u16 = 21;
/// `TCP_ESTABLISHED` (net/tcp_states.h).
const ESTABLISHED: u8 = 1;
/// "I do not know the socket's cookie."
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// Whose socket it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user who made the socket.
    pub uid: u32,
    /// Its inode; never 0.
    pub inode: u32,
}

/// The owner of this host's socket whose own address is `local` and whose peer is `remote`.
/// `None` when there is none, when it is not established, or when nobody holds it any more (its
/// inode is then 0 and its owner unknown).
///
/// # Errors
/// When the kernel cannot be asked.
pub fn owner(local: SocketAddr, remote: SocketAddr) -> Result<Option<Owner>, KernelError> {
    match ask(request(local, remote), None)? {
        Answer::Socket {
            state: ESTABLISHED,
            owner,
        } if owner.inode != 0 => Ok(Some(owner)),
        Answer::Socket { .. } | Answer::Nothing | Answer::Done => Ok(None),
    }
}

/// Destroys the server's side of a connection: the peer gets a RST, the process that holds the
/// socket ECONNABORTED. Also one whose handshake is under way, and one nobody has accepted yet.
/// Returns whether there was one.
///
/// # Errors
/// When the kernel refuses: without CAP_NET_ADMIN or CONFIG_INET_DIAG_DESTROY.
pub fn destroy(connection: &ConnectionTuple) -> Result<bool, KernelError> {
    match ask(
        request(connection.server, connection.client),
        Some(SOCK_DESTROY),
    )? {
        Answer::Done => Ok(true),
        Answer::Nothing => Ok(false),
        Answer::Socket { .. } => Err(KernelError::Netlink),
    }
}

/// Asks for one socket. An IPv4 connection of a dual-stack socket is found under its IPv4
/// addresses (inet_diag_find_one_icsk).
fn request(local: SocketAddr, remote: SocketAddr) -> InetRequest {
    InetRequest {
        family: if local.is_ipv4() { AF_INET } else { AF_INET6 },
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id: SocketId {
            source_port: local.port(),
            destination_port: remote.port(),
            source_address: local.ip(),
            destination_address: remote.ip(),
            interface_id: 0,
            cookie: NO_COOKIE,
        },
    }
}

enum Answer {
    Socket { state: u8, owner: Owner },
    Done,
    Nothing,
}

fn ask(request: InetRequest, kind: Option<u16>) -> Result<Answer, KernelError> {
    let failed = || KernelError::system("sock_diag");
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | if kind.is_some() { NLM_F_ACK } else { 0 };
    let payload = SockDiagMessage::InetRequest(request);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(payload));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    if let Some(kind) = kind {
        // struct nlmsghdr: length (4 bytes), then the type.
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    }
    let socket = Socket::new(NETLINK_SOCK_DIAG).map_err(failed())?;
    socket
        .connect(&NetlinkAddress::new(0, 0))
        .map_err(failed())?;
    socket.send(&bytes, 0).map_err(failed())?;
    let mut answer = Vec::with_capacity(4096);
    socket.recv(&mut answer, 0).map_err(failed())?;
    decode(&answer)
}

fn decode(bytes: &[u8]) -> Result<Answer, KernelError> {
    let message =
        NetlinkMessage::<SockDiagMessage>::deserialize(bytes).map_err(|_| KernelError::Netlink)?;
    match message.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
            let header = &response.header;
            Ok(Answer::Socket {
                state: header.state,
                owner: Owner {
                    uid: header.uid,
                    inode: header.inode,
                },
            })
        }
        NetlinkPayload::Error(error) => match error.raw_code() {
            0 => Ok(Answer::Done),
            code if code == -libc::ENOENT => Ok(Answer::Nothing),
            code => Err(KernelError::System {
                what: "sock_diag",
                error: io::Error::from_raw_os_error(-code),
            }),
        },
        _ => Err(KernelError::Netlink),
    }
}
