//! The client's side in the kernel: whose SYNs carry which token, and which are held (bpf/authentication/ticket).
//!
//! Guards are pinned (guards). The other programs are in force as long as a [`Tickets`] is open; when
//! its process ends they go with it, and connections are made without tokens. Loading needs
//! privileges, everything afterwards none (kernel 5.19).

pub(crate) mod guards;
mod holding;
mod listing;
mod programs;
mod syn;
mod types;

use std::fmt;
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
pub use guards::{Guard, Guards, LeftGuard};
pub use holding::{Attempt, Event, Holding, Report};
pub use listing::{Listed, Listing, ProgramId};
pub(crate) use programs::CODE;
use programs::Programs;
pub use syn::{Syn, SynSender};
pub use types::{Limits, Ticket, TicketError, TicketKey, Wanted};

/// The ticket programs in force, and their tables.
///
/// Dropping it ends that. All methods may be called from several threads at once.
pub struct Tickets {
    tickets: Table<Key, Entry>,
    blocks: Table<BlockKey, Block>,
    counters: usher_bpf::Counters<Counters>,
    wanted: Ring<Wanted>,
    holding: Holding,
    listing: Listing,
    objects: Objects,
    _links: Vec<OwnedFd>,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tickets").finish_non_exhaustive()
    }
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
    /// sockets that processes make in it and below, in the caller's network namespace. Programs of
    /// others go on running beside them.
    ///
    /// `pins`: a folder of a bpffs, made if need be, in which guards outlive this process; see
    /// [`Guards::lasting`].
    ///
    /// # Errors
    /// The kernel's error; nothing is attached then but perhaps the guards.
    /// [`KernelError::InUse`] while another one has `pins`.
    pub fn open(cgroup: &Path, pins: Option<&Path>, limits: &Limits) -> Result<Self, KernelError> {
        let Programs {
            object,
            identify,
            guards,
            links,
        } = Programs::open(cgroup, pins, limits)?;
        let mut objects = Objects::default();
        object.collect(&mut objects)?;
        guards.collect(&mut objects)?;
        links
            .iter()
            .try_for_each(|link| objects.add_descriptor(link))?;
        Ok(Self {
            objects,
            tickets: object.table("tickets")?,
            blocks: object.table("blocks")?,
            counters: object.counters("counters")?,
            wanted: object.ring("wanted", "reading wanted blocks", wanted)?,
            holding: Holding::open(&object, guards)?,
            listing: Listing::open(&object, identify)?,
            _links: links,
        })
    }

    /// Enters a ticket, in the place of an earlier one of this user and server. Fill its first
    /// blocks before: until then it is exhausted.
    ///
    /// # Errors
    /// [`TicketError::Full`], or the kernel's error; an earlier ticket is in force then.
    pub fn put(&self, key: &TicketKey, ticket: &Ticket) -> Result<(), TicketError> {
        let entry = Entry::new(ticket, boot_time());
        Ok(self.tickets.set(&key.into(), &entry)?)
    }

    /// Takes a ticket away; its blocks stay. False: there was none. A token that has been drawn is
    /// still sent.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, key: &TicketKey) -> Result<bool, KernelError> {
        self.tickets.remove(&key.into())
    }

    /// The position that was drawn last from a ticket; none when there is no ticket.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn next(&self, key: &TicketKey) -> Result<Option<u32>, KernelError> {
        let entry = self.tickets.get(&key.into())?.map(Zeroizing::new);
        Ok(entry.map(|entry| entry.next))
    }

    /// Whether a connection with a token of the present ticket was established; false when there is
    /// none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has_passed(&self, key: &TicketKey) -> Result<bool, KernelError> {
        let entry = self.tickets.get(&key.into())?.map(Zeroizing::new);
        Ok(entry.is_some_and(|entry| entry.passed != 0))
    }

    /// Gives the ticket of this number the elements at positions `block` * 64 + 1 on. To be done
    /// once a block: what is filled again after having been dropped may be read half.
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

    /// Takes a block away. False: it was not there.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn drop_block(&self, number: u32, block: u32) -> Result<bool, KernelError> {
        let ticket = number;
        self.blocks.remove(&BlockKey { ticket, block })
    }

    /// A descriptor that is readable (epoll, poll) while [`Tickets::wanted`] has something.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn wanted_descriptor(&self) -> Result<OwnedFd, KernelError> {
        self.wanted.descriptor()
    }

    /// Blocks that tickets have come to since the last call, each told once, up to 1,024.
    ///
    /// # Errors
    /// What libbpf says.
    pub fn wanted(&self) -> Result<Batch<Wanted>, KernelError> {
        self.wanted.take()
    }

    /// Plain connections.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Programs that are listed.
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Programs, tables, links and pins, for their protection.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// What the programs have counted.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        Ok(Counters {
            kept_back: self.holding.guards().kept_back()?,
            ..self.counters.read()?
        })
    }
}
