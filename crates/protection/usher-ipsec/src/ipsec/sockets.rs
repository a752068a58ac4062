//! Sockets of governed programs: adopting and listing them.

use std::collections::BTreeSet;

use super::Ipsec;
use crate::error::IpsecError;
use crate::live::{Gathering, LivePage};
use crate::shared::UNGOVERNED;

impl Ipsec {
    /// Adopts the sockets of governed programs that are older than the policy, or were made by
    /// another program: their packets are treated by the policy from now on. TCP connections get the
    /// marks that the policy in force demands, also those that an earlier policy has marked. Returns
    /// the number of sockets adopted since the last call, also those that [`Ipsec::apply`] has adopted.
    /// Entries of the SPD for former rules go once no socket carries their marks. To be called when tables, programs or held peers have changed,
    /// in the network namespace of the connections.
    ///
    /// A descriptor that is only on its way between processes is not seen, and a connection that
    /// its program has not accepted yet has no descriptor. So it is to be called again later.
    ///
    /// # Errors
    /// [`IpsecError::Unlisted`], or the kernel's error.
    pub fn adopt(&mut self) -> Result<usize, IpsecError> {
        self.adopt_and_mark(true)
    }

    /// The same, where nothing has changed since connections got their marks: they are looked at only if
    /// a socket is adopted. That takes time for each connection that the host has room for.
    ///
    /// # Errors
    /// As [`Ipsec::adopt`].
    pub fn adopt_later(&mut self) -> Result<usize, IpsecError> {
        self.adopt_and_mark(false)
    }

    fn adopt_and_mark(&mut self, always: bool) -> Result<usize, IpsecError> {
        let (mut adopted, mut carried) = (0, BTreeSet::new());
        self.monitor.visit(|row| {
            adopted += usize::from(row.adopted != 0);
            carried.insert(row.mark & self.mask.bits());
        })?;
        if always || adopted > 0 {
            self.monitor.mark_connections()?;
        }
        self.forget_stale(&carried);
        Ok(adopted + std::mem::take(&mut self.prepared))
    }

    /// Removes the entries of former rules that no socket needs any more.
    fn forget_stale(&mut self, carried: &BTreeSet<u32>) {
        for selected in self.now.stale.listed(carried, self.mask).keys() {
            self.now.wanted.remove(selected);
            // Whatever stays is removed when the SPD is compared next.
            if let Err(error) = self.spd.remove(selected) {
                tracing::error!(%error, "the SPD keeps entries of former tables");
            }
        }
    }

    /// A page of at most `most` sockets of governed programs, in the order of their cookies, after
    /// the cookie `after` (0: the first page). Adopts like [`Ipsec::adopt`]. Each page visits all
    /// descriptors of the host.
    ///
    /// A socket without a descriptor is not among them: a connection that waits to be accepted, or
    /// that its program has closed.
    ///
    /// # Errors
    /// [`IpsecError::Unlisted`], or the kernel's error.
    pub fn sockets(&self, after: u64, most: usize) -> Result<LivePage, IpsecError> {
        let mut gathering = Gathering::new(after, most);
        let mut adopted = false;
        self.monitor.visit(|row| {
            adopted |= row.adopted != 0;
            if row.application != UNGOVERNED {
                gathering.take(row);
            }
        })?;
        if adopted {
            self.monitor.mark_connections()?;
        }
        Ok(gathering.page(|maker| self.now.programs.name(maker)))
    }
}
