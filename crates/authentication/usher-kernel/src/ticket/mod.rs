//! The client's side in the kernel: which connections carry which token in their SYN, and which are
//! held (bpf/authentication/ticket).
//!
//! Gates are pinned (`gates`). The other programs are in force as long as a [`Tickets`] is open; when its
//! process ends, they end too, and connections are made without tokens. Loading needs privileges, everything
//! afterwards needs none (kernel 5.19).

pub(crate) mod gates;
mod holding;
mod listing;
mod programs;
mod relayed;
mod syn;
mod types;

use std::os::fd::OwnedFd;
use std::path::Path;

pub use usher_bpf::Batch;
use usher_bpf::{Objects, Plain, Ring, Table};
use usher_proto::token::TokenElement;
use zeroize::Zeroizing;

use crate::KernelError;
use crate::clock::boot_time;
pub use crate::shared::ticket::TicketCounters as Counters;
use crate::shared::ticket::{Block, BlockKey, Ticket as Entry, TicketKey as Key};
pub use gates::{Gate, Gates, LeftGate};
pub use holding::{Event, Holding, Report};
pub use listing::{Listed, Listing, ProgramId};
pub(crate) use programs::CODE;
use programs::Programs;
pub use relayed::Relayed;
pub use syn::{Syn, SynSender};
pub use types::{Attempt, Limits, Ticket, TicketError, TicketKey, Wanted};

/// The ticket programs in force, and their tables.
///
/// Dropping it ends them. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Tickets {
    tickets: Table<Key, Entry>,
    blocks: Table<BlockKey, Block>,
    counters: usher_bpf::Counters<Counters>,
    wanted: Ring<Wanted>,
    holding: Holding,
    listing: Listing,
    relayed: Relayed,
    objects: Objects,
    _links: Vec<OwnedFd>,
}

fn wanted(bytes: &[u8]) -> Option<Wanted> {
    let BlockKey { ticket, block } = Plain::read(bytes)?;
    Some(Wanted {
        number: ticket,
        block,
    })
}

impl Tickets {
    /// Loads the programs and attaches them to `cgroup` (the path of its folder): they serve the
    /// sockets that processes make in it and below, in the caller's network namespace. Other
    /// parties' programs keep running beside them.
    ///
    /// `pins`: a folder of a bpffs, made if it is missing, in which gates outlive this process;
    /// see [`Gates::lasting`].
    ///
    /// # Errors
    /// The kernel's error; then nothing is attached, except perhaps the gates.
    /// [`KernelError::InUse`] while another `Tickets` holds `pins`.
    pub fn open(cgroup: &Path, pins: Option<&Path>, limits: &Limits) -> Result<Self, KernelError> {
        let Programs {
            object,
            identify,
            gates,
            links,
        } = Programs::open(cgroup, pins, limits)?;
        let mut objects = Objects::default();
        object.collect(&mut objects)?;
        gates.collect(&mut objects)?;
        links
            .iter()
            .try_for_each(|link| objects.add_descriptor(link))?;
        Ok(Self {
            objects,
            tickets: object.table("tickets")?,
            blocks: object.table("blocks")?,
            counters: object.counters("counters")?,
            wanted: object.ring("wanted", "read wanted blocks", wanted)?,
            holding: Holding::open(&object, gates, limits.class_bits)?,
            listing: Listing::open(&object, identify)?,
            relayed: Relayed::open(&object)?,
            _links: links,
        })
    }

    /// Enters a ticket, and replaces an earlier one of this user and server. Fill its first blocks
    /// before, because a ticket without blocks is exhausted.
    ///
    /// # Errors
    /// [`TicketError::Full`], or the kernel's error; an earlier ticket is in force then.
    pub fn put(&self, key: &TicketKey, ticket: &Ticket) -> Result<(), TicketError> {
        let entry = Entry::new(ticket, boot_time());
        Ok(self.tickets.set(&key.into(), &entry)?)
    }

    /// Removes a ticket; its blocks stay. Returns false if there was none. A token that was already
    /// drawn is still sent.
    pub fn remove(&self, key: &TicketKey) -> Result<bool, KernelError> {
        self.tickets.remove(&key.into())
    }

    /// The last position drawn from a ticket; none if there is no ticket.
    pub fn next(&self, key: &TicketKey) -> Result<Option<u32>, KernelError> {
        let entry = self.tickets.get(&key.into())?.map(Zeroizing::new);
        Ok(entry.map(|entry| entry.next))
    }

    /// Whether a connection with a token of the present ticket was established; false if there is
    /// no ticket.
    pub fn has_passed(&self, key: &TicketKey) -> Result<bool, KernelError> {
        let entry = self.tickets.get(&key.into())?.map(Zeroizing::new);
        Ok(entry.is_some_and(|entry| entry.passed != 0))
    }

    /// Fills the ticket of this number with the elements at positions `block` * 64 + 1 on. Do this
    /// only once for each block: a block that is filled again after it was dropped may be read
    /// half-written.
    ///
    /// # Errors
    /// [`TicketError::Full`], [`TicketError::BlockSize`], or the kernel's error.
    pub fn fill(
        &self,
        number: u32,
        block: u32,
        elements: &[TokenElement],
    ) -> Result<(), TicketError> {
        let ticket = number;
        let elements = Block::new(elements).ok_or(TicketError::BlockSize)?;
        Ok(self.blocks.set(&BlockKey { ticket, block }, &elements)?)
    }

    /// Removes a block. Returns false if it did not exist.
    pub fn drop_block(&self, number: u32, block: u32) -> Result<bool, KernelError> {
        let ticket = number;
        self.blocks.remove(&BlockKey { ticket, block })
    }

    /// A descriptor that is readable (epoll, poll) while [`Tickets::wanted`] has entries.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn wanted_descriptor(&self) -> Result<OwnedFd, KernelError> {
        self.wanted.descriptor()
    }

    /// Blocks that tickets have reached since the last call, each reported once, up to 1,024.
    pub fn wanted(&self) -> Result<Batch<Wanted>, KernelError> {
        self.wanted.take()
    }

    /// Plain connections.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Listed programs.
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Owners of connections to the proxy.
    pub fn relayed(&self) -> &Relayed {
        &self.relayed
    }

    /// Programs, tables, links and pins, for the guard.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The programs' counters.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        Ok(Counters {
            kept_back: self.holding.gates().kept_back()?,
            ..self.counters.read()?
        })
    }
}
