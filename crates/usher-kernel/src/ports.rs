//! Who may bind the TCP ports that policy gives to somebody (bpf/ports).
//!
//! Nothing is pinned: ports are reserved as long as a [`Ports`] is open. Loading needs privileges,
//! changing what is reserved none (kernel 5.19).

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{MapCore, MapHandle, ObjectBuilder};
use usher_proto::address_bytes;

use crate::admission::layout::{Plain, plain};
use crate::admission::programs::{clone, print_through_tracing};
use crate::admission::table::{self, Insertion, Table};
use crate::{KernelError, attach};

/// The compiled bpf/ports.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ports.bpf.o"));

const PROGRAMS: [&str; 4] = ["bind4", "bind6", "bound4", "bound6"];

/// A port that not everybody may bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// At this address, and so not at all addresses either; none: at every address.
    pub address: Option<IpAddr>,
    /// Which.
    pub port: u16,
    /// The user, in the initial user namespace, who may; root may as well. 0: root alone.
    pub uid: u32,
}

/// bpf/include/usher_ports.h
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Port {
    uid: u32,
    all: u32,
}
plain!(Port, 8);

/// bpf/include/usher_ports.h
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Bound {
    address: [u8; 16],
    port: u32,
}
plain!(Bound, 20);

/// Ports that are reserved.
///
/// Dropping it ends that.
pub struct Ports {
    ports: Mutex<Mirrored<u32, Port>>,
    addresses: Mutex<Mirrored<Bound, u32>>,
    refused: OwnedFd,
    _links: Vec<OwnedFd>,
}

/// Why not all ports are reserved.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// There is no room for all of them.
    #[error("the table of reserved ports is full")]
    Full,
    /// What the kernel says.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl fmt::Debug for Ports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ports").finish_non_exhaustive()
    }
}

impl Ports {
    /// Loads the programs and attaches them to `cgroup` (the path of its folder): they hold for
    /// processes in it and below, in the caller's network namespace. Nothing is reserved yet.
    ///
    /// # Errors
    /// What the kernel says; nothing is attached then.
    pub fn open(cgroup: &Path) -> Result<Self, KernelError> {
        print_through_tracing();
        let mut open = ObjectBuilder::default()
            .name("usher_ports")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(KernelError::bpf("reading the programs for ports"))?;
        attach::set_own_network(&mut open)?;
        let object = open
            .load()
            .map_err(KernelError::bpf("loading the programs for ports"))?;
        let map = |name: &'static str| -> Result<OwnedFd, KernelError> {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(KernelError::MissingPart(name))?;
            let handle = MapHandle::try_from(&map).map_err(KernelError::bpf("keeping a table"))?;
            clone(&handle)
        };
        let links = attach::to_cgroup(&object, &PROGRAMS, cgroup)?;
        // libbpf remembers it for the counter: a confined process cannot read it any longer.
        libbpf_rs::num_possible_cpus().map_err(KernelError::bpf("counting the processors"))?;
        Ok(Self {
            ports: Mutex::new(Mirrored::new(Table::new("ports", map("ports")?))),
            addresses: Mutex::new(Mirrored::new(Table::new("addresses", map("addresses")?))),
            refused: map("refused")?,
            _links: links,
        })
    }

    /// Has these ports reserved and no others. What is bound stays so.
    ///
    /// # Errors
    /// [`PortsError`]; some are reserved then, and former ones may be as well.
    pub fn reserve(&self, reserved: impl IntoIterator<Item = Reserved>) -> Result<(), PortsError> {
        let mut ports: BTreeMap<u32, Port> = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for Reserved { address, port, uid } in reserved {
            let port = u32::from(port);
            let all = u32::from(address.is_none());
            let entry = ports.entry(port).or_insert(Port { uid, all });
            entry.all |= all;
            // Who may take it from two others is root alone.
            if entry.uid != uid {
                entry.uid = 0;
            }
            if let Some(address) = address {
                let address = address_bytes(address);
                addresses.insert(Bound { address, port }, uid);
            }
        }
        // An address counts only beside its port: entered before it, taken away after it.
        let mut of_addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Those that find no room are not reserved, and the others are.
        let addresses_entered = of_addresses.enter_or_exchange(&addresses);
        let mut of_ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let ports_entered = of_ports.enter_or_exchange(&ports);
        of_ports.retain(&ports)?;
        of_addresses.retain(&addresses)?;
        addresses_entered.and(ports_entered)
    }

    /// How often somebody was refused a port.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refused(&self) -> Result<u64, KernelError> {
        Ok(table::per_cpu::<u64>(self.refused.as_fd(), 0)?
            .as_slice()
            .iter()
            .sum())
    }
}

/// A table and what is in it: a confined process cannot ask the kernel for all entries.
struct Mirrored<K, V> {
    table: Table<K, V>,
    present: BTreeMap<K, V>,
}

impl<K: Plain + Ord + Copy, V: Plain + PartialEq + Copy> Mirrored<K, V> {
    fn new(table: Table<K, V>) -> Self {
        Self {
            table,
            present: BTreeMap::new(),
        }
    }

    fn enter(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), PortsError> {
        for (key, value) in wanted {
            if self.present.get(key) != Some(value) {
                match self.table.put(key, value)? {
                    Insertion::Full => return Err(PortsError::Full),
                    Insertion::Done | Insertion::Exists => self.present.insert(*key, *value),
                };
            }
        }
        Ok(())
    }

    /// Enters before anything goes; where there is no room for both, what goes makes some.
    fn enter_or_exchange(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), PortsError> {
        match self.enter(wanted) {
            Err(PortsError::Full) => {
                self.retain(wanted)?;
                self.enter(wanted)
            }
            entered => entered,
        }
    }

    fn retain(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        let former = self.present.keys().filter(|key| !wanted.contains_key(key));
        for key in former.copied().collect::<Vec<_>>() {
            self.table.remove(&key)?;
            self.present.remove(&key);
        }
        Ok(())
    }
}
