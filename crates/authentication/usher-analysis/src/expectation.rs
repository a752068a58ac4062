//! Tests whether policies permit and refuse what they are expected to, with examples.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use usher_base::{HostName, ServiceName};
use usher_policy::{Expectation, Place, Policy, UnknownName};

use crate::decision::{Decision, Verdict};
use crate::network::{HostPolicy, Network};
use crate::question::Question;

/// Limit of examples for one expectation that does not hold.
pub const MAXIMUM_EXAMPLES: usize = 5;

/// The outcome of one `expect` statement.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The host whose policy has the statement.
    pub host: HostName,
    /// The expectation, and its place.
    pub expectation: Expectation,
    /// The result.
    pub result: Expected,
    /// Names in the statement that the policy lacks. They make it fail: a refusal to an unknown
    /// name would hold whatever the policy says.
    pub unknown: Vec<UnknownName>,
    /// The first connections that show the failure or are undecided. None if the expectation holds,
    /// or if no host offers the service.
    pub examples: Vec<Decision>,
}

/// The result of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// The expectation holds, whatever other policies say.
    Holds,
    /// The expectation does not hold.
    Fails,
    /// No known policy contradicts it, but some are unknown.
    NotKnown,
}

impl Network {
    /// Tests the expectations of all hosts' policies, in the order of hosts and texts.
    ///
    /// Without a client host, an expectation is about all hosts that its policy knows; without a server,
    /// about all of these that offer the service. `permit` holds if one of these connections is permitted,
    /// `refuse` if none is. Neither result is known if it depends on a certificate.
    pub fn try_expectations(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for host in self.hosts() {
            let mut unknown = unknown_names(host);
            for expectation in &host.policy.expectations {
                let unknown = unknown.remove(&expectation.origin.place);
                let (result, examples) = match unknown {
                    Some(_) => (Expected::Fails, Vec::new()),
                    None => self.try_one(&host.policy, expectation),
                };
                outcomes.push(Outcome {
                    host: host.name.clone(),
                    expectation: expectation.clone(),
                    result,
                    unknown: unknown.unwrap_or_default(),
                    examples,
                });
            }
        }
        outcomes
    }

    fn try_one(&self, policy: &Policy, expectation: &Expectation) -> (Expected, Vec<Decision>) {
        let clients: Vec<&HostName> = match &expectation.from {
            Some(client) => vec![client],
            None => policy.hosts.keys().collect(),
        };
        let servers: BTreeSet<&HostName> = match &expectation.at {
            Some(server) => [server].into(),
            None => self.servers(policy, &expectation.service),
        };
        let (mut permitted, mut refused, mut not_known) = (Vec::new(), Vec::new(), Vec::new());
        // Whether some pair has no known policy: such pairs have no decision to report.
        let mut nothing_known = false;
        for (server, client) in servers
            .iter()
            .flat_map(|server| clients.iter().map(move |client| (server, client)))
        {
            let question = Question {
                user: expectation.user.clone(),
                client: self.as_called_here(policy, client).clone(),
                service: expectation.service.clone(),
                server: self.as_called_here(policy, server).clone(),
                port: expectation.port,
            };
            let Ok(decision) = self.decide(&question) else {
                nothing_known = true;
                continue;
            };
            match decision.verdict {
                Verdict::Permitted => permitted.push(decision),
                // A certificate may permit the connection, and may not exist.
                Verdict::NotRefusedHere | Verdict::WithCertificate => not_known.push(decision),
                Verdict::Refused => refused.push(decision),
            }
        }
        let is_known = not_known.is_empty() && !nothing_known;
        let (result, mut examples) = match (expectation.permit, permitted.is_empty(), is_known) {
            (true, false, _) | (false, true, true) => (Expected::Holds, Vec::new()),
            (true, true, true) => (Expected::Fails, refused),
            (false, false, _) => (Expected::Fails, permitted),
            (_, true, false) => (Expected::NotKnown, not_known),
        };
        examples.truncate(MAXIMUM_EXAMPLES);
        (result, examples)
    }

    /// The hosts of a policy that offer a service, by their own policies or, if these are unknown,
    /// by a `client` block of this one.
    fn servers<'p>(&self, policy: &'p Policy, service: &ServiceName) -> BTreeSet<&'p HostName> {
        let offers = |name: &&HostName| match self.host(self.as_called_here(policy, name)) {
            Some(host) => host.policy.services.contains_key(service),
            None => policy
                .client_services()
                .any(|entry| entry.host == **name && entry.service == *service),
        };
        policy.hosts.keys().filter(offers).collect()
    }
}

/// The unknown names in the expectations of a host's policy, by the statements' places.
fn unknown_names(host: &HostPolicy) -> BTreeMap<Place, Vec<UnknownName>> {
    let mut unknown: BTreeMap<Place, Vec<UnknownName>> = BTreeMap::new();
    for name in host.policy.unknown_names() {
        unknown.entry(name.place.clone()).or_default().push(name);
    }
    unknown
}
