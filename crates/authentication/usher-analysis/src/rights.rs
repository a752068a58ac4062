//! All that is permitted: for each client host, service and server host the set of users.

use std::collections::HashMap;

use serde::Serialize;
use usher_policy::{ClientService, Service};
use usher_proto::{HostName, ServiceName};

use crate::certificates::ByCertificate;
use crate::how::{How, Offer, Request};
use crate::network::{Acquaintance, Holders, HostPolicy, Network};
use crate::sets::{SetId, Universe};

/// Whose policies a right is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// Both sides.
    Both,
    /// The client's; the server's policy is not known here.
    ClientOnly,
    /// The server's; the client's policy is not known here.
    ServerOnly,
}

/// Users who may connect from a host to a service: at least one, by name or by a certificate.
#[derive(Clone, Debug)]
pub struct Right<'n> {
    /// From which host, as it is called here.
    pub client: &'n HostName,
    /// To which service.
    pub service: &'n ServiceName,
    /// Of which host, as it is called here.
    pub server: &'n HostName,
    /// At which port.
    pub port: u16,
    /// Whose policies say so.
    pub known: Known,
    /// Who, whatever the key or certificate that lets them in.
    pub users: SetId,
    /// Who else with a certificate that names a principal.
    pub by_certificate: Vec<ByCertificate<'n>>,
    /// The client's entry, where its policy is known.
    pub(crate) entry: Option<(&'n HostPolicy, &'n ClientService)>,
    /// The server's service, where its policy is known.
    pub(crate) offered: Option<&'n Service>,
}

impl Right<'_> {
    /// Whether it is one from the host that is asked for by this name, as [`Network::decide`] has
    /// it: the host's own name here or, where no host here has that, the server's name for it.
    pub fn is_from(&self, network: &Network, client: &HostName) -> bool {
        self.client == client || network.is_called(client, self.client, self.server)
    }

    /// The same for the host whose service it is: its own name or, where no host here has that, the
    /// client's name for it.
    pub fn is_at(&self, network: &Network, server: &HostName) -> bool {
        self.server == server || network.is_called(server, self.server, self.client)
    }

    /// How its connections are made and served. Without routes: see [`Network::decide`].
    pub fn how(&self) -> How {
        How {
            port: Some(self.port),
            routes: Vec::new(),
            client: self.entry.map(|(host, entry)| {
                let block = host.policy.hosts.get(&entry.host);
                Request::of(entry, block)
            }),
            server: self.offered.map(Offer::of),
        }
    }
}

impl<'n> Universe<'n> {
    /// All rights by a network of this universe, ordered by server, service and client. No two have
    /// the same three.
    pub fn rights(&mut self, network: &'n Network) -> Vec<Right<'n>> {
        let mut rights = Vec::new();
        for client in network.hosts() {
            let mut acquaintances = HashMap::new();
            for entry in client.policy.client_services() {
                let permitted = self.at(client, self.of(entry.users.names()));
                let Some(block) = client.policy.hosts.get(&entry.host) else {
                    continue; // A checked policy has it.
                };
                let right = match network.host_by_key(&block.key) {
                    Some(server) => {
                        let acquaintance = acquaintances
                            .entry(&server.name)
                            .or_insert_with(|| Acquaintance::of(client, server));
                        self.agreed((client, entry), server, acquaintance, permitted)
                    }
                    // Called like a host that has another key: not that host, and no other.
                    None if network.host(&block.name).is_some() => None,
                    None => Some(Right {
                        client: &client.name,
                        service: &entry.service,
                        server: &entry.host,
                        port: entry.port,
                        known: Known::ClientOnly,
                        users: permitted,
                        by_certificate: Vec::new(),
                        entry: Some((client, entry)),
                        offered: None,
                    }),
                };
                rights.extend(right);
            }
        }
        for server in network.hosts() {
            for service in server.policy.services.values() {
                let admitted = self.admitted(server, service);
                let by_certificate = self.by_certificate((server, service), None, admitted);
                let blocks = service
                    .hosts
                    .iter()
                    .filter_map(|host| server.policy.hosts.get(host));
                let strangers = blocks.filter(|block| {
                    network.host_by_key(&block.key).is_none() && network.host(&block.name).is_none()
                });
                rights.extend(strangers.map(|block| Right {
                    client: &block.name,
                    service: &service.name,
                    server: &server.name,
                    port: service.listen,
                    known: Known::ServerOnly,
                    users: admitted,
                    by_certificate: by_certificate.clone(),
                    entry: None,
                    offered: Some(service),
                }));
            }
        }
        rights.retain(|right| right.users != SetId::NOBODY || !right.by_certificate.is_empty());
        rights.sort_by_key(|right| (right.server, right.service, right.client, right.known));
        rights
    }

    /// Where both sides are known and know each other.
    fn agreed(
        &mut self,
        (client, entry): (&'n HostPolicy, &'n ClientService),
        server: &'n HostPolicy,
        acquaintance: &Acquaintance<'n>,
        permitted: SetId,
    ) -> Option<Right<'n>> {
        let service = server.policy.services.get(&entry.service)?;
        let from_there = service.hosts.contains(&acquaintance.client?.name);
        let reachable = acquaintance.control_agrees && !acquaintance.routes.is_empty();
        if service.listen != entry.port || !from_there || !reachable {
            return None;
        }
        let admitted = self.admitted(server, service);
        let users = self.both(permitted, admitted);
        let by_certificate = self.by_certificate((server, service), Some(permitted), users);
        Some(Right {
            client: &client.name,
            service: &service.name,
            server: &server.name,
            port: entry.port,
            known: Known::Both,
            users,
            by_certificate,
            entry: Some((client, entry)),
            offered: Some(service),
        })
    }

    /// Whom a service admits by name, whatever the host.
    pub(crate) fn admitted(&mut self, server: &'n HostPolicy, service: &'n Service) -> SetId {
        let admitted = self.of(service.users.names());
        let enabled = self.at(server, admitted);
        match server.users.holders(&service.keys) {
            Holders::Everybody => enabled,
            Holders::These(users) => {
                let holders = self.of(users);
                self.both(enabled, holders)
            }
            Holders::Nobody => SetId::NOBODY,
        }
    }

    /// Those of a set who are not disabled on a host.
    pub(crate) fn at(&mut self, host: &'n HostPolicy, users: SetId) -> SetId {
        let disabled = self.of(&host.users.disabled);
        self.without(users, disabled)
    }
}
