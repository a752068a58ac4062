//! The data that user space and the ticket programs exchange.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::net::sockopt::socket_cookie;
use usher_base::address_bytes;
use usher_bpf::Plain;
use usher_proto::token::{TokenElement, TokenKey, TokenSlot};
use zeroize::{Zeroize, Zeroizing};

use crate::KernelError;
use crate::clock::after;
use crate::shared::ticket;
use crate::shared::ticket::{Block, Destination, Ticket as Entry, TicketKey as Key};

/// The sizes of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tickets: pairs of user and server.
    pub tickets: u32,
    /// Blocks of elements, of all tickets together. A ticket in use has two.
    pub blocks: u32,
    /// Destinations at which plain connections are authenticated.
    pub destinations: u32,
    /// Connections under decision or announced, at one time.
    pub gates: u32,
    /// Listed programs: pairs of list and program.
    pub listed: u32,
    /// The bits of a socket's mark by which IPsec tells classes of traffic apart: up to four adjacent bits.
    /// Held SYNs of sockets with other marks are left to the kernel.
    pub class_bits: u32,
}

impl Limits {
    /// The default number of gates, half of them for held connections. The caller that enters them
    /// ensures that no user takes all.
    pub const GATES: u32 = 32_768;
    /// The default number of listed programs.
    pub const LISTED: u32 = 8_192;
}

impl Default for Limits {
    /// 65,536 tickets, about 8 MB of kernel memory at once, and 32,768 blocks, which take memory
    /// as they are filled: up to 26 MB.
    fn default() -> Self {
        Self {
            tickets: 65_536,
            blocks: 32_768,
            destinations: 16_384,
            gates: Self::GATES,
            listed: Self::LISTED,
            class_bits: 0,
        }
    }
}

/// The user and the server of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TicketKey {
    /// The user, in the initial user namespace. A process draws with its real uid.
    pub uid: u32,
    /// The server. IPv4 and its mapped form are the same; scope and flow label are ignored.
    pub server: SocketAddr,
}

/// A ticket: the data for tokens in the SYNs of one user's connections to one server.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The ticket's number, never reused while these tables are open.
    pub number: u32,
    /// The server's name for the session.
    pub slot: TokenSlot,
    /// The last drawn position; 0 at first.
    pub next: u32,
    /// The time for which elements may be drawn from the ticket, from now on.
    pub lifetime: Duration,
    /// The session's token key.
    pub key: TokenKey,
}

/// A block that a ticket has reached. User space must fill this block and the next unless they are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wanted {
    /// The ticket.
    pub number: u32,
    /// The block, from 0.
    pub block: u32,
}

/// Reasons that a ticket or a block is not entered.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The table of tickets, or that of blocks, is full.
    #[error("the table is full")]
    Full,
    /// No elements, or more than fit into a block.
    #[error("a block must have 1 to 64 elements")]
    BlockSize,
    /// Another error.
    #[error(transparent)]
    Kernel(KernelError),
}

impl From<KernelError> for TicketError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Full(_) => Self::Full,
            error => Self::Kernel(error),
        }
    }
}

impl From<&TicketKey> for Key {
    fn from(key: &TicketKey) -> Self {
        Self {
            uid: key.uid,
            server: key.server.into(),
        }
    }
}

impl From<SocketAddr> for Destination {
    fn from(server: SocketAddr) -> Self {
        Self {
            address: address_bytes(server.ip()),
            port: server.port().to_be_bytes(),
            reserved: [0; 2],
        }
    }
}

impl Zeroize for Entry {
    fn zeroize(&mut self) {
        self.key.zeroize();
    }
}

impl Zeroize for Block {
    fn zeroize(&mut self) {
        self.elements.zeroize();
    }
}

impl Entry {
    /// `now`: boot time in nanoseconds.
    pub(super) fn new(ticket: &Ticket, now: u64) -> Zeroizing<Self> {
        Zeroizing::new(Self {
            mark: u64::from(ticket.number) << 32,
            expires_ns: after(now, ticket.lifetime),
            key: [0, 8].map(|at| {
                let word = ticket.key.as_bytes()[at..].first_chunk();
                word.map_or(0, |word| u64::from_ne_bytes(*word))
            }),
            slot: ticket.slot.number(),
            next: ticket.next,
            passed: 0,
            reserved: 0,
        })
    }
}

impl Block {
    /// A block of these elements; none if there are no elements, or more than fit into a block.
    pub(super) fn new(elements: &[TokenElement]) -> Option<Zeroizing<Self>> {
        let mut block = Zeroizing::new(Self::zeroed());
        let places = block.elements.get_mut(..elements.len())?;
        places.copy_from_slice(elements);
        block.count = u32::try_from(elements.len()).ok()?;
        (block.count > 0).then_some(block)
    }
}

/// One connect(2): its socket and its time, which distinguishes it from others of the same socket. Never
/// the same twice between two boots. See also [`Attempt::of_socket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The socket's cookie.
    pub cookie: u64,
    /// Boot time in nanoseconds.
    pub begun_ns: u64,
}

impl Attempt {
    /// A connection that is announced before it begins: any connect(2) of the socket.
    ///
    /// # Errors
    /// The kernel's error for a descriptor that is not a socket.
    pub fn of_socket(socket: BorrowedFd<'_>) -> Result<Self, KernelError> {
        let failed = KernelError::system("ask for the cookie of a socket");
        let cookie = socket_cookie(socket).map_err(failed)?;
        Ok(Self {
            cookie,
            begun_ns: 0,
        })
    }
}

impl From<Attempt> for ticket::Attempt {
    fn from(Attempt { cookie, begun_ns }: Attempt) -> Self {
        Self { cookie, begun_ns }
    }
}
