//! Compares the `protection` that a service demands with what the client's policy protects, program by
//! program. Also compares the `protection` of a `client` block with the server's policy, and what both hosts
//! need to negotiate SAs with each other.

use usher_base::HostName;
use usher_policy::protection::{Application, Traffic, common_algorithm};
use usher_policy::{BlockKind, Clause, ClientService, Host, Service};

use crate::how::Route;
use crate::network::HostPolicy;
use crate::objection::{Objection, Reason};

/// The client's `application` blocks that protect connections with the service as it demands, on at least one
/// of the routes; in the order of the text. Empty if the service demands nothing.
///
/// A program that connects has a local port that the system chooses, so items with a local port
/// decide nothing.
pub(crate) fn protecting<'n>(
    client: &'n HostPolicy,
    routes: &[Route],
    service: &Service,
) -> Vec<&'n Application> {
    let Some(demanded) = &service.protection else {
        return Vec::new();
    };
    /// Stands for the port that the system chooses. No item names it.
    const CHOSEN: u16 = 0;
    let names = &client.policy.names;
    let protects = |block: &&Application, route: &Route| {
        let traffic = block.traffic(names, route.to, CHOSEN, service.listen);
        matches!(traffic, Traffic::Protect(item) if item.kind.includes(demanded.kind))
    };
    let blocks = client.policy.applications.iter();
    let blocks = blocks.filter(|block| routes.iter().any(|route| protects(block, route)));
    blocks.collect()
}

/// The objection if no program of the client is protected as the service demands. `server` is the
/// client's name for the service's host.
pub(crate) fn unmet(
    client: &HostPolicy,
    server: &HostName,
    routes: &[Route],
    service: &Service,
) -> Option<Reason> {
    let demanded = service.protection.as_ref()?.kind;
    if *server == client.name {
        return None; // Traffic that stays on a host needs no IPsec.
    }
    let at_port = client.policy.client_services();
    let mut at_port = at_port.filter(|entry| entry.host == *server && entry.port == service.listen);
    let by_client =
        at_port.any(|entry| entry.protection.is_some_and(|kind| kind.includes(demanded)));
    let by_none = !by_client && protecting(client, routes, service).is_empty();
    by_none.then(|| Reason::Unprotected {
        host: client.name.clone(),
        service: service.name.clone(),
        server: server.clone(),
        port: service.listen,
        demanded,
    })
}

/// The objection if the client protects its connections, and the server negotiates no SAs for them: its
/// programs cannot connect, except those that an `application` block has.
pub(crate) fn without_sas(
    client: &HostPolicy,
    entry: &ClientService,
    server: &HostPolicy,
) -> Option<Reason> {
    let kind = entry.protection?;
    let elsewhere = client.name != server.name;
    (elsewhere && !server.policy.negotiates(kind)).then(|| Reason::NoSas {
        host: server.name.clone(),
        service: entry.service.clone(),
        client: client.name.clone(),
        wanted: kind,
    })
}

/// Whether connections of an entry with a service need SAs between the two hosts, as far as the
/// policies are known.
pub(crate) fn needs_sas(entry: Option<&ClientService>, service: Option<&Service>) -> bool {
    entry.is_some_and(|entry| entry.protection.is_some())
        || service.is_some_and(|service| service.protection.is_some())
}

/// A host with its block for the other host of a connection.
pub(crate) type Side<'s> = (&'s HostPolicy, &'s Host);

/// The objections if the other host is `unlabelled` with another class than a connection's SAs need: on the
/// client with another one than the entry's, on the server with one that does not include what the service
/// demands.
pub(crate) fn of_another_class(
    client: Option<(Side<'_>, &ClientService)>,
    server: Option<(Side<'_>, &Service)>,
) -> Vec<Objection> {
    let by_client = client.and_then(|(side, entry)| {
        let wanted = entry.protection?;
        let only = side.1.unlabelled.filter(|only| *only != wanted)?;
        Some((side, wanted, only))
    });
    let by_server = server.and_then(|(side, service)| {
        let wanted = service.protection.as_ref()?.kind;
        let only = side.1.unlabelled.filter(|only| !only.includes(wanted))?;
        Some((side, wanted, only))
    });
    let objected = by_client.into_iter().chain(by_server);
    objected
        .map(|((host, other), wanted, only)| Objection {
            host: host.name.clone(),
            reason: Reason::OnlyClass {
                host: host.name.clone(),
                of: other.name.clone(),
                wanted,
                only,
            },
            clauses: vec![Clause::statement(
                BlockKind::Host,
                &other.name,
                "unlabelled",
            )],
        })
        .collect()
}

/// Whether two hosts can negotiate the SAs that an entry or a service needs, or none are needed.
pub(crate) fn are_possible(
    sides: &[(&HostPolicy, &Host)],
    entry: Option<&ClientService>,
    service: Option<&Service>,
) -> bool {
    !needs_sas(entry, service) || without_ike(sides).is_empty()
}

/// The reasons why two hosts cannot negotiate SAs with each other: of each whose policy is known, with its
/// block for the other. The keys are those of the policies. Which of two keys of one algorithm a host uses
/// during a replacement is not known here.
pub(crate) fn without_ike(sides: &[(&HostPolicy, &Host)]) -> Vec<Objection> {
    let mut objections = Vec::new();
    let mut object = |host: &HostPolicy, block: &Host, reason| {
        objections.push(Objection {
            host: host.name.clone(),
            reason,
            clauses: vec![Clause::block(BlockKind::Host, &block.name)],
        });
    };
    for &(host, other) in sides {
        let own = host.own();
        let both_have = !own.ike_keys.is_empty() && !other.ike_keys.is_empty();
        if both_have && !own.shares_ike(other) {
            let reason = Reason::NoCommonIkeAlgorithm {
                host: host.name.clone(),
                other: other.name.clone(),
            };
            object(host, other, reason);
        }
        for block in [own, other] {
            if block.ike_keys.is_empty() {
                let reason = Reason::NoIkeKey {
                    host: host.name.clone(),
                    of: block.name.clone(),
                    other: other.name.clone(),
                };
                object(host, block, reason);
            }
        }
    }
    let &[(one, of_other), (other, of_one)] = sides else {
        return objections;
    };
    let chosen =
        |host: &HostPolicy, block: &Host| common_algorithm(&host.own().ike_keys, &block.ike_keys);
    // A host that chooses no key has its objection above.
    let [by_one, by_other] = [chosen(one, of_other), chosen(other, of_one)];
    if let (Some(used), Some(expected)) = (by_one, by_other)
        && used != expected
    {
        let reason = Reason::IkeAlgorithmDiffers {
            host: one.name.clone(),
            used,
            other: other.name.clone(),
            expected,
        };
        object(one, of_other, reason);
    }
    for (host, block, other) in [(one, of_other, other), (other, of_one, one)] {
        let (own, names) = (other.own(), (host.name.clone(), block.name.clone()));
        let used = block.ike_keys.iter();
        let mut used = used.filter(|key| Some(key.algorithm()) == by_one);
        if by_one.is_some() && by_one == by_other && !used.any(|key| own.ike_keys.contains(key)) {
            let (host_name, block_name) = names.clone();
            let reason = Reason::IkeKeyDiffers {
                host: host_name,
                other: other.name.clone(),
                block: block_name,
            };
            object(host, block, reason);
        }
        if block.name != other.name {
            let reason = Reason::IkeNameDiffers {
                host: names.0,
                other: other.name.clone(),
                block: names.1,
            };
            object(host, block, reason);
        }
    }
    objections
}
