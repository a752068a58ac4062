//! Whether what policies are expected to permit and to refuse is so, with what shows it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use usher_policy::{Expectation, Place, Policy, UnknownName};
use usher_proto::{HostName, ServiceName};

use crate::decision::{Decision, Question, Verdict};
use crate::network::{HostPolicy, Network};

/// Most decisions told of one expectation that does not hold.
pub const MAXIMUM_EXAMPLES: usize = 5;

/// What came of one `expect` statement.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Whose policy expects it.
    pub host: HostName,
    /// What is expected, and where that stands.
    pub expectation: Expectation,
    /// Whether it is so.
    pub result: Expected,
    /// Names in it that the policy lacks. It fails by them: what is refused to a name that no policy
    /// has would hold whatever the policy says.
    pub unknown: Vec<UnknownName>,
    /// Connections that show it, or of which it is not known; the first of them. None where it holds
    /// or where no host offers the service.
    pub examples: Vec<Decision>,
}

/// Whether it is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// It is so, whatever other policies say.
    Holds,
    /// It is not.
    Fails,
    /// Nothing that is known contradicts it, and not everything is known.
    NotKnown,
}

impl Network {
    /// Tries the expectations of all hosts' policies, in the order of hosts and texts.
    ///
    /// What an expectation leaves out stands for all that it could be: hosts that its policy knows,
    /// and of these the ones that offer the service. `permit` holds when one of these connections is
    /// permitted, `refuse` when none is. Of one that takes a certificate with some principal neither is
    /// known.
    pub fn try_expectations(&self) -> Vec<Outcome> {
        let hosts = self.hosts();
        hosts
            .flat_map(|host| {
                let mut unknown = unknown_names(host);
                let expectations = host.policy.expectations.iter();
                expectations.map(move |expectation| {
                    match unknown.remove(&expectation.origin.place) {
                        Some(unknown) => Outcome {
                            host: host.name.clone(),
                            expectation: expectation.clone(),
                            result: Expected::Fails,
                            unknown,
                            examples: Vec::new(),
                        },
                        None => self.try_one(host, expectation),
                    }
                })
            })
            .collect()
    }

    fn try_one(&self, host: &HostPolicy, expectation: &Expectation) -> Outcome {
        let policy = &host.policy;
        let clients: Vec<&HostName> = match &expectation.from {
            Some(client) => vec![client],
            None => policy.hosts.keys().collect(),
        };
        let servers: BTreeSet<&HostName> = match &expectation.at {
            Some(server) => [server].into(),
            None => self.servers(policy, &expectation.service),
        };
        let (mut permitted, mut refused, mut not_known) = (Vec::new(), Vec::new(), Vec::new());
        // Pairs of hosts of which no policy is known, so that there is nothing to tell of them.
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
                // A certificate may permit it, and may not exist.
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
        Outcome {
            host: host.name.clone(),
            expectation: expectation.clone(),
            result,
            unknown: Vec::new(),
            examples,
        }
    }

    /// The hosts of a policy that offer a service: by their own policies, or, where these are not
    /// known, by a `client` block of this one.
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

/// The names that expectations of a host's policy have and the policy lacks, by the statements'
/// places.
fn unknown_names(host: &HostPolicy) -> BTreeMap<Place, Vec<UnknownName>> {
    let mut unknown: BTreeMap<Place, Vec<UnknownName>> = BTreeMap::new();
    for name in host.policy.unknown_names() {
        unknown.entry(name.place.clone()).or_default().push(name);
    }
    unknown
}
