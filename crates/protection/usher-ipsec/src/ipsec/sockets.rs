//! Sockets of governed programs: adopting and listing them.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use usher_bpf::Iteration;

use super::Ipsec;
use crate::error::IpsecError;
use crate::live::{Gathering, GatheringUnheld, LivePage, Row, Unheld};
use crate::shared::UNGOVERNED;

/// A visit of all descriptors of the host, which [`Ipsec::go_on`] continues. Users choose how long it
/// takes: each process may have half a million descriptors.
pub struct Visit {
    rows: Iteration,
    /// The policy in force when it began.
    generation: u32,
    /// Connections get their marks even if no socket is adopted.
    marks_always: bool,
    /// Sockets adopted and not yet returned.
    adopted: usize,
    /// The marks that sockets carry.
    carried: BTreeSet<u32>,
    page: Option<Gathering>,
    unheld: GatheringUnheld,
}

impl fmt::Debug for Visit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Visit").finish_non_exhaustive()
    }
}

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
        let visit = self.begin_adopting(true)?;
        self.finish(visit).map(|(adopted, _)| adopted)
    }

    /// Begins what [`Ipsec::adopt`] does. Without `marks_always`, connections are visited only if a socket is
    /// adopted, because the visit takes time for each connection that the host has room for. That is enough
    /// where nothing has changed since connections got their marks.
    ///
    /// # Errors
    /// As [`Ipsec::adopt`].
    pub fn begin_adopting(&self, marks_always: bool) -> Result<Visit, IpsecError> {
        Ok(Visit {
            rows: self.monitor.begin_visit()?,
            generation: self.monitor.generation()?,
            marks_always,
            adopted: 0,
            carried: BTreeSet::new(),
            page: None,
            unheld: GatheringUnheld::default(),
        })
    }

    /// Begins a page of at most `most` sockets of governed programs, in the order of their cookies, after
    /// the cookie `after` (0: the first page). Adopts like [`Ipsec::adopt`], and marks connections if it adopts a socket. Each page visits all
    /// descriptors of the host.
    ///
    /// A socket without a descriptor is not among them: a connection that waits to be accepted, or
    /// that its program has closed.
    ///
    /// # Errors
    /// As [`Ipsec::adopt`].
    pub fn begin_page(&self, after: u64, most: usize) -> Result<Visit, IpsecError> {
        Ok(Visit {
            page: Some(Gathering::new(after, most)),
            ..self.begin_adopting(false)?
        })
    }

    /// Continues a visit for so long, or a fraction of a second longer. Returns the number of sockets
    /// adopted meanwhile, and whether the visit is complete.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn go_on(
        &mut self,
        visit: &mut Visit,
        limit: Duration,
    ) -> Result<(usize, bool), IpsecError> {
        let mask = self.mask.bits();
        let Visit {
            rows,
            adopted,
            carried,
            page,
            unheld,
            ..
        } = visit;
        let is_complete = rows.go_on(limit, |row: Row| {
            *adopted += usize::from(row.adopted != 0);
            carried.insert(row.mark & mask);
            unheld.take(&row);
            if let Some(page) = page.as_mut().filter(|_| row.application != UNGOVERNED) {
                page.take(row);
            }
        })?;
        let adopted = std::mem::take(adopted);
        if adopted > 0 || is_complete && visit.marks_always {
            self.monitor.mark_connections()?;
        }
        if is_complete && self.is_of_policy(visit)? {
            let unheld = std::mem::take(&mut visit.unheld);
            self.unheld = unheld.named(|maker| self.now.programs.name(maker));
        }
        // The marks of another policy may have come to sockets that were visited before. A page may end at
        // the same time as another visit, so it does not count as one of two in a row. Before the first
        // tables the entries are an earlier process's, and in force.
        let is_listing = is_complete && visit.page.is_none() && self.now.is_own;
        if is_listing && self.is_of_policy(visit)? {
            self.forget_stale(&visit.carried);
        }
        Ok((adopted + std::mem::take(&mut self.prepared), is_complete))
    }

    /// The processes of governed programs with sockets that are not treated as the policy says, as the
    /// last complete visit has found them; at most 64 are named.
    #[must_use]
    pub fn unheld(&self) -> &[Unheld] {
        &self.unheld
    }

    /// Returns whether the tables in force are those of the beginning of the visit.
    fn is_of_policy(&self, visit: &Visit) -> Result<bool, IpsecError> {
        Ok(self.monitor.generation()? == visit.generation)
    }

    /// The page of a complete visit.
    #[must_use]
    pub fn page(&self, visit: Visit) -> LivePage {
        let page = visit
            .page
            .map(|page| page.page(|maker| self.now.programs.name(maker)));
        page.unwrap_or_default()
    }

    /// A page at once; see [`Ipsec::begin_page`]. The sockets that it adopts are not counted.
    ///
    /// # Errors
    /// As [`Ipsec::adopt`].
    pub fn sockets(&mut self, after: u64, most: usize) -> Result<LivePage, IpsecError> {
        let prepared = std::mem::take(&mut self.prepared);
        let visit = self.begin_page(after, most)?;
        let finished = self.finish(visit);
        self.prepared = prepared;
        Ok(self.page(finished?.1))
    }

    fn finish(&mut self, mut visit: Visit) -> Result<(usize, Visit), IpsecError> {
        let (adopted, _) = self.go_on(&mut visit, Duration::MAX)?;
        Ok((adopted, visit))
    }

    /// Removes the entries of former rules that no socket needs any more.
    fn forget_stale(&mut self, carried: &BTreeSet<u32>) {
        for selected in self.now.stale.listed(carried, self.mask).keys() {
            self.now.wanted.remove(selected);
            // Entries that stay are removed when the SPD is compared next.
            if let Err(error) = self.spd.remove(selected) {
                tracing::error!(%error, "cannot remove SPD entries of former tables");
            }
        }
    }
}
