//! Monitor, SPD and sysctls together.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use usher_protection::{Class, Level, ProgramName, Tables};

use crate::error::IpsecError;
use crate::live::LiveSocket;
use crate::marks::{MarkMask, reqid};
use crate::monitor::{Counters, Monitor};
use crate::plan::{Application, Signatures};
use crate::programs::{Occasion, Programs, Refused};
use crate::spd::{self, Entries, Spd};
use crate::sysctls::Sysctls;

/// How protection is put in force.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the control group whose sockets are seen.
    pub cgroup: PathBuf,
    /// A folder of a BPF file system: what is in force outlives the process. None: it does not.
    pub pins: Option<PathBuf>,
    /// The bits of socket marks that are ours.
    pub mask: MarkMask,
    /// The file for the former values of sysctls. None: sysctls stay as they are.
    pub sysctls: Option<PathBuf>,
}

/// What came of putting tables in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Programs without a file that counts: their blocks wait for one.
    pub missing: Vec<ProgramName>,
    /// Files that do not count, although a program's name leads to them.
    pub refused: Vec<Refused>,
    /// The number of entries of the SPD that were added, replaced or removed.
    pub spd_changes: usize,
}

/// Protection on this host.
///
/// Dropping it leaves the SPD and the sysctls, and what is pinned, in force.
#[derive(Debug)]
pub struct Ipsec {
    monitor: Monitor,
    spd: Spd,
    sysctls: Option<Sysctls>,
    mask: MarkMask,
    held: BTreeSet<(Class, IpAddr)>,
    now: InForce,
}

/// One policy, and all that follows from it.
#[derive(Debug, Default)]
struct InForce {
    tables: Tables,
    signatures: Signatures,
    applications: Vec<Application>,
    programs: Programs,
    wanted: Entries,
}

impl Ipsec {
    /// Tries whether this kernel accepts the monitor.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn probe() -> Result<(), String> {
        Monitor::probe()
    }

    /// Loads and attaches the monitor, and sets the sysctls. Nothing is governed yet.
    ///
    /// # Errors
    /// The first of them that failed; the others may be in force.
    pub fn open(settings: &Settings) -> Result<Self, IpsecError> {
        Ok(Self {
            spd: Spd::open(settings.mask)?,
            sysctls: settings.sysctls.as_deref().map(Sysctls::set).transpose()?,
            monitor: Monitor::open(&settings.cgroup, settings.pins.as_deref(), settings.mask)?,
            mask: settings.mask,
            held: BTreeSet::new(),
            now: InForce::default(),
        })
    }

    /// Puts tables in force in place of the former ones. New entries of the SPD come before the
    /// monitor's table, which is replaced at once, and former ones go after it.
    ///
    /// # Errors
    /// Then the former tables are in force, and the SPD has the former entries, unless the kernel
    /// refuses that as well: [`Ipsec::put_back`] tries again.
    pub fn apply(&mut self, tables: &Tables) -> Result<Applied, IpsecError> {
        let mut signatures = self.now.signatures.clone();
        let applications = signatures.plan(tables, self.mask)?;
        let (blocks, identifier) = (&tables.applications, self.monitor.identifier());
        let former = &self.now.programs;
        let programs = former.look_up(blocks, Occasion::Apply, identifier)?;
        self.put_in_force(InForce {
            tables: tables.clone(),
            wanted: spd::wanted(tables, &applications, &self.held, self.mask),
            signatures,
            applications,
            programs,
        })
    }

    /// Looks the programs up again, and follows files that have taken the place of others. A file
    /// of another block stays that block's, and [`Applied::refused`] says so. Returns none if
    /// nothing has changed.
    ///
    /// # Errors
    /// The kernel's error; the former files count.
    pub fn follow_programs(&mut self) -> Result<Option<Applied>, IpsecError> {
        let now = &self.now;
        let (blocks, identifier) = (&now.tables.applications, self.monitor.identifier());
        let former = &now.programs;
        let programs = former.look_up(blocks, Occasion::Follow, identifier)?;
        if programs.are_those_of(&now.programs) {
            return Ok(None);
        }
        let next = InForce {
            tables: now.tables.clone(),
            signatures: now.signatures.clone(),
            applications: now.applications.clone(),
            wanted: now.wanted.clone(),
            programs,
        };
        self.put_in_force(next).map(Some)
    }

    fn put_in_force(&mut self, next: InForce) -> Result<Applied, IpsecError> {
        let mut applied = Applied::default();
        let mut programs = Vec::with_capacity(next.applications.len());
        for rules in &next.tables.applications {
            let mut ids = Vec::new();
            for name in &rules.programs {
                let found = next.programs.ids(name);
                if found.is_empty() {
                    applied.missing.push(name.clone());
                }
                ids.extend(found);
            }
            programs.push(ids);
        }
        let entered = self.spd.enter(&next.wanted);
        let filled = entered.and_then(|changes| {
            self.monitor.fill(&next.applications, &programs)?;
            Ok(changes)
        });
        match filled {
            Ok(changes) => applied.spd_changes = changes,
            Err(error) => {
                if let Err(error) = self.put_back() {
                    tracing::error!(%error, "the SPD keeps entries of tables that are not in force");
                }
                return Err(error);
            }
        }
        self.now = next;
        applied.refused = self.now.programs.refused().to_vec();
        for refused in &applied.refused {
            tracing::warn!(program = %refused.program, "{refused}");
        }
        // The tables are in force, whatever becomes of entries that nothing selects any more.
        match self.spd.retain(&self.now.wanted) {
            Ok(changes) => applied.spd_changes += changes,
            Err(error) => tracing::error!(%error, "the SPD keeps entries of the former tables"),
        }
        Ok(applied)
    }

    fn wanted_with(&self, held: &BTreeSet<(Class, IpAddr)>) -> Entries {
        spd::wanted(&self.now.tables, &self.now.applications, held, self.mask)
    }

    /// Lists the sockets of governed programs, and adopts those that are older than the policy; see
    /// [`Monitor::adopt`]. To be called when tables or programs have changed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn adopt(&self) -> Result<Vec<LiveSocket>, IpsecError> {
        self.monitor.adopt()
    }

    /// Holds a peer to a class that it has negotiated: where the policy says optional, plaintext no
    /// longer passes.
    ///
    /// # Errors
    /// [`IpsecError::HeldFull`], or the kernel's error; the peer is not held then.
    pub fn hold(&mut self, class: Class, peer: IpAddr) -> Result<(), IpsecError> {
        let mut held = self.held.clone();
        held.insert((class, peer));
        let wanted = self.wanted_with(&held);
        self.spd.enter(&wanted)?;
        self.monitor.hold(class, peer)?;
        (self.held, self.now.wanted) = (held, wanted);
        Ok(())
    }

    /// No longer holds a peer to a class. Returns whether it was held.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn let_go(&mut self, class: Class, peer: IpAddr) -> Result<bool, IpsecError> {
        let was_held = self.monitor.let_go(class, peer)?;
        self.held.remove(&(class, peer));
        self.now.wanted = self.wanted_with(&self.held);
        self.spd.retain(&self.now.wanted)?;
        Ok(was_held)
    }

    /// Puts back what others have changed of our entries of the SPD. Returns the number of changes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn put_back(&mut self) -> Result<usize, IpsecError> {
        Ok(self.spd.enter(&self.now.wanted)? + self.spd.retain(&self.now.wanted)?)
    }

    /// SAs of a class have come: sockets that wait for one look again. Without this, a socket that
    /// has waited keeps the route through the queue, which is slow.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn announce_sa(&mut self, class: Class) -> Result<(), IpsecError> {
        let bits = self.mask.class_bits();
        for level in [Level::Mandatory, Level::Optional] {
            let mark = self.mask.class_mark(class, level);
            let of_class = |selected: &spd::Selected| {
                (selected.mark, selected.mark_bits) == (mark, bits)
                    && selected.destination.prefix_len() == 0
            };
            for (selected, entry) in self.now.wanted.iter().filter(|(one, _)| of_class(one)) {
                self.spd.put(selected, entry)?;
            }
        }
        tracing::debug!("SAs of the request id {:#x} have come", reqid(class));
        Ok(())
    }

    /// The entries that the SPD should have.
    pub fn wanted(&self) -> &Entries {
        &self.now.wanted
    }

    /// Our entries of the SPD as they are.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn spd_entries(&mut self) -> Result<Entries, IpsecError> {
        self.spd.entries()
    }

    /// The monitor.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Sysctls that somebody else has given another value.
    ///
    /// # Errors
    /// [`IpsecError::Sysctl`].
    pub fn changed_sysctls(&self) -> Result<Vec<&'static str>, IpsecError> {
        self.sysctls
            .as_ref()
            .map_or(Ok(Vec::new()), Sysctls::changed)
    }

    /// What the monitor has counted.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self) -> Result<Counters, IpsecError> {
        self.monitor.counters()
    }

    /// Ends protection: the monitor, our entries of the SPD, the sysctls. Then nothing is governed.
    ///
    /// # Errors
    /// The first that failed; the rest may still be in force.
    pub fn close(mut self) -> Result<(), IpsecError> {
        self.monitor.close()?;
        self.spd.retain(&Entries::new())?;
        self.sysctls.map_or(Ok(()), Sysctls::restore)
    }
}
