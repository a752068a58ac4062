//! Where the processes of services may connect (bpf/destinations).
//!
//! All is pinned: what is refused stays refused while no keeper is there, and after its death.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapHandle, MapType, ObjectBuilder, libbpf_sys};

use crate::admission::layout::plain;
use crate::admission::programs::{clone, file_error, lock, print_through_tracing};
use crate::admission::table::{self, Insertion, Table};
use crate::cgroup::Group;
use crate::{KernelError, attach, cgroup};

/// The compiled bpf/destinations.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/destinations.bpf.o"));

const PROGRAMS: [&str; 5] = ["connects4", "connects6", "sends4", "sends6", "makes"];

const IPV4: u32 = 4;
const IPV6: u32 = 6;
/// The number of the first set of ports.
const PORTS: u32 = 16;

/// The bits of [`Prefix::kind`].
const KIND_BITS: u32 = u32::BITS;

/// bpf/include/usher_destinations.h
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Prefix {
    length: u32,
    kind: u32,
    bytes: [u8; 16],
}
plain!(Prefix, 24);

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

/// What a service's processes may connect to. An IPv4 network has the IPv4-mapped addresses of
/// IPv6 as well; an IPv6 network has none of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permitted {
    /// The first address of a network, the length of its prefix in bits, and which of `ports`. Of
    /// two networks that an address has, the longer prefix counts.
    pub networks: Vec<(IpAddr, u32, usize)>,
    /// Sets of ports: the first of those that share a prefix, and its length in bits.
    pub ports: Vec<Vec<(u16, u32)>>,
}

/// The restricted services of a policy, with the tables of those that are not in force so already.
#[derive(Debug)]
pub struct Prepared {
    services: BTreeMap<u32, Permitted>,
    tables: BTreeMap<u32, OwnedFd>,
}

/// Where the processes of services may connect.
///
/// Dropping it leaves that in force.
#[derive(Debug)]
pub struct Destinations {
    governed: Table<u64, u32>,
    /// The kernel takes the descriptor of a table, and gives its number.
    permitted: Table<u32, u32>,
    refused: OwnedFd,
    /// What this process has put in force, so that only what differs is put in force anew: the
    /// kernel takes some ten milliseconds for each.
    in_force: Mutex<BTreeMap<u32, Permitted>>,
    _lock: File,
}

/// Why processes are not governed.
#[derive(Debug, thiserror::Error)]
pub enum GovernError {
    /// There is no room for them.
    #[error("the table of governed processes is full")]
    Full,
    /// What the kernel says.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl Destinations {
    /// Loads the programs and attaches them to `cgroup` (the path of its folder): they hold for
    /// processes whose sockets were made in it and below. Takes up what an earlier keeper pinned in
    /// `pins`, a folder of a bpffs that is made if need be.
    ///
    /// # Errors
    /// What the kernel says; what was pinned by then stays in force.
    pub fn open(pins: &Path, cgroup: &Path) -> Result<Self, KernelError> {
        print_through_tracing();
        let lock = lock(pins)?;
        let mut open = ObjectBuilder::default()
            .name("usher_connect")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(KernelError::bpf("reading the programs for destinations"))?;
        for mut map in open.maps_mut() {
            // Takes the map that is pinned there, or makes and pins it.
            let path = pins.join(map.name());
            map.set_pin_path(&path)
                .map_err(KernelError::bpf("naming a pin"))?;
        }
        let object = open
            .load()
            .map_err(KernelError::bpf("loading the programs for destinations"))?;
        let map = |name: &'static str| -> Result<OwnedFd, KernelError> {
            let map = object.maps().find(|map| map.name() == name);
            clone(&map.ok_or(KernelError::MissingPart(name))?)
        };
        let destinations = Self {
            governed: Table::new("governed", map("governed")?),
            permitted: Table::new("permitted", map("permitted")?),
            refused: map("refused")?,
            in_force: Mutex::default(),
            _lock: lock,
        };
        for program in PROGRAMS {
            attach::pinned(&object, program, pins, cgroup)?;
        }
        destinations.forget_gone()?;
        Ok(destinations)
    }

    /// Has the processes of a cgroup, and of those right below it, be a service's.
    ///
    /// # Errors
    /// [`GovernError`]; they are nobody's then, and not restricted.
    pub fn govern(&self, group: &Group, service: u32) -> Result<(), GovernError> {
        let path = group.path();
        let folder = File::open(path).map_err(file_error("opening", path))?;
        let id = folder
            .metadata()
            .map_err(file_error("reading the properties of", path))?
            .ino();
        // Not written again: while an element is replaced, a call that has just found it may read
        // another group's in its place.
        if self.governed.get(&id)? == Some(service) {
            return Ok(());
        }
        match self.governed.put(&id, &service)? {
            Insertion::Full => Err(GovernError::Full),
            Insertion::Done | Insertion::Exists => Ok(()),
        }
    }

    /// Makes the tables of services, by the services' numbers. Nothing is in force yet.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn prepare(
        &self,
        services: impl IntoIterator<Item = (u32, Permitted)>,
    ) -> Result<Prepared, KernelError> {
        let services: BTreeMap<u32, Permitted> = services.into_iter().collect();
        let in_force = self.in_force();
        let tables = services
            .iter()
            .filter(|(service, permitted)| in_force.get(service) != Some(permitted))
            .map(|(service, permitted)| Ok((*service, table(permitted)?)));
        Ok(Prepared {
            tables: tables.collect::<Result<_, KernelError>>()?,
            services,
        })
    }

    /// Has these services restricted, each at one moment from its former table to this one, and all
    /// others as they were.
    ///
    /// # Errors
    /// What the kernel says, also when there is no room for all; some of these are as before then.
    pub fn enter(&self, prepared: &Prepared) -> Result<(), KernelError> {
        let mut in_force = self.in_force();
        for (service, table) in &prepared.tables {
            let table = table.as_raw_fd().cast_unsigned();
            self.permitted.set(service, &table)?;
            in_force.insert(*service, prepared.services[service].clone());
        }
        Ok(())
    }

    /// Has no other services restricted than these.
    ///
    /// # Errors
    /// What the kernel says; others may be restricted still.
    pub fn retain(&self, prepared: &Prepared) -> Result<(), KernelError> {
        let mut in_force = self.in_force();
        for (service, _) in self.permitted.entries()? {
            if !prepared.services.contains_key(&service) {
                in_force.remove(&service);
                self.permitted.remove(&service)?;
            }
        }
        Ok(())
    }

    fn in_force(&self) -> MutexGuard<'_, BTreeMap<u32, Permitted>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many calls were refused.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refused(&self) -> Result<u64, KernelError> {
        Ok(table::per_cpu::<u64>(self.refused.as_fd(), 0)?
            .as_slice()
            .iter()
            .sum())
    }

    /// Cgroups that are gone have no processes any more.
    fn forget_gone(&self) -> Result<(), KernelError> {
        for (group, _) in self.governed.entries()? {
            if !cgroup::exists(group)? {
                self.governed.remove(&group)?;
            }
        }
        Ok(())
    }
}

/// A table with these entries, which nobody can change.
fn table(permitted: &Permitted) -> Result<OwnedFd, KernelError> {
    let failed = KernelError::bpf("making a table of destinations");
    let ports = permitted.ports.iter().map(Vec::len).sum::<usize>();
    let size = u32::try_from(permitted.networks.len() + ports).unwrap_or(u32::MAX);
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
        ..Default::default()
    };
    let map = MapHandle::create(
        MapType::LpmTrie,
        Some("usher_prefixes"),
        size_of::<Prefix>() as u32,
        size_of::<u32>() as u32,
        size.max(1),
        &options,
    )
    .map_err(failed)?;
    let table = Table::<Prefix, u32>::new("destinations", clone(&map)?);
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
    map.freeze().map_err(KernelError::bpf("freezing a table"))?;
    clone(&map)
}
