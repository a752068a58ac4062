//! Reserved TCP ports, if the kernel accepts the programs.

use std::path::Path;

use usher_bpf::{Counted, Objects, or_zeros};
use usher_kernel::ports::{Ports, Reserved};
use usher_policy::Policy;

/// The reserved ports. No port is reserved if the kernel refuses the programs.
#[derive(Default)]
pub struct ReservedPorts {
    ports: Option<Ports>,
    trouble: Option<String>,
}

impl ReservedPorts {
    /// Loads the programs, without reservations yet. Reservations hold for processes in a control group and
    /// below. If the kernel refuses the programs, the log explains the consequences (`otherwise`).
    pub fn open(cgroup: &Path, otherwise: &str) -> Self {
        let ports = Ports::open(cgroup);
        if let Err(error) = &ports {
            tracing::warn!(%error, "cannot reserve ports: {otherwise}");
        }
        Self {
            ports: ports.ok(),
            trouble: misplaced(cgroup),
        }
    }

    /// Reserves these ports and no others. Returns true on success, and if the kernel refused the programs.
    pub fn reserve(&self, reserved: impl IntoIterator<Item = Reserved>) -> bool {
        if let Some(ports) = &self.ports
            && let Err(error) = ports.apply(reserved)
        {
            tracing::error!(%error, "cannot reserve all ports");
            return false;
        }
        true
    }

    /// The kernel objects that reserve the ports, for the guard.
    pub fn objects(&self) -> Objects {
        let objects = self.ports.as_ref().map(Ports::objects);
        objects.cloned().unwrap_or_default()
    }

    /// The fault of the control group, for people. The programs that it should hold are then not in force.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    /// The programs' counters.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        or_zeros(self.ports.as_ref().map(Ports::counters)).named()
    }
}

fn misplaced(cgroup: &Path) -> Option<String> {
    // Every group of cgroup v2 has this file, and no other folder has it.
    let is_group = cgroup.join("cgroup.controllers").is_file();
    (!is_group).then(|| {
        format!(
            "{} is no control group of cgroup v2, so what holds for users' processes is not in force: correct \
             --cgroup of usherd signer, --users-cgroup of usherd keeper, in the daemon's unit, and start it again",
            cgroup.display()
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_control_group_is_a_trouble() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("gone")] {
            let trouble = misplaced(path).unwrap();
            assert!(trouble.contains(&path.display().to_string()), "{trouble}");
        }
        assert_eq!(misplaced(&usher_kernel::cgroup::mount().unwrap()), None);
    }
}
