//! What user space tells the ticket programs, and what it hears from them.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use usher_proto::token::{TOKEN_KEY_SIZE, TokenSlot};
use zeroize::Zeroizing;

use crate::KernelError;

/// How many entries the tables take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tickets: pairs of user and server.
    pub tickets: u32,
    /// Blocks of elements, of all tickets together. A ticket in use has two.
    pub blocks: u32,
    /// Where plain connections are authenticated.
    pub destinations: u32,
    /// Connections that are decided about or announced, at one time.
    pub guards: u32,
    /// Programs that are listed: pairs of list and program.
    pub listed: u32,
}

impl Limits {
    /// Guards, unless it is said otherwise: half of them for connections that are held. Who enters
    /// them sees to it that nobody takes all.
    pub const GUARDS: u32 = 32_768;
    /// Listed programs, unless it is said otherwise.
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
            guards: Self::GUARDS,
            listed: Self::LISTED,
        }
    }
}

/// Whose ticket, and for where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TicketKey {
    /// The user, as the initial user namespace numbers it. A process draws with its real uid.
    pub uid: u32,
    /// The server. IPv4 and its mapped form are the same; scope and flow label are not looked at.
    pub server: SocketAddr,
}

/// A ticket: what goes into the SYNs of one user's connections to one server.
#[derive(Clone)]
pub struct Ticket {
    /// Its number, never used for another one as long as these tables are open.
    pub number: u32,
    /// The server's name for the session.
    pub slot: TokenSlot,
    /// The position that was drawn last; 0 at first.
    pub next: u32,
    /// How long it may be drawn from, from now on.
    pub lifetime: Duration,
    /// The session's token key.
    pub key: Zeroizing<[u8; TOKEN_KEY_SIZE]>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Ticket")
            .field("number", &self.number)
            .field("slot", &self.slot)
            .field("next", &self.next)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

/// A block that a ticket has come to: it and the next are to be filled if they are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wanted {
    /// The ticket.
    pub number: u32,
    /// The block, from 0.
    pub block: u32,
}

/// Why a ticket or a block is not entered.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The table of tickets, or that of blocks, is full.
    #[error("the table is full")]
    Full,
    /// No elements, or more than a block takes.
    #[error("a block has 1 to 64 elements")]
    BlockSize,
    /// Something else.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What the programs have counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Elements drawn for a socket.
    pub drawn: u64,
    /// Draws without a ticket.
    pub without_ticket: u64,
    /// Draws from a ticket that had expired.
    pub expired: u64,
    /// Draws from a ticket without elements.
    pub exhausted: u64,
    /// Draws for what is no TCP socket, or not one that may yet connect.
    pub unsuitable: u64,
    /// Connections to somewhere else than their token was drawn for: without.
    pub other_destination: u64,
    /// Times that the kernel asked what a packet's options need: for what connections with a token
    /// send before their handshake ends, and where programs of others have it ask.
    pub asked: u64,
    /// Options written: one for each SYN, copies sent again included.
    pub written: u64,
    /// Connections without their token for want of room in the SYN.
    pub no_room: u64,
    /// Handshakes that ended well of connections with a token.
    pub established: u64,
    /// Those that did not.
    pub failed: u64,
    /// Blocks of which user space could not be told yet; they are told at the next draw.
    pub untold: u64,
    /// SYNs of plain connections that were held, copies sent again included.
    pub held: u64,
    /// Of these and of ends of plain connections, what user space could not be told.
    pub unreported: u64,
    /// SYNs kept back because their ends were another connection's.
    pub kept_back: u64,
    /// Plain connections that could not be marked, for want of memory: they are not held.
    pub unheld: u64,
    /// Plain connections whose token was answered by a RST.
    pub refused: u64,
    /// Plain connections whose token was not answered: they go on without.
    pub unanswered: u64,
    /// Packets of the sender of held SYNs that were none.
    pub unsent: u64,
    /// Draws and plain connections of programs that were not listed for where they went.
    pub unlisted: u64,
}

impl Counters {
    /// Names and numbers, for views.
    #[must_use]
    pub fn named(&self) -> [(String, u64); 20] {
        [
            ("drawn".into(), self.drawn),
            ("without_ticket".into(), self.without_ticket),
            ("expired".into(), self.expired),
            ("exhausted".into(), self.exhausted),
            ("unsuitable".into(), self.unsuitable),
            ("other_destination".into(), self.other_destination),
            ("asked".into(), self.asked),
            ("written".into(), self.written),
            ("no_room".into(), self.no_room),
            ("established".into(), self.established),
            ("failed".into(), self.failed),
            ("untold".into(), self.untold),
            ("held".into(), self.held),
            ("unreported".into(), self.unreported),
            ("kept_back".into(), self.kept_back),
            ("unheld".into(), self.unheld),
            ("refused".into(), self.refused),
            ("unanswered".into(), self.unanswered),
            ("unsent".into(), self.unsent),
            ("unlisted".into(), self.unlisted),
        ]
    }
}
