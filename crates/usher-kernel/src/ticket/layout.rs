//! The structures of bpf/include/usher_ticket.h, and their translation.

use std::net::SocketAddr;

use usher_proto::address_bytes;
use usher_proto::token::{TOKEN_BLOCK, TOKEN_ELEMENT_SIZE, TokenElement};
use zeroize::{Zeroize, Zeroizing};

use super::types::{Counters, Ticket, TicketKey};
use crate::admission::layout::plain;
use crate::clock::after;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Key {
    uid: u32,
    address: [u8; 16],
    port: [u8; 2],
    reserved: u16,
}
plain!(Key, 24);

#[derive(Clone, Copy, Zeroize)]
#[repr(C)]
pub(super) struct Entry {
    mark: u64,
    expires_ns: u64,
    key: [u8; 16],
    slot: u32,
    pub next: u32,
    pub passed: u32,
    reserved: u32,
}
plain!(Entry, 48);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct BlockKey {
    pub ticket: u32,
    pub block: u32,
}
plain!(BlockKey, 8);

#[derive(Clone, Copy, Zeroize)]
#[repr(C)]
pub(super) struct Block {
    count: u32,
    elements: [u8; TOKEN_ELEMENT_SIZE * TOKEN_BLOCK as usize],
}
plain!(Block, 708);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Destination {
    address: [u8; 16],
    port: [u8; 2],
    reserved: u16,
}
plain!(Destination, 20);

/// A connection's ends, as [`ConnectionTuple::encode`] writes them.
pub(super) type Ends = [u8; 36];

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Guard {
    pub cookie: u64,
    /// 0: whichever connect(2) of the socket.
    pub begun_ns: u64,
    pub until_ns: u64,
    pub released: u64,
    /// Zeros: not known.
    pub session: [u8; 16],
}
plain!(Guard, 48);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Hold {
    begun_ns: u64,
    program: u64,
    uid: u32,
    ticket: u32,
    pid: u32,
    exempt: u8,
    told: u8,
    asked: u8,
    reserved: u8,
    command: [u8; COMMAND_SIZE],
}
plain!(Hold, 48);

/// The longest name that a process gives itself, with a zero byte.
pub(super) const COMMAND_SIZE: usize = 16;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ListedKey {
    program: u64,
    list: u32,
    reserved: u32,
}
plain!(ListedKey, 16);

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Asker {
    pub program: u64,
}
plain!(Asker, 8);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProgramQuery {
    pub program: u64,
    descriptor: i32,
    reserved: u32,
}
plain!(ProgramQuery, 16);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Tally {
    drawn: u64,
    without_ticket: u64,
    expired: u64,
    exhausted: u64,
    unsuitable: u64,
    other_destination: u64,
    asked: u64,
    written: u64,
    no_room: u64,
    established: u64,
    failed: u64,
    untold: u64,
    held: u64,
    unreported: u64,
    unheld: u64,
    refused: u64,
    unanswered: u64,
    unsent: u64,
    unlisted: u64,
}
plain!(Tally, 152);

impl From<&TicketKey> for Key {
    fn from(key: &TicketKey) -> Self {
        Self {
            uid: key.uid,
            address: address_bytes(key.server.ip()),
            port: key.server.port().to_be_bytes(),
            reserved: 0,
        }
    }
}

impl From<SocketAddr> for Destination {
    fn from(server: SocketAddr) -> Self {
        Self {
            address: address_bytes(server.ip()),
            port: server.port().to_be_bytes(),
            reserved: 0,
        }
    }
}

impl Hold {
    /// Of a socket that is never held.
    pub(super) const EXEMPT: Self = Self {
        begun_ns: 0,
        program: 0,
        uid: 0,
        ticket: 0,
        pid: 0,
        exempt: 1,
        told: 0,
        asked: 0,
        reserved: 0,
        command: [0; COMMAND_SIZE],
    };
}

impl ListedKey {
    pub(super) fn new(program: u64, list: u32) -> Self {
        Self {
            program,
            list,
            reserved: 0,
        }
    }
}

impl ProgramQuery {
    pub(super) fn new(descriptor: i32) -> Self {
        Self {
            program: 0,
            descriptor,
            reserved: 0,
        }
    }
}

impl Entry {
    /// `now`: boot time in nanoseconds.
    pub(super) fn new(ticket: &Ticket, now: u64) -> Zeroizing<Self> {
        Zeroizing::new(Self {
            mark: u64::from(ticket.number) << 32,
            expires_ns: after(now, ticket.lifetime),
            key: *ticket.key,
            slot: ticket.slot.number(),
            next: ticket.next,
            passed: 0,
            reserved: 0,
        })
    }
}

impl Block {
    /// None for no elements, and for more than a block takes.
    pub(super) fn new(elements: &[TokenElement]) -> Option<Zeroizing<Self>> {
        let count = u32::try_from(elements.len())
            .ok()
            .filter(|count| (1..=TOKEN_BLOCK).contains(count))?;
        let mut block = Zeroizing::new(Self {
            count,
            elements: [0; TOKEN_ELEMENT_SIZE * TOKEN_BLOCK as usize],
        });
        let places = block.elements.as_chunks_mut::<TOKEN_ELEMENT_SIZE>().0;
        for (place, element) in places.iter_mut().zip(elements) {
            *place = *element;
        }
        Some(block)
    }
}

impl From<&[Tally]> for Counters {
    fn from(per_cpu: &[Tally]) -> Self {
        let mut sum = Self::default();
        for tally in per_cpu {
            sum.drawn += tally.drawn;
            sum.without_ticket += tally.without_ticket;
            sum.expired += tally.expired;
            sum.exhausted += tally.exhausted;
            sum.unsuitable += tally.unsuitable;
            sum.other_destination += tally.other_destination;
            sum.asked += tally.asked;
            sum.written += tally.written;
            sum.no_room += tally.no_room;
            sum.established += tally.established;
            sum.failed += tally.failed;
            sum.untold += tally.untold;
            sum.held += tally.held;
            sum.unreported += tally.unreported;
            sum.unheld += tally.unheld;
            sum.refused += tally.refused;
            sum.unanswered += tally.unanswered;
            sum.unsent += tally.unsent;
            sum.unlisted += tally.unlisted;
        }
        sum
    }
}
