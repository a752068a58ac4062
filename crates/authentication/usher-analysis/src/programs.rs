//! Compares `application` blocks of two hosts: traffic that one of them lets pass only protected, and
//! that nothing on the other protects.
//!
//! Which programs of two hosts speak with each other is not known. So only peers, ports and classes are
//! compared: what is reported can pass by no program of the other host, and what is not reported may
//! still fail, if the program that is meant has no block.

use std::collections::HashMap;
use std::num::NonZeroU16;

use usher_base::HostName;
use usher_language::AddressRange;
use usher_policy::Clause;
use usher_policy::protection::{
    APPLICATION, Application, Class, Level, Network as PeerNetwork, NetworkType, Profile,
    ProtectionItem,
};

use crate::disagreement::{Disagreement, Matter};
use crate::how::Route;
use crate::network::{Acquaintance, HostPolicy, Network};
use crate::protection::without_ike;

/// A network that protects traffic, with the addresses about which it decides.
struct Protecting<'n> {
    block: &'n Application,
    network: &'n PeerNetwork,
    ranges: Vec<AddressRange>,
    items: Vec<&'n ProtectionItem>,
}

/// Reports what no program of other hosts can have with programs of a host.
pub(crate) fn unanswered(network: &Network, found: &mut Vec<Disagreement>) {
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
                    match answers(other, &protecting[&other.name], host, item, &routes) {
                        true => answering.push((*other, acquaintance)),
                        false => silent.push(other.name.clone()),
                    }
                }
                let mut tell = |matter| {
                    found.push(Disagreement {
                        host: host.name.clone(),
                        clause: Clause::block(APPLICATION, one.block.name()),
                        matter,
                    });
                };
                // Of everybody, some may have nothing to do with the program.
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
