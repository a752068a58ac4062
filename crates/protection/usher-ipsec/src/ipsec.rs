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
use crate::programs::Programs;
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
    /// Programs without a file: their blocks wait for one.
    pub missing: Vec<ProgramName>,
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
    programs: Programs,
    signatures: Signatures,
    held: BTreeSet<(Class, IpAddr)>,
    tables: Tables,
    applications: Vec<Application>,
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
            programs: Programs::default(),
            signatures: Signatures::default(),
            held: BTreeSet::new(),
            tables: Tables::default(),
            applications: Vec::new(),
            wanted: Entries::new(),
        })
    }

    /// Puts tables in force in place of the former ones. New entries of the SPD come before the
    /// monitor's table, which is replaced at once, and former ones go after it.
    ///
    /// # Errors
    /// [`IpsecError::Signatures`] and [`IpsecError::Items`] before anything is changed; with other
    /// errors the former tables may be in force, with more entries in the SPD.
    pub fn apply(&mut self, tables: &Tables) -> Result<Applied, IpsecError> {
        let applications = self.signatures.plan(tables, self.mask)?;
        let names = tables.applications.iter().flat_map(|rules| &rules.programs);
        self.programs.look_up(names, self.monitor.identifier())?;
        self.tables = tables.clone();
        self.applications = applications;
        self.put_in_force()
    }

    /// Looks the programs up again, and follows files that have taken the place of others. Returns
    /// none if nothing has changed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn follow_programs(&mut self) -> Result<Option<Applied>, IpsecError> {
        let names = self.tables.applications.iter();
        let names = names.flat_map(|rules| &rules.programs);
        let changed = self.programs.look_up(names, self.monitor.identifier())?;
        changed.then(|| self.put_in_force()).transpose()
    }

    fn put_in_force(&mut self) -> Result<Applied, IpsecError> {
        let mut applied = Applied::default();
        let mut programs = Vec::with_capacity(self.applications.len());
        for rules in &self.tables.applications {
            let mut ids = Vec::new();
            for name in &rules.programs {
                let found = self.programs.ids(name);
                if found.is_empty() {
                    applied.missing.push(name.clone());
                }
                ids.extend(found);
            }
            programs.push(ids);
        }
        self.wanted = self.wanted_now();
        applied.spd_changes = self.spd.enter(&self.wanted)?;
        self.monitor.fill(&self.applications, &programs)?;
        applied.spd_changes += self.spd.retain(&self.wanted)?;
        Ok(applied)
    }

    fn wanted_now(&self) -> Entries {
        spd::wanted(&self.tables, &self.applications, &self.held, self.mask)
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
    /// [`IpsecError::HeldFull`], or the kernel's error.
    pub fn hold(&mut self, class: Class, peer: IpAddr) -> Result<(), IpsecError> {
        self.held.insert((class, peer));
        self.wanted = self.wanted_now();
        self.spd.enter(&self.wanted)?;
        let held = self.monitor.hold(class, peer);
        if held.is_err() {
            self.held.remove(&(class, peer));
        }
        held
    }

    /// No longer holds a peer to a class. Returns whether it was held.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn let_go(&mut self, class: Class, peer: IpAddr) -> Result<bool, IpsecError> {
        self.held.remove(&(class, peer));
        let was_held = self.monitor.let_go(class, peer)?;
        self.wanted = self.wanted_now();
        self.spd.retain(&self.wanted)?;
        Ok(was_held)
    }

    /// Puts back what others have changed of our entries of the SPD. Returns the number of changes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn put_back(&mut self) -> Result<usize, IpsecError> {
        Ok(self.spd.enter(&self.wanted)? + self.spd.retain(&self.wanted)?)
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
            for (selected, entry) in self.wanted.iter().filter(|(one, _)| of_class(one)) {
                self.spd.put(selected, entry)?;
            }
        }
        tracing::debug!("SAs of the request id {:#x} have come", reqid(class));
        Ok(())
    }

    /// The entries that the SPD should have.
    pub fn wanted(&self) -> &Entries {
        &self.wanted
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
