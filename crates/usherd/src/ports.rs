//! Reserved TCP ports, if the kernel accepts the programs.

use std::path::Path;

use usher_bpf::{Counted, Objects, or_zeros};
use usher_kernel::ports::{Ports, Reserved};
use usher_policy::Policy;

/// The reserved ports; none if the kernel refuses the programs.
#[derive(Default)]
pub struct ReservedPorts(Option<Ports>);

impl ReservedPorts {
    /// Reserves nothing yet; it will hold for processes in a control group and below. If the kernel
    /// refuses, the log explains the consequences.
    pub fn open(cgroup: &Path, otherwise: &str) -> Self {
        let ports = Ports::open(cgroup);
        if let Err(error) = &ports {
            tracing::warn!(%error, "cannot reserve ports: {otherwise}");
        }
        Self(ports.ok())
    }

    /// Reserves these ports and no others. Returns true on success, or if this kernel reserves none.
    pub fn reserve(&self, reserved: impl IntoIterator<Item = Reserved>) -> bool {
        if let Some(ports) = &self.0
            && let Err(error) = ports.apply(reserved)
        {
            tracing::error!(%error, "cannot reserve all ports");
            return false;
        }
        true
    }

    /// The kernel's objects that reserve them, for the guard.
    pub fn objects(&self) -> Objects {
        let objects = self.0.as_ref().map(Ports::objects);
        objects.cloned().unwrap_or_default()
    }

    /// The programs' counters.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        or_zeros(self.0.as_ref().map(Ports::counters)).named()
    }
}

/// The proxy's addresses for other hosts, reserved so that no other process can pass for them.
pub fn of_proxy(policy: &Policy, proxy: u32) -> impl Iterator<Item = Reserved> {
    let listeners = policy.proxy_listeners().into_iter();
    listeners.map(move |listener| Reserved {
        address: Some((*listener.address.ip()).into()),
        port: listener.address.port(),
        uid: proxy,
    })
}
