//! Monitor, SPD and sysctls together.

mod apply;
mod held;
mod sockets;

pub use sockets::Visit;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use usher_bpf::{KernelError, Lack, Objects};
use usher_protection::{Class, ProgramName, Tables};

use crate::error::IpsecError;
use crate::live::Unheld;
use crate::marks::{MarkMask, reqid};
use crate::monitor::{Counters, Monitor, Settings};
use crate::netlink::Ours;
use crate::plan::{Application, Signatures};
use crate::programs::{Programs, Refused};
use crate::sad::{Sad, Sas};
use crate::services::{Demands, ServiceCounters, Services};
use crate::spd::{self, Entries, Spd};
use crate::stale::Stale;
use crate::sysctls::Sysctls;

/// Limit of this host's own addresses that get entries in the SPD.
const MOST_OWN: usize = 256;

/// The outcome of putting tables in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Programs without a file that counts: their blocks wait for one.
    pub missing: Vec<ProgramName>,
    /// Files that do not count, although a program's name leads to them.
    pub refused: Vec<Refused>,
    /// Files of programs that count although this process cannot read them. If one is a script, its
    /// block governs nothing. Empty where the kernel tells scripts apart.
    pub unread: Vec<PathBuf>,
    /// The number of entries of the SPD that were added, replaced or removed.
    pub spd_changes: usize,
}

/// Protection on this host.
///
/// Dropping it leaves the SPD and the sysctls, and what is pinned, in force.
#[derive(Debug)]
pub struct Ipsec {
    monitor: Monitor,
    /// The programs that drop plaintext of services, or the reason that this kernel does not accept
    /// them.
    services: Result<Services, KernelError>,
    spd: Spd,
    sad: Sad,
    sysctls: Option<Sysctls>,
    mask: MarkMask,
    held: BTreeSet<(Class, IpAddr)>,
    own: BTreeSet<Ipv6Addr>,
    now: InForce,
    /// Sockets that were adopted before a policy came in force, and not yet counted.
    prepared: usize,
    unheld: Vec<Unheld>,
}

/// One policy, and everything that follows from it.
#[derive(Debug, Default)]
struct InForce {
    tables: Tables,
    signatures: Signatures,
    applications: Vec<Application>,
    programs: Programs,
    demands: Demands,
    /// Former rules by which sockets may still be marked.
    stale: Stale,
    wanted: Entries,
    /// Whether this process has put it in force. Otherwise an earlier one may have, and its SPD entries
    /// stay.
    is_own: bool,
}

impl Ipsec {
    /// Tries whether this kernel accepts the monitor.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe() -> Result<(), Lack> {
        Monitor::probe()
    }

    /// Tries whether this kernel can list sockets, so that those older than the policy are governed.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe_listing() -> Result<(), Lack> {
        Monitor::probe_listing()
    }

    /// Tries whether this kernel accepts the programs that drop plaintext of protected services.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe_services() -> Result<(), Lack> {
        Services::probe()
    }

    /// Loads and attaches the monitor, and sets the sysctls. Nothing is governed yet, unless an earlier
    /// process left it pinned; the peers that it held are held.
    ///
    /// # Errors
    /// The first of them that failed; the others may be in force.
    pub fn open(settings: &Settings) -> Result<Self, IpsecError> {
        let mut spd = Spd::open(settings.mask)?;
        let stale = Stale::left(spd.entries()?, settings.mask);
        let sysctls = settings.sysctls.as_deref().map(Sysctls::set).transpose()?;
        let monitor = Monitor::open(settings)?;
        let services = Services::open(monitor.pins());
        let signatures = Signatures::left(monitor.signatures()?, settings.mask);
        Ok(Self {
            spd,
            sysctls,
            sad: Sad::open()?,
            held: monitor.held()?,
            own: BTreeSet::from([Ipv6Addr::LOCALHOST]),
            services,
            monitor,
            mask: settings.mask,
            prepared: 0,
            unheld: Vec::new(),
            now: InForce {
                signatures,
                stale,
                ..InForce::default()
            },
        })
    }

    /// Sets this host's own IPv6 addresses. Governed programs reach them without protection, because the
    /// kernel protects nothing that stays on the host. `::1` is always one, and IPv4 needs none
    /// (`net.ipv4.conf.lo.disable_xfrm`). Of more than 256, the first ones count.
    ///
    /// # Errors
    /// The kernel's error; some of the entries may have changed.
    pub fn set_own_addresses(&mut self, own: BTreeSet<Ipv6Addr>) -> Result<(), IpsecError> {
        let number = own.len();
        let loopback = [Ipv6Addr::LOCALHOST].into_iter();
        let own: BTreeSet<_> = loopback.chain(own.into_iter().take(MOST_OWN)).collect();
        if own == self.own {
            return Ok(());
        }
        if number > MOST_OWN {
            tracing::warn!(
                addresses = number,
                "this host has many addresses of IPv6: where protection is mandatory, its own \
                 programs reach only the first {MOST_OWN}"
            );
        }
        let former = std::mem::replace(&mut self.own, own);
        if self.now.is_own {
            self.now.wanted = self.wanted_now();
            // The next call tries again.
            self.put_back().inspect_err(|_| self.own = former)?;
        }
        Ok(())
    }

    fn wanted_now(&self) -> Entries {
        let InForce {
            tables,
            applications,
            ..
        } = &self.now;
        let mut wanted = spd::wanted(tables, applications, &self.held, &self.own, self.mask);
        wanted.extend(self.now.stale.entries());
        wanted
    }

    /// The SAs of the classes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn sas(&mut self) -> Result<Sas, IpsecError> {
        self.sad.list()
    }

    /// Puts back what others have changed of our entries of the SPD. Returns the number of changes.
    /// Before the first tables it changes nothing: those of an earlier process may be in force, with
    /// its entries.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn put_back(&mut self) -> Result<usize, IpsecError> {
        if !self.now.is_own {
            return Ok(0);
        }
        self.spd.put_right(&self.now.wanted)
    }

    /// Announces that SAs of a class with a peer have come: packets that wait for one leave at once, and
    /// sockets that wait look again, whichever entry they wait for. Without this, a packet waits until the
    /// kernel looks by itself, less and less often, and a socket that has waited keeps the route through the
    /// queue, which is slow.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn announce_sa(&mut self, class: Class, peer: IpAddr) -> Result<(), IpsecError> {
        for (selected, entry) in spd::asking(&self.now.wanted, class, peer) {
            self.spd.put(&selected, &entry)?;
        }
        tracing::debug!(%peer, "SAs of the request id {:#x} have come", reqid(class));
        Ok(())
    }

    /// Tells this process's changes of the SPD from those of others, for
    /// [`Watcher::take_of_others`](crate::Watcher::take_of_others).
    #[must_use]
    pub fn ours(&self) -> Ours {
        self.spd.ours()
    }

    /// The bits of socket marks that are ours.
    #[must_use]
    pub fn mask(&self) -> MarkMask {
        self.mask
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

    /// The objects that the guard is to keep from other processes; see [`Monitor::objects`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn objects(&self) -> Result<Objects, IpsecError> {
        let mut objects = self.monitor.objects()?;
        if let Ok(services) = &self.services {
            services.collect(&mut objects)?;
        }
        Ok(objects)
    }

    /// The reason that plaintext of protected services can pass while somebody has removed entries of
    /// the SPD. None: it cannot pass, or no protection of services is demanded.
    pub fn unkept_services(&self) -> Option<&KernelError> {
        let reason = self.services.as_ref().err()?;
        (!self.now.demands.is_empty()).then_some(reason)
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

    /// The counters of the monitor.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self) -> Result<Counters, IpsecError> {
        self.monitor.counters()
    }

    /// The counters of the programs that drop plaintext of protected services; zeros if the kernel does
    /// not accept them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn service_counters(&self) -> Result<ServiceCounters, IpsecError> {
        let services = self.services.as_ref().ok();
        services.map_or(Ok(ServiceCounters::default()), Services::counters)
    }

    /// Attaches the programs that keep plaintext of protected services from passing, if somebody has
    /// detached them. Returns whether there are new links, for the guard.
    ///
    /// # Errors
    /// The kernel's error; a program may not be attached.
    pub fn mend_services(&self) -> Result<bool, IpsecError> {
        let services = self.services.as_ref().ok();
        let mend = |services: &Services| services.mend(self.monitor.pins());
        Ok(services.map_or(Ok(false), mend)?)
    }

    /// Ends protection: our entries of the SPD, the monitor, the sysctls. Then nothing is governed.
    /// Until the monitor ends, it drops traffic that the SPD no longer protects.
    ///
    /// # Errors
    /// The first that failed; the rest may still be in force.
    pub fn close(mut self) -> Result<(), IpsecError> {
        self.spd.clear()?;
        self.monitor.close()?;
        self.sysctls.map_or(Ok(()), Sysctls::restore)
    }
}
