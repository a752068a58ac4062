//! Contradictions between the policies of several hosts: clauses of one side that the other makes
//! void.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use serde::Serialize;
use usher_base::{HostName, ServiceName};
use usher_language::AddressRange;
use usher_policy::protection::{
    APPLICATION, Application, Class, Level, Network as PeerNetwork, NetworkType, Profile,
    ProtectionItem,
};
use usher_policy::{BlockKind, Clause, Client, ClientService, Host, joined};
use usher_proto::HostPublicKey;

use crate::decision::target;
use crate::how::Route;
use crate::network::{Acquaintance, HostPolicy, Network};
use crate::objection::Reason;
use crate::protection::{needs_sas, of_another_class, unmet, without_ike, without_sas};
use crate::sets::{Sample, SetId, Universe};

/// A clause of one host's policy that another's contradicts. It permits less than it seems to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disagreement {
    /// The host of the clause.
    pub host: HostName,
    /// The clause.
    pub clause: Clause,
    /// The contradiction.
    #[serde(flatten)]
    pub matter: Matter,
}

/// Contradictions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "matter", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are named for what they are")]
pub enum Matter {
    /// No user is permitted, for a reason that would also refuse a single connection.
    #[error("{reason}")]
    Refused { reason: Reason },
    /// A host's addresses for another differ from the other's own.
    #[error(
        "{host} has the address {} for {other}, which has {} for itself",
        joined(.said, ", "),
        joined(.own, ", ")
    )]
    AddressesDiffer {
        host: HostName,
        other: HostName,
        said: Vec<IpAddr>,
        own: Vec<IpAddr>,
    },
    /// A host's keys for another are not all of the other's own, or more: the other is replacing its key.
    #[error(
        "{host} has the key {} for {other}, which has {} for itself",
        joined(.said, ", "),
        joined(.own, ", ")
    )]
    KeysDiffer {
        host: HostName,
        other: HostName,
        said: Vec<String>,
        own: Vec<String>,
    },
    /// A host uses another name for another host.
    #[error("{host} calls the host {other} `{said}`")]
    NamesDiffer {
        host: HostName,
        other: HostName,
        said: HostName,
    },
    /// The client permits users whom the server does not admit.
    #[error("{client} permits {}, whom {service} of {server} does not admit", .users)]
    NotAdmitted {
        client: HostName,
        service: ServiceName,
        server: HostName,
        users: Arc<Sample>,
    },
    /// The server admits users whom the client does not permit.
    #[error("{service} of {server} admits {} from {client}, which does not permit it", .users)]
    NotPermitted {
        client: HostName,
        service: ServiceName,
        server: HostName,
        users: Arc<Sample>,
    },
    /// A program's traffic passes only with a protection that nothing on the other hosts gives it.
    #[error(
        "`application {application}` of {host} demands `{item}`, and no block of {} protects traffic \
         with {host} like that: none of it passes",
        first(.others)
    )]
    NotAnswered {
        host: HostName,
        application: String,
        item: String,
        others: Vec<HostName>,
    },
}

/// The first names, as many as a reader needs, and the number of the others.
fn first(hosts: &[HostName]) -> String {
    const SHOWN: usize = 8;
    let names = joined(hosts.iter().take(SHOWN), ", ");
    match hosts.len().saturating_sub(SHOWN) {
        0 => names,
        rest => format!("{names} and {rest} more"),
    }
}

impl<'n> Universe<'n> {
    /// The contradictions between the policies of a network of this universe, by host. Users who
    /// are disabled, lack a key or need a certificate are not contradictions. Neither is a service
    /// of an admitting host for which the admitted host has no `client` block. `application` blocks
    /// are compared by peers, ports and class: which programs speak with each other is not known.
    pub fn disagreements(&mut self, network: &'n Network) -> Vec<Disagreement> {
        let mut found = Vec::new();
        for host in network.hosts() {
            for other in network.hosts().filter(|other| other.name != host.name) {
                acquaintance_of(host, other, &mut found);
            }
            let mut acquaintances = HashMap::new();
            for client in host.policy.clients.values() {
                for entry in &client.services {
                    let block = host.policy.hosts.get(&entry.host);
                    let server = block.and_then(|block| network.host_of_block(block));
                    if let Some(server) = server {
                        let acquaintance = acquaintances
                            .entry(&server.name)
                            .or_insert_with(|| Acquaintance::of(host, server));
                        self.entry((host, client, entry), server, acquaintance, &mut found);
                    }
                }
            }
        }
        unanswered(network, &mut found);
        found
    }

    fn entry(
        &mut self,
        (host, client, entry): (&'n HostPolicy, &'n Client, &'n ClientService),
        server: &'n HostPolicy,
        acquaintance: &Acquaintance<'n>,
        found: &mut Vec<Disagreement>,
    ) {
        let mut tell = |matter| {
            found.push(Disagreement {
                host: host.name.clone(),
                clause: target(client, entry),
                matter,
            });
        };
        let refused = |reason| Matter::Refused { reason };
        let Some(service) = server.policy.services.get(&entry.service) else {
            return tell(refused(Reason::NoService {
                host: server.name.clone(),
                service: entry.service.clone(),
            }));
        };
        if service.listen != entry.port {
            return tell(refused(Reason::PortDiffers {
                host: host.name.clone(),
                port: entry.port,
                offered: service.listen,
            }));
        }
        match acquaintance.client {
            None => {
                return tell(refused(Reason::HostUnknown {
                    host: server.name.clone(),
                    other: host.name.clone(),
                }));
            }
            Some(block) if !service.hosts.contains(&block.name) => {
                return tell(refused(Reason::HostNotAdmitted {
                    host: server.name.clone(),
                    service: service.name.clone(),
                    client: block.name.clone(),
                }));
            }
            Some(_) if acquaintance.routes.is_empty() => {
                return tell(refused(Reason::NoCommonAddress {
                    client: host.name.clone(),
                    server: server.name.clone(),
                    host: host.name.clone(),
                    block: entry.host.clone(),
                }));
            }
            Some(of_host) => {
                let (routes, server_block) = (&acquaintance.routes, &entry.host);
                let unmet = unmet(host, server_block, routes, service);
                if let Some(reason) = unmet.or_else(|| without_sas(host, entry, server)) {
                    return tell(refused(reason));
                }
                let elsewhere = host.name != server.name;
                let needed = elsewhere && needs_sas(Some(entry), Some(service));
                if let Some(of_server) = acquaintance.server.filter(|_| needed) {
                    let sides = [(host, of_server), (server, of_host)];
                    let mut objections = without_ike(&sides);
                    let (client, server) = ((sides[0], entry), (sides[1], service));
                    objections.extend(of_another_class(Some(client), Some(server)));
                    if !objections.is_empty() {
                        let reasons = objections.into_iter().map(|objection| objection.reason);
                        return reasons.for_each(|reason| tell(refused(reason)));
                    }
                }
            }
        }
        let (permitted, admitted) = (self.of(entry.users.names()), self.of(service.users.names()));
        let not_admitted = if service.users.principals().is_empty() {
            self.without(permitted, admitted)
        } else {
            // Lacking a certificate is like lacking a key, except for users whom no certificate
            // admits.

            let barred = self.not_certifiable(service);
            let barred = self.both(permitted, barred);
            self.without(barred, admitted)
        };
        let not_permitted = self.without(admitted, permitted);
        if not_admitted != SetId::NOBODY {
            let users = self.sample(not_admitted);
            tell(Matter::NotAdmitted {
                client: host.name.clone(),
                service: service.name.clone(),
                server: server.name.clone(),
                users,
            });
        }
        if not_permitted != SetId::NOBODY {
            found.push(Disagreement {
                host: server.name.clone(),
                clause: Clause::statement(BlockKind::Service, &service.name, "users"),
                matter: Matter::NotPermitted {
                    client: host.name.clone(),
                    service: service.name.clone(),
                    server: server.name.clone(),
                    users: self.sample(not_permitted),
                },
            });
        }
    }
}

/// Compares a host's clauses about another with the other's own.
fn acquaintance_of(host: &HostPolicy, other: &HostPolicy, found: &mut Vec<Disagreement>) {
    let mut tell = |block: &Host, keyword: &str, matter| {
        found.push(Disagreement {
            host: host.name.clone(),
            clause: Clause::statement(BlockKind::Host, &block.name, keyword),
            matter,
        });
    };
    let (own, names) = (other.own(), || (host.name.clone(), other.name.clone()));
    let Some(block) = host.block_of(other) else {
        // A host need not know every other one. But a different key under the other's name is a
        // contradiction.
        if let Some(block) = host.policy.hosts.get(&other.name) {
            let (host, other) = names();
            let reason = Reason::KeyDiffers { host, other };
            tell(block, "key", Matter::Refused { reason });
        }
        return;
    };
    if block.name != other.name {
        let ((host, other), said) = (names(), block.name.clone());
        tell(block, "", Matter::NamesDiffer { host, other, said });
    }
    let is_own = |key| own.keys.contains(key);
    if block.keys.len() != own.keys.len() || !block.keys.iter().all(is_own) {
        let ((host, other), fingerprints) = (names(), |of: &Host| {
            let keys = of.keys.iter();
            keys.map(HostPublicKey::fingerprint).collect()
        });
        let (said, own) = (fingerprints(block), fingerprints(own));
        let matter = Matter::KeysDiffer {
            host,
            other,
            said,
            own,
        };
        tell(block, "key", matter);
    }
    if block.control != own.control {
        let (host, other) = names();
        let reason = Reason::ControlDiffers {
            host,
            other,
            block: block.name.clone(),
            port: block.control,
            own: own.control,
        };
        tell(block, "control", Matter::Refused { reason });
    }
    if block
        .addresses
        .iter()
        .any(|address| !own.addresses.contains(address))
    {
        let (host, other) = names();
        let (said, own) = (block.addresses.clone(), own.addresses.clone());
        let matter = Matter::AddressesDiffer {
            host,
            other,
            said,
            own,
        };
        tell(block, "address", matter);
    }
}

/// A network that protects traffic, with the addresses about which it decides.
struct Protecting<'n> {
    block: &'n Application,
    network: &'n PeerNetwork,
    ranges: Vec<AddressRange>,
    items: Vec<&'n ProtectionItem>,
}

/// Reports protected traffic that no program of other hosts can have with programs of a host. It is not known
/// which programs of two hosts speak with each other, so only peers, ports and classes are compared. Reported
/// traffic passes with no program; other traffic may still fail, if the program that is meant has no block.
fn unanswered(network: &Network, found: &mut Vec<Disagreement>) {
    let hosts = || network.hosts();
    let protecting: HashMap<&HostName, Vec<Protecting<'_>>> =
        hosts().map(|host| (&host.name, protecting(host))).collect();
    for host in hosts() {
        let of_host = &protecting[&host.name];
        if of_host.is_empty() {
            continue;
        }
        let others = hosts().filter(|other| other.name != host.name);
        let others: Vec<(&HostPolicy, Acquaintance<'_>)> = others
            .map(|other| (other, Acquaintance::of(host, other)))
            .collect();
        for one in of_host {
            let mandatory = one
                .items
                .iter()
                .filter(|item| item.level == Level::Mandatory);
            for item in mandatory {
                let (mut answering, mut silent) = (Vec::new(), Vec::new());
                for (other, acquaintance) in &others {
                    let is_of_it = |route: &&Route| has(&one.ranges, route);
                    let routes = acquaintance.routes.iter().filter(is_of_it);
                    let routes: Vec<&Route> = routes.collect();
                    if routes.is_empty() {
                        continue;
                    }
                    if answers(other, &protecting[&other.name], host, item, &routes) {
                        answering.push((*other, acquaintance))
                    } else {
                        silent.push(other.name.clone())
                    }
                }
                let mut tell = |matter| {
                    found.push(Disagreement {
                        host: host.name.clone(),
                        clause: Clause::block(APPLICATION, one.block.name()),
                        matter,
                    });
                };
                // If the peers are everybody, some may have nothing to do with the program.
                if !silent.is_empty() && (!one.network.peers.is_everybody() || answering.is_empty())
                {
                    tell(Matter::NotAnswered {
                        host: host.name.clone(),
                        application: one.block.name(),
                        item: item.to_string(),
                        others: silent,
                    });
                }
                for (other, acquaintance) in answering {
                    if let (Some(block), Some(own)) = (acquaintance.server, acquaintance.client) {
                        let objections = without_ike(&[(host, block), (other, own)]);
                        for objection in objections {
                            let reason = objection.reason;
                            tell(Matter::Refused { reason });
                        }
                    }
                }
            }
        }
    }
}

fn protecting(host: &HostPolicy) -> Vec<Protecting<'_>> {
    let policy = &host.policy;
    let blocks = policy.applications.iter();
    let networks = blocks.flat_map(|block| {
        let networks = block.deciding(&policy.names).apart().into_iter();
        networks.filter_map(move |(network, ranges)| {
            let NetworkType::Protected(name) = &network.network_type else {
                return None;
            };
            Some(Protecting {
                block,
                network,
                ranges,
                items: block.protections.get(name)?.deciding(),
            })
        })
    });
    networks.collect()
}

fn has(ranges: &[AddressRange], route: &Route) -> bool {
    ranges.iter().any(|range| range.contains(route.to))
}

/// Whether anything on `other` protects traffic with `host` as an item of `host` demands.
fn answers(
    other: &HostPolicy,
    protecting: &[Protecting<'_>],
    host: &HostPolicy,
    item: &ProtectionItem,
    routes: &[&Route],
) -> bool {
    let fits = |one: Option<NonZeroU16>, port: Option<NonZeroU16>| {
        one.is_none() || port.is_none() || one == port
    };
    let port = |port: u16| NonZeroU16::new(port);
    let class = item.class();
    let mut of_programs = protecting.iter();
    let by_program = of_programs.any(|one| {
        let reaches = |route: &&Route| one.ranges.iter().any(|range| range.contains(route.from));
        let same = |own: &&ProtectionItem| {
            own.class() == class && fits(own.remote, item.local) && fits(own.local, item.remote)
        };
        routes.iter().any(reaches) && one.items.iter().any(same)
    });
    let block = other.block_of(host).map(|block| &block.name);
    let mut entries = other.policy.client_services();
    let by_client = entries.any(|entry| {
        let given = entry
            .protection
            .map(|kind| Class::new(kind, Profile::Standard));
        given == Some(class) && Some(&entry.host) == block && fits(item.local, port(entry.port))
    });
    let mut services = other.policy.protected_services().into_iter();
    let by_service = services
        .any(|service| service.classes.contains(&class) && fits(item.remote, port(service.port)));
    by_program || by_client || by_service
}
