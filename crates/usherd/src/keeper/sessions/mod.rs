//! Sessions: how they are opened, which connections they admit, and how they end. They use the queues, the
//! host and the recorder; none of these knows of sessions.
//!
//! Room: the tables of sessions, tokens and announced connections. Requests, records of the
//! verifier and the clock come in here.

mod announced;
mod connections;
mod failures;
mod info;
mod open;
mod requests;
mod restore;
mod revocation;
mod silence;
mod table;
mod teardown;
mod verifier;
mod views;

use std::sync::Arc;

use parking_lot::Mutex;
use usher_kernel::KernelError;
use usher_local::checked::Checked;
use usher_proto::host_key::HostPublicKey;

use super::host::Host;
use super::queues::Queues;
use super::recording::Recording;
use connections::Connections;
use silence::Silent;
use table::Table;

/// The sessions.
pub struct Sessions {
    host: Arc<Host>,
    /// This host's key.
    own_key: HostPublicKey,
    queues: Arc<Queues>,
    recording: Arc<Recording>,
    pub table: Table,
    pub connections: Connections,
    silent: Mutex<Silent>,
}

impl Sessions {
    /// No sessions yet, in a table with this many places.
    pub fn new(
        host: Arc<Host>,
        own_key: HostPublicKey,
        queues: Arc<Queues>,
        recording: Arc<Recording>,
        most: u32,
    ) -> Self {
        Self {
            table: Table::new(Arc::clone(&host), most),
            connections: Connections::new(Arc::clone(&host)),
            host,
            own_key,
            queues,
            recording,
            silent: Mutex::default(),
        }
    }

    /// Puts the service ports of a configuration under admission, and sets the addresses of its hosts.
    ///
    /// # Errors
    /// When the kernel refuses the ports.
    pub fn admit_to(&self, checked: &Checked) -> Result<(), KernelError> {
        let services = checked.policy.services.values();
        let ports: Vec<(u16, u32)> = services
            .map(|service| (service.listen, service.id))
            .collect();
        self.host.admission.set_services(&ports)?;
        table::set_client_addresses(&self.host.admission, checked);
        Ok(())
    }

    /// Accepts the tokens of an earlier keeper's live sessions, and no others.
    pub fn restore_tokens(&self) {
        if let Some(reason) = self.host.admission.reads_at_interfaces() {
            tracing::info!(
                %reason,
                "cannot read tokens under IPsec or in fragments, only at interfaces"
            );
        }
        self.table.close_stale_tokens();
        self.connections.unread.attach(&self.host.admission);
    }

    /// Does what the clock demands of sessions. Called every second.
    pub fn look(&self) {
        self.connections.unread.attach(&self.host.admission);
        let ending = self.table.look();
        self.end_all(ending);
    }
}
