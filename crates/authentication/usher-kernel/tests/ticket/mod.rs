//! Tickets of test users, and the SYNs of their connections as the server received them.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Uid;
use usher_base::ConnectionTuple;
use usher_kernel::ticket::{Attempt, Counters, Gate, Limits, Ticket, TicketKey, Tickets};
use usher_proto::token::TokenElement;
use usher_proto::{TokenChain, TokenKey, TokenSlot};

use crate::world::token::{TOKEN_BLOCK, Token};
use crate::world::{ALICE, PORT, World};

/// The bits of a mark that tell classes of traffic apart.
pub const CLASS_BITS: u32 = 0x00f0_0000;

pub fn open(world: &World) -> Tickets {
    let limits = Limits {
        tickets: 16,
        blocks: 16,
        destinations: 4,
        gates: 4,
        listed: 4,
        class_bits: CLASS_BITS,
    };
    Tickets::open(&world.cgroup, None, &limits).unwrap()
}

/// A gate that stands for the whole test.
pub fn gating(attempt: Attempt, released: bool) -> Gate {
    Gate {
        attempt,
        released,
        lifetime: Duration::from_secs(3600),
        session: None,
    }
}

pub fn gate(tickets: &Tickets, connection: &ConnectionTuple, attempt: Attempt, released: bool) {
    let gates = tickets.holding().gates();
    gates.put(connection, &gating(attempt, released)).unwrap();
}

pub fn key(uid: u32, server: SocketAddr) -> TicketKey {
    TicketKey { uid, server }
}

/// A signer's data of a session.
pub struct Session {
    pub ticket: Ticket,
    pub chain: TokenChain,
}

impl Session {
    pub fn new(number: u32, length: u32) -> Self {
        let byte = number.to_le_bytes()[0];
        Self {
            ticket: Ticket {
                number,
                slot: TokenSlot::new(0x0a_0b00 + number).unwrap(),
                next: 0,
                lifetime: Duration::from_secs(60),
                key: TokenKey::from_bytes([byte; 16]),
            },
            chain: TokenChain::generate(length, [byte ^ 0x55; 11], [byte ^ 0xaa; 16]),
        }
    }

    /// A session whose ticket is in force, with all its blocks.
    pub fn given(tickets: &Tickets, number: u32, length: u32, key: &TicketKey) -> Self {
        let session = Self::new(number, length);
        session.fill(tickets);
        tickets.put(key, &session.ticket).unwrap();
        session
    }

    pub fn fill(&self, tickets: &Tickets) {
        for block in 0..self.chain.blocks() {
            self.fill_block(tickets, block);
        }
    }

    pub fn fill_block(&self, tickets: &Tickets, block: u32) {
        let elements = self.chain.block(block);
        tickets.fill(self.ticket.number, block, &elements).unwrap();
    }

    pub fn element(&self, position: u32) -> TokenElement {
        let index = (position - 1) % TOKEN_BLOCK;
        self.chain.block((position - 1) / TOKEN_BLOCK)[index as usize]
    }

    /// The position of the token in a SYN, at most 255. All of its bytes must be right.
    pub fn position(&self, syn: &Syn) -> u32 {
        let option = syn.option.expect("the SYN carries a token");
        let token = Token::decode(&option, self.ticket.key.as_bytes(), &syn.connection)
            .expect("a token for this connection");
        let position = u32::from(token.position);
        let expected = Token {
            slot: self.ticket.slot,
            position: token.position,
            element: self.element(position),
        };
        assert_eq!(token, expected);
        assert_eq!(
            expected.encode(self.ticket.key.as_bytes(), &syn.connection),
            option,
            "byte for byte"
        );
        position
    }
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A SYN as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syn {
    pub connection: ConnectionTuple,
    pub option: Option<[u8; 16]>,
}

impl Syn {
    /// Reads a packet from the IP header on; none if it is not a TCP SYN without ACK.
    pub fn read(packet: &[u8]) -> Option<Self> {
        Self::read_with(packet, SYN)
    }

    fn read_with(packet: &[u8], flags: u8) -> Option<Self> {
        let (client, server, segment) = match packet[0] >> 4 {
            4 if packet[9] == 6 => {
                let address = |at: usize| {
                    Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap()).into()
                };
                let header = usize::from(packet[0] & 15) * 4;
                (address(12), address(16), &packet[header..])
            }
            6 if packet[6] == 6 => {
                let address = |at: usize| {
                    Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap()).into()
                };
                (address(8), address(24), &packet[40..])
            }
            _ => return None,
        };
        if segment[13] & (SYN | ACK) != flags {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
        let connection = ConnectionTuple::new(
            SocketAddr::new(client, port(0)),
            SocketAddr::new(server, port(2)),
        );
        let options = &segment[20..usize::from(segment[12] >> 4) * 4];
        Some(Self {
            connection: connection.unwrap(),
            option: token_option(options),
        })
    }
}

fn token_option(mut options: &[u8]) -> Option<[u8; 16]> {
    let mut found = None;
    loop {
        match options {
            [] | [0, ..] => return found,
            [1, rest @ ..] => options = rest,
            [kind, length, rest @ ..] => {
                let (value, after) = rest.split_at(usize::from(*length) - 2);
                if let (253, [0x55, 0x73, ours @ ..]) = (*kind, value) {
                    let ours = ours.try_into().expect("16 bytes");
                    assert_eq!(found.replace(ours), None, "one option of ours");
                }
                options = after;
            }
            [_] => panic!("an option without a length"),
        }
    }
}

/// Sets an integer option.
pub fn set(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_bytes(socket, level, name, &value.to_ne_bytes())
}

pub fn set_bytes(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the value lives until the call returns and has the given size.
    let code = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len().try_into().unwrap(),
        )
    };
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

pub fn get_bytes(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> usize {
    let mut length = value.len().try_into().unwrap();
    // SAFETY: the buffer has the given size.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(code, 0, "{}", io::Error::last_os_error());
    length.try_into().unwrap()
}

/// A server that keeps the SYNs of its connections.
pub struct Server {
    pub listener: TcpListener,
}

impl Server {
    /// Listens on both families.
    pub fn at(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        set(&listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 1).unwrap();
        // More than the 128 of the standard library.
        rustix::net::listen(&listener, 1024).unwrap();
        Self { listener }
    }

    pub fn new() -> Self {
        Self::at(PORT)
    }

    pub fn accept(&self) -> (TcpStream, Syn) {
        let (stream, from) = self.listener.accept().unwrap();
        let mut bytes = [0; 256];
        let length = get_bytes(&stream, libc::IPPROTO_TCP, libc::TCP_SAVED_SYN, &mut bytes);
        let syn = Syn::read(&bytes[..length]).unwrap();
        assert_eq!(syn.connection.client.port(), from.port());
        (stream, syn)
    }

    pub fn syn(&self) -> Syn {
        self.accept().1
    }
}

pub fn socket(family: AddressFamily) -> OwnedFd {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

pub fn socket_for(server: SocketAddr) -> OwnedFd {
    socket(if server.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    })
}

/// Runs `body` in a thread as this user.
pub fn as_user<R: Send>(uid: u32, body: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

/// The errno of a user's draw for this socket; 0 if it succeeds.
pub fn draw(uid: u32, socket: &OwnedFd, server: SocketAddr) -> i32 {
    as_user(uid, || {
        usher::draw_token(socket.as_fd(), server)
            .map_or_else(|error| error.raw_os_error().unwrap(), |()| 0)
    })
}

/// A socket of Alice's, with the next element of her ticket.
pub fn drawn(server: SocketAddr) -> OwnedFd {
    let socket = socket_for(server);
    assert_eq!(draw(ALICE, &socket, server), 0);
    socket
}

pub fn connect(uid: u32, socket: &OwnedFd, server: SocketAddr) -> io::Result<()> {
    as_user(uid, || Ok(rustix::net::connect(socket, &server)?))
}

/// The counters without `asked`, which depends on the kernel's version.
pub fn counted(tickets: &Tickets) -> Counters {
    Counters {
        asked: 0,
        ..tickets.counters().unwrap()
    }
}

/// The SYNs that arrive at the loopback interface from now on.
pub struct Capture(OwnedFd);

impl Capture {
    pub fn start() -> Self {
        let protocol = u16::to_be(libc::ETH_P_IP as u16);
        // SAFETY: no pointers.
        let raw = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
                protocol.into(),
            )
        };
        assert!(raw >= 0, "{}", io::Error::last_os_error());
        // SAFETY: just made, with no other owner.
        Self(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    pub fn next(&self) -> Syn {
        self.next_with(SYN)
    }

    /// The next SYN-ACK.
    pub fn next_answer(&self) -> Syn {
        self.next_with(SYN | ACK)
    }

    fn next_with(&self, flags: u8) -> Syn {
        let mut bytes = [0; 2048];
        loop {
            let (length, _) =
                rustix::net::recv(&self.0, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
            if let Some(syn) = Syn::read_with(&bytes[..length], flags) {
                return syn;
            }
        }
    }
}

pub fn begin(uid: u32, socket: &OwnedFd, server: SocketAddr) {
    rustix::io::ioctl_fionbio(socket, true).unwrap();
    let begun = connect(uid, socket, server).map_err(|error| error.raw_os_error());
    assert_eq!(begun, Err(Some(libc::EINPROGRESS)));
}

/// The result of a connect() that has begun.
pub fn end(socket: &OwnedFd) -> io::Result<()> {
    let mut waiting = [rustix::event::PollFd::new(
        socket,
        rustix::event::PollFlags::OUT,
    )];
    rustix::event::poll(&mut waiting, None).unwrap();
    Ok(rustix::net::sockopt::socket_error(socket).unwrap()?)
}

pub fn is_connecting(socket: &OwnedFd) -> bool {
    let mut waiting = [rustix::event::PollFd::new(
        socket,
        rustix::event::PollFlags::OUT,
    )];
    rustix::event::poll(&mut waiting, Some(&Default::default())).unwrap() == 0
}

/// The number of times that the kernel has retransmitted the socket's SYN.
pub fn sent_again(socket: &OwnedFd) -> u8 {
    // struct tcp_info: tcpi_retransmits.
    let mut information = [0; 8];
    get_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut information);
    information[2]
}
