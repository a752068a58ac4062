//! The order in which one policy takes the place of another.

use usher_bpf::KernelError;
use usher_protection::Tables;

use super::{Applied, InForce, Ipsec};
use crate::error::IpsecError;
use crate::plan::Signatures;
use crate::programs::{Identities, Occasion};
use crate::services::Demands;
use crate::spd;
use crate::stale::Stale;

impl Ipsec {
    /// Checks whether [`Ipsec::apply`] would take these tables, unless the kernel fails. Nothing changes.
    ///
    /// # Errors
    /// As [`Ipsec::apply`].
    pub fn check(&self, tables: &Tables) -> Result<(), IpsecError> {
        let carried = self.now.stale.numbers();
        let mut signatures = self.now.signatures.clone();
        signatures.plan(tables, &carried, self.mask)?;
        let (blocks, kernel) = (&tables.applications, self.monitor.kernel());
        let former = &self.now.programs;
        former.look_up(blocks, Occasion::Apply, kernel)?;
        Ok(())
    }

    /// Puts tables in force in place of the former ones. New entries of the SPD come before the
    /// monitor's table, which is replaced at once. Then connections, in the caller's network namespace,
    /// get their marks, and former entries go, except for entries of marks that sockets still carry
    /// ([`Ipsec::adopt`]).
    ///
    /// # Errors
    /// Then the former tables are in force, and the SPD has the former entries, unless the kernel
    /// refuses that as well: [`Ipsec::put_back`] tries again.
    pub fn apply(&mut self, tables: &Tables) -> Result<Applied, IpsecError> {
        let carried = self.now.stale.numbers();
        let mut signatures = self.now.signatures.clone();
        let applications = signatures.plan(tables, &carried, self.mask)?;
        let stale = self.stale_after(&signatures);
        let mut wanted = spd::wanted(tables, &applications, &self.held, &self.own, self.mask);
        wanted.extend(stale.entries());
        let (blocks, kernel) = (&tables.applications, self.monitor.kernel());
        let former = &self.now.programs;
        let programs = former.look_up(blocks, Occasion::Apply, kernel)?;
        self.put_in_force(InForce {
            tables: tables.clone(),
            demands: Demands::of(tables, self.mask),
            wanted,
            stale,
            signatures,
            applications,
            programs,
            is_own: true,
        })
    }

    /// Looks the programs up again, and follows files that have taken the place of others. A file of another
    /// block stays that block's, and [`Applied::refused`] says so. A new file with the former one's name in
    /// the same directory is governed without this call, from its first socket on. The call is for links that
    /// have come to lead elsewhere, for directories that were replaced, and for programs that had no file.
    /// Returns none if nothing has changed.
    ///
    /// # Errors
    /// The kernel's error; the former files count.
    pub fn follow_programs(&mut self) -> Result<Option<Applied>, IpsecError> {
        let now = &self.now;
        let (blocks, kernel) = (&now.tables.applications, self.monitor.kernel());
        let former = &now.programs;
        if former.would_stay() {
            return Ok(None);
        }
        let programs = former.look_up(blocks, Occasion::Follow, kernel)?;
        if programs.are_those_of(former) {
            self.now.programs = programs.settled();
            return Ok(None);
        }
        let next = InForce {
            tables: now.tables.clone(),
            signatures: now.signatures.clone(),
            applications: now.applications.clone(),
            demands: now.demands.clone(),
            wanted: now.wanted.clone(),
            stale: now.stale.clone(),
            programs,
            is_own: now.is_own,
        };
        self.put_in_force(next).map(Some)
    }

    fn put_in_force(&mut self, next: InForce) -> Result<Applied, IpsecError> {
        let mut applied = Applied::default();
        let mut programs = Vec::with_capacity(next.applications.len());
        for rules in &next.tables.applications {
            let mut identities = Identities::default();
            for name in &rules.programs {
                if !next.programs.identify(name, &mut identities) {
                    applied.missing.push(name.clone());
                }
            }
            programs.push(identities);
        }
        // The numbers are kept before sockets get them, so that no later process gives them to other rules.
        let numbers = next.signatures.known();
        let remembered = self.monitor.add_signatures(numbers);
        let demanded = remembered.and_then(|()| self.demand(&next.demands));
        let entered = demanded.and_then(|()| self.spd.enter(&next.wanted));
        let filled = entered.and_then(|(changes, present)| {
            let prepared = self.monitor.fill(&next.applications, &programs)?;
            Ok((changes, present, prepared))
        });
        let former;
        match filled {
            Ok((changes, present, prepared)) => {
                applied.spd_changes = changes;
                self.prepared += prepared;
                former = present;
            }
            Err(error) => {
                if let Err(error) = self.put_back() {
                    tracing::error!(%error, "cannot remove SPD entries of tables that are not in \
                        force");
                }
                // Demands of an earlier process stay.
                if self.now.is_own {
                    self.lift_demands();
                }
                self.forget_signatures();
                return Err(error);
            }
        }
        self.now = next;
        self.lift_demands();
        self.forget_signatures();
        applied.refused = self.now.programs.refused().to_vec();
        applied.unread = self.now.programs.unread().to_vec();
        for refused in &applied.refused {
            tracing::warn!(program = %refused.program, "{refused}");
        }
        self.mark_connections();
        // The tables are in force even if entries that nothing selects any more cannot be removed.
        match self.spd.retain_among(&self.now.wanted, &former) {
            Ok(changes) => applied.spd_changes += changes,
            Err(error) => tracing::error!(%error, "cannot remove SPD entries of the former tables"),
        }
        Ok(applied)
    }

    /// The former rules by which sockets may be marked once rules with these signatures are in force.
    fn stale_after(&self, signatures: &Signatures) -> Stale {
        let InForce {
            stale,
            applications,
            wanted,
            ..
        } = &self.now;
        // If sockets cannot be listed, only the rules of one policy are kept.
        let none = Stale::default();
        let before = if self.monitor.lists_sockets() {
            stale
        } else {
            &none
        };
        let next = signatures.known().values().copied().collect();
        Stale::after(before, applications, wanted, &next, self.mask)
    }

    /// Gives TCP connections the marks that the policy in force demands. [`Ipsec::apply`] does this before
    /// the former entries of the SPD go, because their packets use these entries until then. To be called
    /// when a peer is held; a failure is only logged.
    pub fn mark_connections(&self) {
        match self.monitor.mark_connections() {
            // `adopt` says so.
            Ok(()) | Err(IpsecError::Unlisted(_)) => {}
            Err(error) => tracing::warn!(%error, "cannot mark older connections: they wait until \
                they are marked"),
        }
    }

    /// Demands protection of these services as well, if the kernel accepts the programs.
    fn demand(&mut self, demands: &Demands) -> Result<(), IpsecError> {
        match &mut self.services {
            Ok(services) => match services.add(demands, self.monitor.pins()) {
                Err(KernelError::Full(_)) => Err(IpsecError::ServicesFull),
                added => Ok(added?),
            },
            Err(_) => Ok(()),
        }
    }

    /// Lifts the demands that the tables in force do not have.
    fn lift_demands(&mut self) {
        let Ok(services) = &mut self.services else {
            return;
        };
        if let Err(error) = services.retain(&self.now.demands, self.monitor.pins()) {
            tracing::error!(%error, "cannot lift demands of tables that are not in force: services \
                keep them");
        }
    }

    /// Frees the numbers that the tables in force do not have, because nothing uses them.
    fn forget_signatures(&self) {
        let numbers = self.now.signatures.known();
        if let Err(error) = self.monitor.keep_signatures(numbers) {
            tracing::error!(%error, "cannot free the numbers of signatures that nothing uses");
        }
    }
}
