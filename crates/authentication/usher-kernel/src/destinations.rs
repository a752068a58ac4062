//! Restricts where the processes of services may connect (bpf/authentication/destinations).
//!
//! Everything is pinned: refusals stay in force while there is no keeper, and after its death.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use parking_lot::Mutex;
use usher_bpf::{Code, Pins, Table, code};

use crate::KernelError;
use crate::cgroup::{self, Group};
pub use crate::shared::destinations::DestinationCounters as Counters;
use crate::shared::destinations::{IPV4, IPV6, PORTS, Prefix};
use crate::shared::key;

/// bpf/authentication/destinations.
pub(crate) static CODE: Code = code!("usher_connect", "destinations");

const PROGRAMS: [&str; 5] = ["connects4", "connects6", "sends4", "sends6", "makes"];

/// The bits of [`Prefix::kind`].
const KIND_BITS: u32 = u32::BITS;

impl Prefix {
    /// `length` is that of the prefix of the address or port, in bits.
    fn new(kind: u32, first: &[u8], length: u32) -> Self {
        let mut bytes = [0; 16];
        bytes[..first.len()].copy_from_slice(first);
        Self {
            length: KIND_BITS + length,
            kind,
            bytes,
        }
    }
}

/// The destinations of a service's processes. An IPv4 network includes the IPv4-mapped addresses of
/// IPv6; an IPv6 network includes none of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permitted {
    /// The first address of a network, the length of its prefix in bits, and the index into `ports`. If
    /// two networks contain an address, the longer prefix counts.
    pub networks: Vec<(IpAddr, u32, usize)>,
    /// Sets of ports: the first of those that share a prefix, and its length in bits.
    pub ports: Vec<Vec<(u16, u32)>>,
}

/// The restricted services of a policy, with the tables that differ from those in force.
#[derive(Debug)]
pub struct Prepared {
    services: BTreeMap<u32, Permitted>,
    tables: BTreeMap<u32, OwnedFd>,
}

/// The restrictions of services' destinations.
///
/// Dropping it leaves them in force.
#[derive(Debug)]
pub struct Destinations {
    governed: Table<u64, u32>,
    /// The kernel takes the descriptor of a table, and returns its number.
    permitted: Table<u32, u32>,
    counters: usher_bpf::Counters<Counters>,
    /// The tables that this process has put in force, so that only changed ones are replaced: the kernel
    /// takes some ten milliseconds for each.
    in_force: Mutex<BTreeMap<u32, Permitted>>,
    _pins: Pins,
}

impl Destinations {
    /// Loads the programs and attaches them to `cgroup` (the path of its folder): they hold for
    /// processes whose sockets were made in it and below. Takes up what an earlier keeper pinned in
    /// `pins`, a folder of a bpffs that is made if need be.
    ///
    /// # Errors
    /// The kernel's error; objects pinned by then stay in force.
    pub fn open(pins: &Path, cgroup: &Path) -> Result<Self, KernelError> {
        let pins = Pins::lock(pins)?;
        let object = CODE.open()?.pin(&pins, None)?.load()?;
        for program in PROGRAMS {
            object.keep_at_cgroup(program, &pins, cgroup)?;
        }
        let destinations = Self {
            governed: object.table("governed")?,
            permitted: object.table("permitted")?,
            counters: object.counters("refused")?,
            in_force: Mutex::default(),
            _pins: pins,
        };
        destinations.forget_gone()?;
        Ok(destinations)
    }

    /// Assigns the processes of a cgroup, and of those right below it, to a service.
    ///
    /// # Errors
    /// [`KernelError::Full`], or the kernel's error; they are then not assigned, and not restricted.
    pub fn govern(&self, group: &Group, service: u32) -> Result<(), KernelError> {
        let id = group.id()?;
        // Never rewrite an element: while it is replaced, a call that has just found it may read another
        // group's element.
        if self.governed.get(&id)? == Some(service) {
            return Ok(());
        }
        self.governed.set(&id, &service)
    }

    /// Forgets a group that has been removed, by its number.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn forget(&self, removed: u64) -> Result<(), KernelError> {
        self.governed.remove(&removed).map(drop)
    }

    /// Makes the tables of services, by the services' numbers. Nothing is in force yet.
    pub fn prepare(
        &self,
        services: impl IntoIterator<Item = (u32, Permitted)>,
    ) -> Result<Prepared, KernelError> {
        let services: BTreeMap<u32, Permitted> = services.into_iter().collect();
        let in_force = self.in_force.lock();
        let tables = services
            .iter()
            .filter(|(service, permitted)| in_force.get(service) != Some(permitted))
            .map(|(service, permitted)| Ok((*service, table(permitted)?)));
        Ok(Prepared {
            tables: tables.collect::<Result<_, KernelError>>()?,
            services,
        })
    }

    /// Restricts these services, each switching at one moment from its former table to its new one; all
    /// others stay as they were.
    ///
    /// # Errors
    /// The kernel's error, also when there is no room for all; some of these are then as before.
    pub fn apply(&self, prepared: &Prepared) -> Result<(), KernelError> {
        let mut in_force = self.in_force.lock();
        for (service, table) in &prepared.tables {
            self.permitted.set(service, &key(table.as_fd()))?;
            in_force.insert(*service, prepared.services[service].clone());
        }
        Ok(())
    }

    /// Lifts the restrictions of all other services.
    ///
    /// # Errors
    /// The kernel's error; others may still be restricted.
    pub fn retain(&self, prepared: &Prepared) -> Result<(), KernelError> {
        let mut in_force = self.in_force.lock();
        for (service, _) in self.permitted.entries()? {
            if !prepared.services.contains_key(&service) {
                in_force.remove(&service);
                self.permitted.remove(&service)?;
            }
        }
        Ok(())
    }

    /// The programs' counters since the tables were made.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        self.counters.read()
    }

    /// Forgets cgroups that are gone, which have no processes any more.
    fn forget_gone(&self) -> Result<(), KernelError> {
        for (group, _) in self.governed.entries()? {
            if !cgroup::exists(group)? {
                self.governed.remove(&group)?;
            }
        }
        Ok(())
    }
}

/// A frozen table with these entries.
fn table(permitted: &Permitted) -> Result<OwnedFd, KernelError> {
    let ports = permitted.ports.iter().map(Vec::len).sum::<usize>();
    let size = u32::try_from(permitted.networks.len() + ports).unwrap_or(u32::MAX);
    let table = Table::<Prefix, u32>::of_prefixes("usher_prefixes", size.max(1))?;
    let number = |ports: usize| PORTS.saturating_add(u32::try_from(ports).unwrap_or(u32::MAX));
    for &(first, length, ports) in &permitted.networks {
        let prefix = match first {
            IpAddr::V4(first) => Prefix::new(IPV4, &first.octets(), length),
            IpAddr::V6(first) => Prefix::new(IPV6, &first.octets(), length),
        };
        table.set(&prefix, &number(ports))?;
    }
    for (ports, prefixes) in permitted.ports.iter().enumerate() {
        for &(first, length) in prefixes {
            let prefix = Prefix::new(number(ports), &first.to_be_bytes(), length);
            table.set(&prefix, &1)?;
        }
    }
    table.freeze()
}
