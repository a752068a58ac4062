//! The ticket programs' settings besides tickets: the destinations at which plain connections are
//! authenticated, the permitted programs, the announced sockets, and the proxy's addresses.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use usher_kernel::ticket::{self, Gates, Holding, Listing, ProgramId, TicketError};
use usher_policy::Policy;
use usher_proto::refusal::Refusal;

use super::Tickets;

impl Tickets {
    /// The holding of plain connections, if the kernel accepts the programs.
    pub fn holding(&self) -> Option<&Holding> {
        self.kernel.as_ref().map(ticket::Tickets::holding)
    }

    /// Gates, if the kernel accepts the programs.
    pub fn gates(&self) -> Option<&Gates> {
        self.holding().map(Holding::gates)
    }

    /// Whether gates outlive this process.
    pub fn gates_last(&self) -> bool {
        self.gates().is_some_and(|gates| gates.lasting().is_ok())
    }

    /// The lists of permitted programs, if the kernel accepts the BPF programs.
    pub fn listing(&self) -> Option<&Listing> {
        self.kernel.as_ref().map(ticket::Tickets::listing)
    }

    /// Has the kernel note the owners of connections to the proxy's addresses. Without the programs, or if
    /// the kernel refuses, only owners who still hold their connections are known.
    pub fn set_relayed(&self, policy: &Policy) {
        let listeners = policy.proxy_listeners().into_iter();
        let addresses = listeners.map(|listener| SocketAddr::V4(listener.address));
        if let Some(kernel) = &self.kernel
            && let Err(error) = kernel.relayed().set(addresses)
        {
            tracing::error!(%error, "cannot note who connects to the proxy: programs that send and \
                close at once may be refused there");
        }
    }

    /// The noted owner at the other end of a connection that the proxy has accepted.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] if it is not a socket.
    pub fn noted_owner(&self, accepted: BorrowedFd<'_>) -> Result<Option<u32>, Refusal> {
        let relayed = self.kernel.as_ref().map(ticket::Tickets::relayed);
        let owner = relayed.map(|relayed| relayed.owner(accepted));
        owner.unwrap_or(Ok(None)).map_err(|error| {
            tracing::debug!(%error, "whose connection the proxy has");
            Refusal::Malformed
        })
    }

    /// Sets the addresses to which plain connections are authenticated, each for the programs of a list or
    /// for all programs.
    ///
    /// # Errors
    /// The kernel's error; some addresses are in force then.
    pub fn set_destinations(
        &self,
        destinations: impl IntoIterator<Item = (SocketAddr, Option<NonZeroU32>)>,
    ) -> Result<(), TicketError> {
        match self.holding() {
            Some(holding) => holding.set_destinations(destinations),
            None => Ok(()),
        }
    }

    /// The program that has requested the announcement of a socket.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] if it is not a socket.
    pub fn asker(&self, socket: BorrowedFd<'_>) -> Result<Option<ProgramId>, Refusal> {
        let asker = self.listing().map(|listing| listing.asker(socket));
        asker.unwrap_or(Ok(None)).map_err(|error| {
            tracing::debug!(%error, "which program asks");
            Refusal::Malformed
        })
    }

    /// The number of held SYNs of plain connections.
    pub fn held(&self) -> u64 {
        usher_bpf::or_zeros(self.kernel.as_ref().map(ticket::Tickets::counters)).held
    }

    /// Exempts a socket, which is announced before it connects, from holding.
    pub fn exempt(&self, socket: BorrowedFd<'_>) {
        if let Some(holding) = self.holding()
            && let Err(error) = holding.exempt(socket)
        {
            // Then the connection is held, and announced a second time.
            tracing::warn!(%error, "cannot exempt an announced connection from holding: it is \
                announced again");
        }
    }
}
