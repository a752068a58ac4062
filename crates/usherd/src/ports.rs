//! TCP ports that are kept for somebody, where the kernel takes the programs.

use std::path::Path;

use usher_bpf::Counted;
use usher_kernel::ports::{Ports, Reserved};
use usher_policy::Policy;

/// The reserved ports.
pub struct ReservedPorts(Option<Ports>);

impl ReservedPorts {
    /// Reserves nothing yet; for processes in a control group and below. Where the kernel refuses,
    /// the log says what that means.
    pub fn open(cgroup: &Path, otherwise: &str) -> Self {
        let ports = Ports::open(cgroup);
        if let Err(error) = &ports {
            tracing::warn!(%error, "ports are not reserved: {otherwise}");
        }
        Self(ports.ok())
    }

    /// Reserves these and no others. Gives whether they are, or nothing is reserved here at all.
    pub fn reserve(&self, reserved: impl IntoIterator<Item = Reserved>) -> bool {
        if let Some(ports) = &self.0
            && let Err(error) = ports.apply(reserved)
        {
            tracing::error!(%error, "not all ports are reserved");
            return false;
        }
        true
    }

    /// What the programs have counted.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        let counters = self.0.as_ref().map(Ports::counters);
        let counters = counters.transpose().unwrap_or_else(|error| {
            tracing::error!(%error, "reading the counters");
            None
        });
        counters.unwrap_or_default().named()
    }
}

/// Where the proxy stands for other hosts: nobody else is to be taken for them.
pub fn of_proxy(policy: &Policy, proxy: u32) -> impl Iterator<Item = Reserved> {
    let listeners = policy.proxy_listeners().into_iter();
    listeners.map(move |listener| Reserved {
        address: Some((*listener.address.ip()).into()),
        port: listener.address.port(),
        uid: proxy,
    })
}
