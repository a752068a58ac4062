//! `protection` of a service, as far as the client's policy can meet it: which of its programs have
//! their traffic with the service protected.

use usher_base::HostName;
use usher_policy::Service;
use usher_policy::protection::{Application, Traffic};

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

/// That no program of the client is protected as the service demands.
pub(crate) fn unmet(
    client: &HostPolicy,
    server: &HostName,
    routes: &[Route],
    service: &Service,
) -> Option<Reason> {
    let demanded = service.protection.as_ref()?.kind;
    protecting(client, routes, service)
        .is_empty()
        .then(|| Reason::Unprotected {
            host: client.name.clone(),
            service: service.name.clone(),
            server: server.clone(),
            port: service.listen,
            demanded,
        })
}
