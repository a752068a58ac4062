//! Owners of connections to the client proxy, noted when the connections are made
//! (bpf/authentication/ticket/owners.h).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use usher_bpf::{Mirrored, Object, Table};

use super::types::TicketError;
use crate::KernelError;
use crate::shared::key;
use crate::shared::ticket::{Destination, Owner};

/// The tables of owners.
#[derive(Debug)]
pub struct Relayed {
    relayed: Mutex<Mirrored<Destination, u32>>,
    owners: Table<u32, Owner>,
}

impl Relayed {
    pub(super) fn open(object: &Object) -> Result<Self, KernelError> {
        Ok(Self {
            relayed: Mutex::new(Mirrored::new(object.table("relayed")?)),
            owners: object.table("owners")?,
        })
    }

    /// Notes the owners of connections to these addresses and to no others, from the next connect(2) on.
    ///
    /// # Errors
    /// [`TicketError::Full`] when there is no room for all of them, or the kernel's error; some are then
    /// in force.
    pub fn set(&self, addresses: impl IntoIterator<Item = SocketAddr>) -> Result<(), TicketError> {
        let wanted = addresses.into_iter().map(|server| (server.into(), 0));
        let wanted = wanted.collect();
        let mut relayed = self.relayed.lock();
        relayed.retain(&wanted)?;
        Ok(relayed.enter(&wanted)?)
    }

    /// The user who made the socket at the other end of an accepted connection: as sock_diag(7) shows it,
    /// but also when that socket is closed. None: it was not noted.
    ///
    /// # Errors
    /// When the descriptor is not a socket.
    pub fn owner(&self, accepted: BorrowedFd<'_>) -> Result<Option<u32>, KernelError> {
        let owner = self.owners.get(&key(accepted))?;
        Ok(owner
            .filter(|owner| owner.known != 0)
            .map(|owner| owner.uid))
    }
}
