//! What is allowed but probably not meant.

use std::collections::BTreeSet;

use usher_base::{HostName, ServiceName, UserName};
use usher_language::{Clause, Name, Place, mistakes, shown};
use usher_protection::ProtectionWarning;

use crate::client::Protocol;
use crate::dialect::BlockKind;
use crate::model::{Policy, ServedBy};
use crate::moment::Moment;
use crate::names::GroupName;
use crate::unknown_name::UnknownName;

mistakes! {
    /// Something in a policy that has no effect, or another than it seems. Never a reason to refuse
    /// the policy: what a warning speaks of permits less than it seems to, not more, or protects
    /// traffic less than elsewhere.
    pub enum PolicyWarning {
        /// A `users` block without members.
        UsersWithoutMembers { users: Name }
            => "`users {users}` has no member"; "add a `member`, or remove the block";
        /// A guest whose time is over.
        GuestOver { users: Name, user: UserName, until: Moment }
            => "`users {users}`: the time of the guest {user} was over at {until}";
            "remove the guest, or write a later time";
        /// Accounts of a group that cannot be users.
        GroupMembersLeftOut { users: Name, group: GroupName, accounts: BTreeSet<String> }
            => "`users {users}`: of the group {group} these are left out, as no policy can admit \
                them: {}", some_of(accounts);
            "take them out of the group, or name a group without them";
        /// A `users` block that no service and no client names.
        UsersUnused { users: Name }
            => "`users {users}` is named by no service and no client";
            "name it in a `service` or `client` block, or remove it";
        /// A service that admits nobody: its `users` blocks have no members.
        ServiceWithoutUsers { service: ServiceName }
            => "`service {service}` admits no user"; "add a `member` to one of its `users` blocks";
        /// A service with `hosts any` in a policy without hosts.
        ServiceWithoutHosts { service: ServiceName }
            => "`service {service}` admits users from no host: the policy has none";
            "add a `host` block for each host from which users come";
        /// The account of a service is a user of another one.
        AccountIsUserElsewhere { service: ServiceName, account: UserName, other: ServiceName }
            => "`service {service}` has the account {account}, who is a user of `service {other}`: \
                the account is fenced, so none of that user's processes can change to another user \
                any more, not by su, sudo or setuid programs either";
            "use an account for services and for nothing else";
        /// An entry of `connect` all of whose addresses and ports others have.
        DestinationNeedless { destination: String, place: Place }
            => "{place}: `{destination}` adds nothing to `connect`: its other entries permit all of it";
            "remove the entry";
        /// A client block that permits nobody: its `users` blocks have no members.
        ClientWithoutUsers { client: Name }
            => "`client {client}` permits no user"; "add a `member` to one of its `users` blocks";
        /// A client's service that this policy offers on another port.
        ClientPortDiffers { client: Name, service: ServiceName, host: HostName, port: u16, listen: u16 }
            => "a client expects `{service}` at `{host}` on port {port}, but `service {service}` of \
                this policy listens on {listen}";
            "write the same port in both, if they mean the same service";
        /// `protocol imap` for a host at which the proxy never listens.
        ProtocolWithoutProxy { client: Name, host: HostName }
            => "`client {client}` says `protocol imap`, but `host {host}` has no `loopback` address \
                for the proxy";
            "add `loopback` to the `host` block, or remove `protocol`";
        /// `loopback` of a host of which no client block names a service.
        LoopbackUnused { host: HostName }
            => "`host {host}` has a `loopback` address, but no client block names a service of it";
            "name a service of the host in a `client` block, or remove `loopback`";
        /// Something about the traffic of programs.
        Protection { warning: ProtectionWarning } => "{warning}"; "{}", warning.remedy();
        /// A name in an `expect` statement that the policy lacks.
        ExpectationOfUnknown { unknown: UnknownName }
            => "{}: the expectation tests nothing, and `usher policy test` fails by it: {unknown}",
            unknown.place;
            "correct the name, or remove the expectation";
    }
}

impl PolicyWarning {
    /// What of the policy it is about; none where the warning itself says the place.
    pub fn clause(&self) -> Option<Clause> {
        Some(match self {
            Self::UsersWithoutMembers { users } | Self::UsersUnused { users } => {
                Clause::block(BlockKind::Users, users)
            }
            Self::GuestOver { users, user, until } => {
                let guest = format!("{user} until {until}");
                Clause::value(BlockKind::Users, users, "guest", guest)
            }
            Self::GroupMembersLeftOut { users, group, .. } => {
                Clause::value(BlockKind::Users, users, "group", group)
            }
            Self::ServiceWithoutUsers { service } => {
                Clause::statement(BlockKind::Service, service, "users")
            }
            Self::ServiceWithoutHosts { service } => {
                Clause::statement(BlockKind::Service, service, "hosts")
            }
            Self::AccountIsUserElsewhere { service, .. } => {
                Clause::statement(BlockKind::Service, service, "account")
            }
            Self::ClientWithoutUsers { client } => {
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
            Self::LoopbackUnused { host } => Clause::statement(BlockKind::Host, host, "loopback"),
            Self::DestinationNeedless { .. }
            | Self::Protection { .. }
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
                warnings.push(PolicyWarning::UsersWithoutMembers {
                    users: users.name.clone(),
                });
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
                warnings.push(PolicyWarning::UsersUnused {
                    users: users.name.clone(),
                });
            }
        }
        for service in self.services.values() {
            if service.users.is_empty() {
                warnings.push(PolicyWarning::ServiceWithoutUsers {
                    service: service.name.clone(),
                });
            }
            if service.hosts.is_empty() {
                warnings.push(PolicyWarning::ServiceWithoutHosts {
                    service: service.name.clone(),
                });
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
                warnings.push(PolicyWarning::LoopbackUnused {
                    host: host.name.clone(),
                });
            }
        }
        let protection = usher_protection::warnings(&self.applications, &self.names);
        let protection = protection.into_iter();
        warnings.extend(protection.map(|warning| PolicyWarning::Protection { warning }));
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
                warnings.push(PolicyWarning::ClientWithoutUsers {
                    client: client.name.clone(),
                });
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
    let first: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| shown(60, name))
        .collect();
    match names.len() - first.len() {
        0 => first.join(", "),
        rest => format!("{} and {rest} more", first.join(", ")),
    }
}
