//! Which TCP ports of this host are kept for its services.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use usher_kernel::ports::Reserved;
use usher_policy::{Policy, ServedBy};

use super::accounts::Accounts;
use crate::ports::ReservedPorts;

/// The ports of services.
pub struct ServicePorts {
    reserved: ReservedPorts,
    /// An account could not be looked up.
    incomplete: AtomicBool,
}

impl ServicePorts {
    /// Reserves nothing yet; for processes in a control group and below.
    pub fn open(cgroup: &Path) -> Self {
        let otherwise = "a local user who binds a service's port first keeps a service with an \
            `account` from starting";
        Self {
            reserved: ReservedPorts::open(cgroup, otherwise),
            incomplete: AtomicBool::new(false),
        }
    }

    /// Reserves the ports of a policy's services: for root, who is the keeper, and for the accounts
    /// of those that have one. The port of an account that is not found is root's alone.
    pub async fn reserve(&self, policy: &Policy, accounts: &Accounts) {
        let mut reserved = Vec::with_capacity(policy.services.len());
        let mut incomplete = false;
        for service in policy.services.values() {
            let uid = match &service.served_by {
                ServedBy::Program(_) => Ok(0),
                ServedBy::Account(account) => {
                    accounts.by_name(account).await.map(|found| found.uid)
                }
            };
            incomplete |= uid.is_err();
            reserved.push(Reserved {
                address: None,
                port: service.listen,
                uid: uid.unwrap_or(0),
            });
        }
        self.reserved.reserve(reserved);
        self.incomplete.store(incomplete, Ordering::Relaxed);
    }

    /// Whether an account was not found, which may have been made meanwhile.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// How often somebody was refused one.
    pub fn refused(&self) -> u64 {
        self.reserved.refused()
    }
}
