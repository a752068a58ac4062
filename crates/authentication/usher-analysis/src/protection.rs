//! Compares the `protection` that a service demands with what the client's policy protects, program
//! by program; and that of a `client` block with the server's policy.

use usher_base::HostName;
use usher_policy::protection::{Application, Traffic};
use usher_policy::{ClientService, Service};

use crate::how::Route;
use crate::network::HostPolicy;
use crate::objection::Reason;

/// The client's `application` blocks that protect connections with the service by what it demands,
/// on one of the routes at least: in the order of the text. All of none, if it demands nothing.
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
    /// No item has it.
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
    (!server.policy.negotiates(kind)).then(|| Reason::NoSas {
        host: server.name.clone(),
        service: entry.service.clone(),
        client: client.name.clone(),
        wanted: kind,
    })
}
