//! This host's resources for the other rooms of the keeper: its configuration, its accounts, the
//! tables and rules of its kernel, and its processes. Nothing here knows of sessions or queues.
//!
//! Room: the configuration in force, account files, processes, and the tables of the fence, ports,
//! destinations and protected ports. All other rooms of the keeper use it.

pub mod accounts;
mod cache;
pub mod destinations;
pub mod fence;
pub mod identities;
mod pam;
mod ports;
pub mod process;
pub mod protection;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use usher_base::UserName;
use usher_kernel::KernelError;
use usher_kernel::admission::{Admission, AdmissionRow, UnreadableRow};
use usher_kernel::ownership::OwnershipError;
use usher_local::configuration::{Configuration, InForce};
use usher_policy::{Policy, ServedBy, Service};
use usher_proto::refusal::Refusal;
use usher_system::sandbox::confines_files;

use accounts::{Account, Accounts};
use destinations::ConnectConfinement;
use fence::Fence;
use identities::Identities;
pub use pam::pam_program as usher_pam;
use ports::ServicePorts;
use protection::ProtectedPorts;

/// The time that a reload waits for the look-up of the services' accounts.
const LOOKING_UP: Duration = Duration::from_secs(5);

/// This host.
pub struct Host {
    /// The kernel's tables.
    pub admission: Admission,
    /// The configuration in force.
    pub configuration: InForce,
    /// The fence around service accounts and connections.
    pub fence: Fence,
    /// The reserved ports of services.
    pub ports: ServicePorts,
    /// Confines the processes of services to their destinations.
    pub destinations: ConnectConfinement,
    /// The ports at which packets need the protection of IPsec.
    pub protected: ProtectedPorts,
    /// User ids by names.
    pub accounts: Arc<Accounts>,
    /// Identity and environment of each user's processes.
    pub identities: Identities,
}

impl Host {
    /// All entries of the table of connections. An entry that cannot be read would hide all others, and with
    /// them what a policy forbids: it is removed first, and its connection is cut.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn admissions(&self) -> Result<Vec<AdmissionRow>, KernelError> {
        match self.admission.admissions() {
            Err(KernelError::UnreadableEntry(_)) => {
                for row in self.admission.remove_unreadable_admissions()? {
                    cut_unreadable(&row);
                }
                self.admission.admissions()
            }
            rows => rows,
        }
    }

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
        let protected = ProtectedPorts::open();
        // The fence, opened below, also guards the links that this makes.
        protected.demand(&configuration.checked.policy)?;
        let ports = ServicePorts::open(users);
        let mut unpinned = ports.objects();
        unpinned.programs.extend(admission.unpinned_programs()?);
        unpinned.programs.extend(protected.programs()?);
        Ok(Self {
            destinations,
            protected,
            fence: Fence::open(unpinned, ownership)?,
            admission,
            configuration: InForce::new(configuration),
            ports,
            accounts: Arc::new(Accounts::new()),
            identities: Identities::new(pam::permitted),
        })
    }

    /// Checks whether a process could ever serve a connection to a service.
    ///
    /// # Errors
    /// [`Refusal::NoFence`], [`Refusal::NoFileConfinement`], and those of [`Host::can_restrict`].
    pub fn serves(&self, service: &Service) -> Result<(), Refusal> {
        match &service.served_by {
            ServedBy::Account(_) if self.fence.missing().is_some() => {
                return Err(Refusal::NoFence);
            }
            ServedBy::Program(program) if program.files.is_some() && !confines_files() => {
                return Err(Refusal::NoFileConfinement);
            }
            ServedBy::Account(_) | ServedBy::Program(_) | ServedBy::Backend(_) => {}
        }
        self.can_restrict(service)
    }

    /// The account as which one process serves all users of a service.
    ///
    /// # Errors
    /// See [`ServicePorts::uid_of`].
    pub fn shared_account(&self, name: &UserName) -> Result<Account, Refusal> {
        let uid = self.ports.uid_of(name)?;
        let name = name.clone();
        Ok(Account { name, uid })
    }

    /// Checks whether the kernel can enforce what a service's policy says of its connections.
    ///
    /// # Errors
    /// [`Refusal::NoConnectConfinement`]; [`Refusal::ListenerFailed`] if it cannot demand protection.
    pub fn can_restrict(&self, service: &Service) -> Result<(), Refusal> {
        self.destinations.serves(service)?;
        self.protected.serves(service)
    }

    /// Demands the protection that a policy's services have in their `protection`. Other ports keep
    /// their demands until [`ProtectedPorts::retain`].
    ///
    /// # Errors
    /// The kernel's error; no demand has been lifted or weakened.
    pub fn demand_protection(&self, policy: &Policy) -> Result<(), OwnershipError> {
        if self.protected.demand(policy)? {
            self.fence.guard_objects()?;
        }
        Ok(())
    }

    /// Where the program that demands protection was detached, attaches it again.
    pub fn mend_protection(&self) {
        if self.protected.mend()
            && let Err(error) = self.fence.guard_objects()
        {
            tracing::error!(%error, "cannot guard the program that demands protection: root's \
                processes can change it");
        }
    }

    /// Looks up the accounts of the services in force, fences those whose processes become users, and
    /// reserves their ports. If the caller stops waiting, [`Host::is_incomplete`] demands another call.
    pub async fn look_accounts_up(&self) {
        let configuration = self.configuration.get();
        let (generation, policy) = (configuration.generation(), &configuration.checked.policy);
        self.ports.begin(generation, policy);
        // All at once: an account about which the name service does not answer delays no other.
        let mut look_ups = JoinSet::new();
        for account in ports::accounts(policy) {
            let (account, accounts) = (account.clone(), Arc::clone(&self.accounts));
            look_ups.spawn(async move {
                let uid = accounts.by_name(&account).await.map(|found| found.uid);
                (account, uid)
            });
        }
        let mut fenced = true;
        let mut found = ports::Found::new();
        while let Some(looked_up) = look_ups.join_next().await {
            let Ok((account, uid)) = looked_up else {
                continue;
            };
            let becomes_users =
                |service: &Service| service.served_by == ServedBy::Account(account.clone());
            if let Ok(uid) = uid
                && policy.services.values().any(becomes_users)
            {
                fenced &= self.fence.enclose_service(uid);
            }
            // The reload that replaced this configuration looks up its accounts.
            if !self.ports.note(generation, &account, uid) {
                return;
            }
            found.insert(account, uid);
        }
        self.fence.set_incomplete(!fenced);
        self.ports.complete(generation, policy, found);
    }

    /// Like [`Host::look_accounts_up`], with a time limit.
    pub async fn look_accounts_up_in_time(&self) {
        let looked_up = tokio::time::timeout(LOOKING_UP, self.look_accounts_up());
        if looked_up.await.is_err() {
            tracing::warn!(
                "cannot look up the accounts of services in time: the keeper tries again until \
                 they are found"
            );
        }
    }

    /// Whether the accounts of services must be looked up again.
    pub fn is_incomplete(&self) -> bool {
        self.ports.is_incomplete() || self.fence.is_incomplete()
    }
}

/// The path of a program of Usher, which is installed beside usherd.
///
/// # Errors
/// When the kernel does not say where usherd is.
pub fn installed_beside(name: &str) -> io::Result<PathBuf> {
    let mut program = std::env::current_exe()?;
    program.set_file_name(name);
    Ok(program)
}

/// Cuts the connection of an entry that could not be read and is removed.
fn cut_unreadable(row: &UnreadableRow) {
    let session = row.session;
    let Some(connection) = row.connection else {
        return tracing::error!(%session, "the entry of a connection cannot be read and is removed: it names \
            no two endpoints");
    };
    tracing::error!(client = %connection.client, server = %connection.server, %session,
        "the entry of a connection cannot be read and is removed, and the connection is cut; its client \
        connects again by itself");
    if let Err(error) = usher_system::connections::destroy(&connection) {
        tracing::error!(client = %connection.client, %error, "cannot destroy a connection");
    }
}
