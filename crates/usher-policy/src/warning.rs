//! What is allowed but probably not meant.

mod application;

use std::collections::BTreeSet;
use std::net::IpAddr;

use usher_proto::{HostName, ServiceName, UserName};

use crate::expectation::UnknownName;
use crate::keywords::BlockKind;
use crate::model::{Policy, Protocol, ServedBy};
use crate::moment::Moment;
use crate::name::{GroupName, Name};
use crate::places::Clause;
use crate::shown::shown;
use crate::source::Place;

/// Something in a policy that has no effect, or another than it seems. Never a reason to refuse
/// the policy: what a warning speaks of permits less than it seems to, not more; of traffic that is
/// protected less than elsewhere, that is said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyWarning {
    /// A `users` block without members.
    #[error("`users {0}` has no member")]
    UsersWithoutMembers(Name),
    /// A guest whose time is over.
    #[error("`users {users}`: the time of the guest {user} was over at {until}")]
    GuestOver {
        /// The block.
        users: Name,
        /// The guest.
        user: UserName,
        /// When it was over.
        until: Moment,
    },
    /// Accounts of a group that cannot be users.
    #[error(
        "`users {users}`: of the group {group} these are left out, as no policy can admit them: {}",
        some_of(accounts)
    )]
    GroupMembersLeftOut {
        /// The block.
        users: Name,
        /// The group.
        group: GroupName,
        /// Its accounts that are left out.
        accounts: BTreeSet<String>,
    },
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
    /// An entry of `connect` all of whose addresses and ports others have.
    #[error(
        "{place}: `{destination}` adds nothing to `connect`: its other entries permit all of it"
    )]
    DestinationNeedless {
        /// The entry.
        destination: String,
        /// Where it stands.
        place: Place,
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
        /// The client block.
        client: Name,
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
    /// A `network` whose addresses earlier ones of its block have.
    #[error("{place}: `network {peers}` never decides: networks before it have all its addresses")]
    NetworkShadowed {
        /// What it names.
        peers: String,
        /// Where it stands.
        place: Place,
    },
    /// An item of a protection whose ports earlier ones have.
    #[error("{place}: `{item}` never decides: items before it have all its ports")]
    ItemShadowed {
        /// The item.
        item: String,
        /// Where it stands.
        place: Place,
    },
    /// A protection that no network names, or only such as never decide.
    #[error("{place}: `protection {protection}` is named by no network that decides anything")]
    ProtectionUnused {
        /// Its name.
        protection: Name,
        /// Where it stands.
        place: Place,
    },
    /// An `application` block whose networks do not have all addresses.
    #[error(
        "{place}: `application {application}` has no network for {address} and perhaps others: what \
         no network has is discarded"
    )]
    AddressesLeftOut {
        /// The first of its programs.
        application: String,
        /// Where it stands.
        place: Place,
        /// The lowest address that is left out, IPv4 first.
        address: IpAddr,
    },
    /// An `optional` item, and a `mandatory` one of another block about the same peers and ports.
    #[error(
        "{place}: `{item}` lets traffic pass in the clear that `application {other}` demands to be \
         protected at {mandatory}"
    )]
    OptionalBesideMandatory {
        /// The item.
        item: String,
        /// Where it stands.
        place: Place,
        /// The first program of the other block.
        other: String,
        /// Where the other item stands.
        mandatory: Place,
    },
    /// A name in an `expect` statement that the policy lacks.
    #[error(
        "{}: the expectation tests nothing, and `usher policy test` fails by it: {unknown}",
        unknown.place
    )]
    ExpectationOfUnknown {
        /// The name.
        unknown: UnknownName,
    },
}

impl PolicyWarning {
    /// What of the policy it is about; none where the warning itself says the place.
    pub fn clause(&self) -> Option<Clause> {
        Some(match self {
            Self::UsersWithoutMembers(users) | Self::UsersUnused(users) => {
                Clause::block(BlockKind::Users, users)
            }
            Self::GuestOver { users, user, until } => {
                let guest = format!("{user} until {until}");
                Clause::value(BlockKind::Users, users, "guest", guest)
            }
            Self::GroupMembersLeftOut { users, group, .. } => {
                Clause::value(BlockKind::Users, users, "group", group)
            }
            Self::ServiceWithoutUsers(service) => {
                Clause::statement(BlockKind::Service, service, "users")
            }
            Self::ServiceWithoutHosts(service) => {
                Clause::statement(BlockKind::Service, service, "hosts")
            }
            Self::AccountIsUserElsewhere { service, .. } => {
                Clause::statement(BlockKind::Service, service, "account")
            }
            Self::ClientWithoutUsers(client) => {
                Clause::statement(BlockKind::Client, client, "users")
            }
            Self::ClientPortDiffers {
                client,
                service,
                host,
                port,
                ..
            } => {
                let target = format!("{service} at {host} port {port}");
                Clause::value(BlockKind::Client, client, "service", target)
            }
            Self::ProtocolWithoutProxy { client, .. } => {
                Clause::statement(BlockKind::Client, client, "protocol")
            }
            Self::LoopbackUnused(host) => Clause::statement(BlockKind::Host, host, "loopback"),
            Self::DestinationNeedless { .. }
            | Self::NetworkShadowed { .. }
            | Self::ItemShadowed { .. }
            | Self::ProtectionUnused { .. }
            | Self::AddressesLeftOut { .. }
            | Self::OptionalBesideMandatory { .. }
            | Self::ExpectationOfUnknown { .. } => return None,
        })
    }
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
            if users.users().next().is_none() && users.principals.is_empty() {
                warnings.push(PolicyWarning::UsersWithoutMembers(users.name.clone()));
            }
            let groups = users.groups.iter();
            for (name, group) in groups.filter(|(_, group)| !group.left_out.is_empty()) {
                warnings.push(PolicyWarning::GroupMembersLeftOut {
                    users: users.name.clone(),
                    group: name.clone(),
                    accounts: group.left_out.clone(),
                });
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
            let connect = service.connect.iter();
            for entry in connect.flat_map(|connect| connect.needless()) {
                warnings.push(PolicyWarning::DestinationNeedless {
                    destination: entry.to_string(),
                    place: entry.origin.place.clone(),
                });
            }
            if let ServedBy::Account(account) = &service.served_by {
                let mut others = self.services.values();
                if let Some(other) = others.find(|other| other.users.names().contains(account)) {
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
        application::warn(self, &mut warnings);
        let unknown = self.unknown_names().into_iter();
        warnings.extend(unknown.map(|unknown| PolicyWarning::ExpectationOfUnknown { unknown }));
        warnings
    }

    /// The guests whose time is over, in seconds since 1970.
    pub fn guests_over(&self, now: u64) -> Vec<PolicyWarning> {
        let guests = self.users.values().flat_map(|users| {
            let over = users.guests.iter();
            let over = over.filter(|(_, until)| until.unix_time() <= now);
            over.map(|(user, until)| PolicyWarning::GuestOver {
                users: users.name.clone(),
                user: user.clone(),
                until: *until,
            })
        });
        guests.collect()
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
                        client: client.name.clone(),
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

/// The first few names, fit for a terminal, and how many more there are.
fn some_of(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> = names.iter().take(SHOWN).map(|name| shown(name)).collect();
    match names.len() - first.len() {
        0 => first.join(", "),
        rest => format!("{} and {rest} more", first.join(", ")),
    }
}
