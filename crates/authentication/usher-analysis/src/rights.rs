//! All rights: for each client host, service and server host the set of users.

use std::collections::HashMap;

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_policy::protection::Application;
use usher_policy::{ClientService, Principal, Service};

use crate::certificates::ByCertificate;
use crate::how::{How, Offer, Request, programs_of};
use crate::network::{Acquaintance, Holders, HostPolicy, Network};
use crate::protection::{are_possible, of_another_class, protecting, unmet, without_sas};
use crate::sets::{SetId, Universe};

/// The sides whose policies establish a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// The policies of both sides.
    Both,
    /// The client's policy only; the server's is not known here.
    ClientOnly,
    /// The server's policy only; the client's is not known here.
    ServerOnly,
}

/// Users who may connect from a host to a service: at least one, by name or by a certificate.
#[derive(Clone, Debug)]
pub struct Right<'n> {
    /// The client host, by its name in this network.
    pub client: &'n HostName,
    /// The service.
    pub service: &'n ServiceName,
    /// The service's host, by its name in this network.
    pub server: &'n HostName,
    /// The port.
    pub port: u16,
    /// The sides whose policies are known.
    pub known: Known,
    /// The users, whatever key or certificate admits them.
    pub users: SetId,
    /// Further users, who need a certificate that names a principal.
    pub by_certificate: Vec<ByCertificate<'n>>,
    /// The client's entry, if its policy is known.
    pub(crate) entry: Option<(&'n HostPolicy, &'n ClientService)>,
    /// The server's service, if its policy is known.
    pub(crate) offered: Option<&'n Service>,
    /// The client's blocks that protect its connections as the service demands.
    pub(crate) protecting: Vec<&'n Application>,
}

impl<'n> Right<'n> {
    /// The principals of which a user's certificate must name one; none for a user who needs none,
    /// or may not use the service at all.
    pub fn principals_for(&self, universe: &Universe<'n>, user: &UserName) -> Vec<&'n Principal> {
        let may = |by: &&ByCertificate<'_>| {
            if universe.knows(user) {
                universe.contains(by.users, user)
            } else {
                by.anybody
                    && self
                        .offered
                        .is_some_and(|service| service.may_certify(user))
            }
        };
        let by_certificate = self.by_certificate.iter().filter(may);
        by_certificate.map(|by| by.principal).collect()
    }
}

impl Right<'_> {
    /// Whether its client host is asked for by this name, as in [`Network::decide`]: the host's own
    /// name here or, if no host here has that, the server's name for it.
    pub fn is_from(&self, network: &Network, client: &HostName) -> bool {
        self.client == client || network.is_called(client, self.client, self.server)
    }

    /// Whether its service's host is asked for by this name: the host's own name or, if no host here has
    /// that, the client's name for it.
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
            protected_programs: programs_of(&self.protecting),
        }
    }
}

impl<'n> Universe<'n> {
    /// All rights by a network of this universe, ordered by server, service and client. No two
    /// agree in all three.
    pub fn rights(&mut self, network: &'n Network) -> Vec<Right<'n>> {
        let mut rights = Vec::new();
        for client in network.hosts() {
            let mut acquaintances = HashMap::new();
            for entry in client.policy.client_services() {
                let permitted = self.at(client, self.of(entry.users.names()));
                let Some(block) = client.policy.hosts.get(&entry.host) else {
                    continue; // A checked policy has it.
                };
                let right = match network.host_of_block(block) {
                    Some(server) => {
                        let acquaintance = acquaintances
                            .entry(&server.name)
                            .or_insert_with(|| Acquaintance::of(client, server));
                        self.agreed((client, entry), server, acquaintance, permitted)
                    }
                    // The block has the name of a known host but another key, so it means neither this host
                    // nor another.
                    None if network.host(&block.name).is_some() => None,
                    None if !are_possible(&[(client, block)], Some(entry), None) => None,
                    None if !of_another_class(Some(((client, block), entry)), None).is_empty() => {
                        None
                    }
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
                        protecting: Vec::new(),
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
                    network.host_of_block(block).is_none()
                        && network.host(&block.name).is_none()
                        && are_possible(&[(server, *block)], None, Some(service))
                        && of_another_class(None, Some(((server, *block), service))).is_empty()
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
                    protecting: Vec::new(),
                }));
            }
        }
        rights.retain(|right| right.users != SetId::NOBODY || !right.by_certificate.is_empty());
        rights.sort_by_key(|right| (right.server, right.service, right.client, right.known));
        rights
    }

    /// The right, if both sides are known and know each other.
    fn agreed(
        &mut self,
        (client, entry): (&'n HostPolicy, &'n ClientService),
        server: &'n HostPolicy,
        acquaintance: &Acquaintance<'n>,
        permitted: SetId,
    ) -> Option<Right<'n>> {
        let service = server.policy.services.get(&entry.service)?;
        let (of_server, of_client) = (acquaintance.server?, acquaintance.client?);
        let from_there = service.hosts.contains(&of_client.name);
        let reachable = acquaintance.control_agrees && !acquaintance.routes.is_empty();
        if service.listen != entry.port || !from_there || !reachable {
            return None;
        }
        let routes = &acquaintance.routes;
        if unmet(client, &entry.host, routes, service).is_some()
            || without_sas(client, entry, server).is_some()
        {
            return None;
        }
        let sides = [(client, of_server), (server, of_client)];
        let has_class = || {
            let sides = (Some((sides[0], entry)), Some((sides[1], service)));
            of_another_class(sides.0, sides.1).is_empty()
        };
        let elsewhere = client.name != server.name;
        if elsewhere && !(are_possible(&sides, Some(entry), Some(service)) && has_class()) {
            return None;
        }
        let protecting = protecting(client, routes, service);
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
            protecting,
        })
    }

    /// The users whom a service admits by name, from any host.
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

    /// The users of a set who are not disabled on a host.
    pub(crate) fn at(&mut self, host: &'n HostPolicy, users: SetId) -> SetId {
        let disabled = self.of(&host.users.disabled);
        self.without(users, disabled)
    }
}
