//! Tokens: sessions whose connections the kernel admits by the token in their SYNs.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_kernel::admission::{Admission, TokenError, TokenSession};
use usher_local::checked::Checked;
use usher_policy::Service;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::token::{TokenKey, TokenSlot};

use super::{Table, kernel_failed};

impl Table {
    /// Opens a slot for a session's tokens.
    ///
    /// # Errors
    /// Like an announcement in this session, and [`Refusal::TokenTableFull`]. The session's
    /// connections can still be announced.
    pub fn open_tokens(
        &self,
        session: SessionId,
        host: &HostName,
        key: &TokenKey,
    ) -> Result<TokenSlot, Refusal> {
        let record = self.live(&session, host)?;
        let configuration = self.host.configuration.get();
        let policy = &configuration.checked.policy;
        let host = policy.hosts.get(host).ok_or(Refusal::HostNotPermitted)?;
        let service = configuration.checked.service(record.service);
        if self.must_be_announced(service) {
            return Err(Refusal::TokenTableFull);
        }
        let tokens = TokenSession {
            session,
            service: record.service,
            uid: record.uid,
            host: configuration.checked.identity(host).number(&host.name),
            anchor: record.token_anchor,
            salt: record.chain_salt,
            length: record.chain_length,
            key: *key.as_bytes(),
            lifetime: Duration::from_secs(record.expires.saturating_sub(unix_time())),
        };
        let slot = self
            .host
            .admission
            .open_tokens(&tokens)
            .map_err(|error| match error {
                TokenError::Full => Refusal::TokenTableFull,
                // A repeated request: the answer was lost, or this is another key. The client opens
                // another session.
                TokenError::Exists => Refusal::Replayed,
                TokenError::Length(_) => Refusal::Malformed,
                TokenError::Kernel(error) => kernel_failed(error),
            })?;
        tracing::info!(%session, user = %record.user, slot = slot.number(), "tokens are accepted");
        Ok(slot)
    }

    /// Stops accepting tokens of a session. The caller then looks for its connections, to cut them.
    pub(super) fn close_tokens(&self, session: &SessionId) {
        if let Err(error) = self.host.admission.close_tokens(session) {
            tracing::error!(%error, %session, "cannot withdraw the tokens of an ended session: \
                they are still accepted");
        }
    }

    /// Whether tokens cannot be read in the connections of a service: it has `protection`, and the filter
    /// at interfaces sees packets before they are decrypted.
    fn must_be_announced(&self, service: Option<&Service>) -> bool {
        let is_protected = service.is_some_and(|service| service.protection.is_some());
        is_protected && self.host.admission.reads_at_interfaces().is_some()
    }

    /// Closes the slots of sessions that have ended while no keeper was running, and of services whose
    /// connections must be announced now: an earlier keeper could read their tokens, or an earlier policy
    /// did not protect them.
    pub fn close_stale_tokens(&self) {
        let slots = match self.host.admission.tokens() {
            Ok(slots) => slots,
            Err(error) => return tracing::error!(%error, "cannot read the table of tokens"),
        };
        let configuration = self.host.configuration.get();
        for row in slots {
            match self.host.admission.session(&row.session) {
                Ok(Some(record))
                    if record.ended.is_none()
                        && !self
                            .must_be_announced(configuration.checked.service(record.service)) => {}
                Ok(_) => self.close_tokens(&row.session),
                Err(error) => tracing::error!(%error, "cannot read the session table"),
            }
        }
    }
}

/// Sets the addresses of the policy's hosts in the kernel. A host's remaining tokens admit no connection from
/// an address that it has lost, and none at all if it has got another identity.
pub fn set_client_addresses(admission: &Admission, checked: &Checked) {
    let hosts = checked.policy.hosts.values();
    let addresses: Vec<_> = hosts
        .flat_map(|host| {
            let number = checked.identity(host).number(&host.name);
            host.addresses.iter().map(move |address| (number, *address))
        })
        .collect();
    if let Err(error) = admission.set_client_addresses(&addresses) {
        tracing::error!(%error, "cannot enter the addresses of all client hosts: connections from \
            the others are announced");
    }
}

/// The interfaces on which tokens are not read, and the reasons, as last logged.
#[derive(Default)]
pub struct Unread(Mutex<HashMap<String, String>>);

impl Unread {
    /// Ensures that tokens are read. On kernels that read them at interfaces, it attaches to every present
    /// interface. Logs each failure once.
    pub fn attach(&self, admission: &Admission) {
        let found = match admission.attach_tokens() {
            Ok(unattached) => unattached
                .into_iter()
                .map(|unattached| (unattached.interface, unattached.error.to_string()))
                .collect(),
            Err(error) => HashMap::from([(String::new(), error.to_string())]),
        };
        let mut said = self.0.lock();
        for (interface, error) in &found {
            if said.get(interface) != Some(error) {
                tracing::warn!(
                    interface,
                    error,
                    "cannot read tokens on this interface: connections that come in there are \
                     announced"
                );
            }
        }
        *said = found;
    }
}
