//! What this host lends to the other rooms of the keeper: its configuration, its accounts, the tables
//! and rules of its kernel, and its processes. Nothing here knows of sessions or queues.
//!
//! Room: the configuration in force, account files, processes, and the tables of the fence, ports and
//! destinations. All other rooms of the keeper use it.

pub mod accounts;
mod cache;
pub mod destinations;
pub mod fence;
pub mod identities;
mod pam;
mod ports;
pub mod process;

use std::path::Path;
use std::time::Duration;

use usher_kernel::admission::Admission;
use usher_kernel::ownership::OwnershipError;
use usher_local::configuration::{Configuration, InForce};
use usher_policy::{ServedBy, Service};
use usher_proto::refusal::Refusal;
use usher_system::sandbox::confines_files;

use accounts::Accounts;
use destinations::ConnectConfinement;
use fence::Fence;
use identities::Identities;
pub use pam::program as usher_pam;
use ports::ServicePorts;

/// The time that a reload waits for the look-up of the services' accounts.
const LOOKING_UP: Duration = Duration::from_secs(5);

/// This host.
pub struct Host {
    /// The kernel's tables.
    pub admission: Admission,
    /// The configuration in force.
    pub configuration: InForce,
    /// Around service accounts and connections.
    pub fence: Fence,
    /// Of services.
    pub ports: ServicePorts,
    /// Where the processes of services may connect.
    pub destinations: ConnectConfinement,
    /// User ids by names.
    pub accounts: Accounts,
    /// What a user's processes are started with.
    pub identities: Identities,
}

impl Host {
    /// Puts up what the kernel enforces besides admission, for processes of `users` and below. To be
    /// called while the process has one thread. See [`Fence::open`] for `ownership`, and for errors.
    pub fn open(
        users: &Path,
        admission: Admission,
        configuration: Configuration,
        ownership: bool,
    ) -> Result<Self, OwnershipError> {
        // Before the fence, which guards the pins.
        let destinations = ConnectConfinement::open(users);
        Ok(Self {
            destinations,
            fence: Fence::open(&admission, ownership)?,
            admission,
            configuration: InForce::new(configuration),
            ports: ServicePorts::open(users),
            accounts: Accounts::new(),
            identities: Identities::new(pam::permitted),
        })
    }

    /// Checks whether a process could ever serve a connection to a service.
    ///
    /// # Errors
    /// [`Refusal::NoFence`], [`Refusal::NoFileConfinement`], [`Refusal::NoConnectConfinement`].
    pub fn serves(&self, service: &Service) -> Result<(), Refusal> {
        match &service.served_by {
            ServedBy::Account(_) if self.fence.missing().is_some() => {
                return Err(Refusal::NoFence);
            }
            ServedBy::Program(program) if program.files.is_some() && !confines_files() => {
                return Err(Refusal::NoFileConfinement);
            }
            ServedBy::Account(_) | ServedBy::Program(_) => {}
        }
        self.destinations.serves(service)
    }

    /// Does what needs the accounts of the services in force: fences each, and reserves its port. If
    /// the caller stops waiting, [`Host::is_incomplete`] demands another call.
    pub async fn look_accounts_up(&self) {
        let configuration = self.configuration.get();
        let (generation, policy) = (configuration.generation(), &configuration.checked.policy);
        self.ports.begin(generation, policy);
        let mut found = ports::Found::new();
        let mut fenced = true;
        for account in ports::accounts(policy) {
            let uid = self.accounts.by_name(account).await.map(|found| found.uid);
            // The reload that replaced this configuration looks up its accounts.
            if self.configuration.get().generation() != generation {
                return;
            }
            if let Ok(uid) = uid {
                fenced &= self.fence.enclose_service(uid);
            }
            found.insert(account.clone(), uid);
        }
        self.fence.set_incomplete(!fenced);
        self.ports.complete(generation, policy, &found);
    }

    /// The same, with a time limit.
    pub async fn look_accounts_up_in_time(&self) {
        let looked_up = tokio::time::timeout(LOOKING_UP, self.look_accounts_up());
        if looked_up.await.is_err() {
            tracing::warn!(
                "looking up the accounts of services takes long: it is tried again until they are \
                found"
            );
        }
    }

    /// Whether the accounts of services must be looked up again.
    pub fn is_incomplete(&self) -> bool {
        self.ports.is_incomplete() || self.fence.is_incomplete()
    }
}
