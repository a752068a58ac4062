//! What is allowed but probably not meant.

use std::collections::BTreeSet;

use usher_proto::{HostName, ServiceName, UserName};

use crate::model::{Policy, Protocol, ServedBy};
use crate::name::Name;

/// Something in a policy that has no effect, or another than it seems. Never a reason to refuse
/// the policy: what a warning speaks of permits less than it seems to, not more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyWarning {
    /// A `users` block without members.
    #[error("`users {0}` has no member")]
    UsersWithoutMembers(Name),
    /// A `users` block that no service and no client names.
    #[error("`users {0}` is named by no service and no client")]
    UsersUnused(Name),
    /// A service that admits nobody: its `users` blocks have no members.
    #[error("`service {0}` admits no user")]
    ServiceWithoutUsers(ServiceName),
    /// A service with `hosts any` in a policy without hosts.
    #[error("`service {0}` admits users from no host: the policy has none")]
    ServiceWithoutHosts(ServiceName),
    /// The account of a service is a user of another one.
    #[error(
        "`service {service}` has the account {account}, who is a user of `service {other}`: the \
         account is fenced, so none of that user's processes can change to another user any more, \
         not by su, sudo or setuid programs either"
    )]
    AccountIsUserElsewhere {
        /// The service with the account.
        service: ServiceName,
        /// The account.
        account: UserName,
        /// The service whose user it is.
        other: ServiceName,
    },
    /// A client block that permits nobody: its `users` blocks have no members.
    #[error("`client {0}` permits no user")]
    ClientWithoutUsers(Name),
    /// A client's service that this policy offers on another port.
    #[error(
        "a client expects `{service}` at `{host}` on port {port}, but `service {service}` \
             of this policy listens on {listen}"
    )]
    ClientPortDiffers {
        /// The service's name in both blocks.
        service: ServiceName,
        /// The host that the client names.
        host: HostName,
        /// The client's port.
        port: u16,
        /// The service's port.
        listen: u16,
    },
    /// `protocol imap` for a host at which the proxy never listens.
    #[error(
        "`client {client}` says `protocol imap`, but `host {host}` has no `loopback` \
             address for the proxy"
    )]
    ProtocolWithoutProxy {
        /// The client block.
        client: Name,
        /// The host that it names.
        host: HostName,
    },
    /// `loopback` of a host of which no client block names a service.
    #[error("`host {0}` has a `loopback` address, but no client block names a service of it")]
    LoopbackUnused(HostName),
}

impl Policy {
    /// Everything in the policy that is allowed but probably not meant, in a fixed order.
    pub fn warnings(&self) -> Vec<PolicyWarning> {
        let mut warnings = Vec::new();
        let services = self
            .services
            .values()
            .flat_map(|service| &service.user_blocks);
        let clients = self.clients.values().flat_map(|client| &client.user_blocks);
        let named: BTreeSet<&Name> = services.chain(clients).collect();
        for users in self.users.values() {
            if users.members.is_empty() {
                warnings.push(PolicyWarning::UsersWithoutMembers(users.name.clone()));
            }
            if !named.contains(&users.name) {
                warnings.push(PolicyWarning::UsersUnused(users.name.clone()));
            }
        }
        for service in self.services.values() {
            if service.users.is_empty() {
                warnings.push(PolicyWarning::ServiceWithoutUsers(service.name.clone()));
            }
            if service.hosts.is_empty() {
                warnings.push(PolicyWarning::ServiceWithoutHosts(service.name.clone()));
            }
            if let ServedBy::Account(account) = &service.served_by {
                let mut others = self.services.values();
                if let Some(other) = others.find(|other| other.users.contains(account)) {
                    warnings.push(PolicyWarning::AccountIsUserElsewhere {
                        service: service.name.clone(),
                        account: account.clone(),
                        other: other.name.clone(),
                    });
                }
            }
        }
        self.warn_of_clients(&mut warnings);
        let reached: BTreeSet<&HostName> =
            self.client_services().map(|entry| &entry.host).collect();
        for host in self.hosts.values() {
            if !host.loopback.is_empty() && !reached.contains(&host.name) {
                warnings.push(PolicyWarning::LoopbackUnused(host.name.clone()));
            }
        }
        warnings
    }

    fn warn_of_clients(&self, warnings: &mut Vec<PolicyWarning>) {
        for client in self.clients.values() {
            if client.services.iter().all(|entry| entry.users.is_empty()) {
                warnings.push(PolicyWarning::ClientWithoutUsers(client.name.clone()));
            }
            for entry in &client.services {
                let offered = self.services.get(&entry.service);
                if let Some(service) = offered.filter(|service| service.listen != entry.port) {
                    warnings.push(PolicyWarning::ClientPortDiffers {
                        service: entry.service.clone(),
                        host: entry.host.clone(),
                        port: entry.port,
                        listen: service.listen,
                    });
                }
                let proxied = self
                    .hosts
                    .get(&entry.host)
                    .is_some_and(|host| !host.loopback.is_empty());
                if entry.protocol != Protocol::Raw && !proxied {
                    warnings.push(PolicyWarning::ProtocolWithoutProxy {
                        client: client.name.clone(),
                        host: entry.host.clone(),
                    });
                }
            }
        }
    }
}
