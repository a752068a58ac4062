//! Reserves TCP ports for the accounts that the policy names (bpf/authentication/ports).
//!
//! Nothing is pinned: ports are reserved while a [`Ports`] is open. Loading needs privileges, changing
//! the reservations needs none (kernel 5.19).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use parking_lot::Mutex;
use usher_base::address_bytes;
use usher_bpf::{Code, Mirrored, Objects, code};

use crate::KernelError;
pub use crate::shared::ports::PortCounters as Counters;
use crate::shared::ports::{Bound, Port};

/// bpf/authentication/ports.
pub(crate) static CODE: Code = code!("usher_ports", "ports");

const PROGRAMS: [&str; 4] = ["bind4", "bind6", "bound4", "bound6"];

/// A reserved port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// At this address, and therefore also at all addresses together; none: at every address.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// The permitted user, in the initial user namespace; root may bind it as well. 0: only root.
    pub uid: u32,
}

/// Reserved ports.
///
/// Dropping it frees them.
#[derive(Debug)]
pub struct Ports {
    ports: Mutex<Mirrored<u32, Port>>,
    addresses: Mutex<Mirrored<Bound, u32>>,
    counters: usher_bpf::Counters<Counters>,
    _links: Vec<OwnedFd>,
    objects: Objects,
}

impl Ports {
    /// Loads the programs and attaches them to `cgroup` (the path of its folder): they hold for
    /// processes in it and below, in the caller's network namespace. Nothing is reserved yet.
    ///
    /// # Errors
    /// The kernel's error; nothing is then attached.
    pub fn open(cgroup: &Path) -> Result<Self, KernelError> {
        let object = CODE.open()?.in_own_network()?.load()?;
        let links = object.attach_to_cgroup(&PROGRAMS, cgroup)?;
        let mut objects = Objects::default();
        object.collect(&mut objects)?;
        for link in &links {
            objects.add_descriptor(link)?;
        }
        Ok(Self {
            ports: Mutex::new(Mirrored::new(object.table("ports")?)),
            addresses: Mutex::new(Mirrored::new(object.table("addresses")?)),
            counters: object.counters("refused")?,
            _links: links,
            objects,
        })
    }

    /// The maps, programs and links, which no pin names, for the guard.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Reserves these ports and no others. Bound sockets stay bound.
    ///
    /// # Errors
    /// [`KernelError::Full`], or the kernel's error; some are then reserved, and former ones may be as
    /// well.
    pub fn apply(&self, reserved: impl IntoIterator<Item = Reserved>) -> Result<(), KernelError> {
        let mut ports: BTreeMap<u32, Port> = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for Reserved { address, port, uid } in reserved {
            let port = u32::from(port);
            let all = u32::from(address.is_none());
            let entry = ports.entry(port).or_insert(Port { uid, all });
            entry.all |= all;
            // A port of two owners is for root only.
            if entry.uid != uid {
                entry.uid = 0;
            }
            if let Some(address) = address {
                let address = address_bytes(address);
                addresses.insert(Bound { address, port }, uid);
            }
        }
        // An address counts only beside its port: enter it before the port, remove it after.
        let mut of_addresses = self.addresses.lock();
        // Ports without room are not reserved; the others are.
        let addresses_entered = of_addresses.enter_or_exchange(&addresses);
        let mut of_ports = self.ports.lock();
        let ports_entered = of_ports.enter_or_exchange(&ports);
        of_ports.retain(&ports)?;
        of_addresses.retain(&addresses)?;
        addresses_entered.and(ports_entered)
    }

    /// The programs' counters since they were attached.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        self.counters.read()
    }
}
