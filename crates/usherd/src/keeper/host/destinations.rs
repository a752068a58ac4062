//! Restricts where the processes of services may connect, if the kernel accepts the programs. If it does not,
//! users of services with such a policy are refused.

use std::path::Path;

use usher_bpf::{Counted, or_zeros};
use usher_kernel::KernelError;
use usher_kernel::cgroup::Group;
pub use usher_kernel::destinations::Prepared;
use usher_kernel::destinations::{Destinations, Permitted};
use usher_local::paths;
use usher_policy::{Policy, Service};
use usher_proto::refusal::Refusal;

/// The programs that restrict services, if the kernel accepts them.
pub struct ConnectConfinement(Option<Destinations>);

impl ConnectConfinement {
    /// Takes up the restrictions of an earlier keeper, for processes in a control group and below. If the
    /// kernel refuses, the log explains the consequences.
    pub fn open(cgroup: &Path) -> Self {
        let programs = Destinations::open(Path::new(paths::DESTINATIONS_PIN_DIRECTORY), cgroup);
        if let Err(error) = &programs {
            tracing::warn!(%error, "cannot restrict where services connect: services with \
                `connect` are refused");
        }
        Self(programs.ok())
    }

    /// Checks whether a service's processes can be restricted.
    ///
    /// # Errors
    /// [`Refusal::NoConnectConfinement`].
    pub fn serves(&self, service: &Service) -> Result<(), Refusal> {
        match (&service.connect, &self.0) {
            (Some(_), None) => Err(Refusal::NoConnectConfinement),
            _ => Ok(()),
        }
    }

    /// Assigns all processes of a group to a service. This applies to every group, because a service may
    /// be restricted later.
    ///
    /// # Errors
    /// [`Refusal::ListenerTableFull`], [`Refusal::ListenerFailed`]: no process may be started in it.
    pub fn govern(&self, group: &Group, service: u32) -> Result<(), Refusal> {
        let Some(programs) = &self.0 else {
            return Ok(());
        };
        programs.govern(group, service).map_err(|error| {
            tracing::error!(%error, "cannot govern where a user's processes connect");
            match error {
                KernelError::Full(_) => Refusal::ListenerTableFull,
                _ => Refusal::ListenerFailed,
            }
        })
    }

    /// Forgets a group that has been removed, by its number.
    pub fn forget(&self, removed: u64) {
        if let Some(programs) = &self.0
            && let Err(error) = programs.forget(removed)
        {
            tracing::error!(%error, "cannot take a deleted cgroup out of the table of \
                governed groups: it stays there until the keeper starts again");
        }
    }

    /// Restricts the services of a policy, including running processes, at once. Other services stay as
    /// they were until [`ConnectConfinement::retain`].
    ///
    /// # Errors
    /// The kernel's error; nothing has changed if it has no memory for the tables.
    pub fn restrict(&self, policy: &Policy) -> Result<Option<Prepared>, KernelError> {
        let Some(programs) = &self.0 else {
            return Ok(None);
        };
        let services = policy.services.values().filter_map(|service| {
            let table = service.connect.as_ref()?.table();
            let permitted = Permitted {
                networks: table.networks,
                ports: table.ports,
            };
            Some((service.id, permitted))
        });
        let prepared = programs.prepare(services)?;
        programs.apply(&prepared)?;
        Ok(Some(prepared))
    }

    /// Lifts the restrictions of all services that are not `restricted`. Call it when no process is left of
    /// services that the policy does not have.
    pub fn retain(&self, restricted: &Option<Prepared>) -> Result<(), KernelError> {
        match (&self.0, restricted) {
            (Some(programs), Some(prepared)) => programs.retain(prepared),
            _ => Ok(()),
        }
    }

    /// The programs' counters.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        or_zeros(self.0.as_ref().map(Destinations::counters)).named()
    }
}
