//! Decides whether a user of one host may reach a service of another, and names the deciding
//! clauses.

use serde::Serialize;
use usher_base::HostName;
use usher_policy::protection::APPLICATION;
use usher_policy::{
    BlockKind, Clause, Client, ClientService, ClientUse, Host, Name, Principal, Service,
    ServiceUse, TrustedPrincipal,
};

use crate::how::{How, Offer, Request, programs_of};
use crate::network::{Acquaintance, HostPolicy, Network};
use crate::objection::{Objection, Reason};
use crate::protection::{needs_sas, of_another_class, protecting, unmet, without_ike, without_sas};
use crate::question::Question;

/// The policies of a network are those of one time ([`Policy::at`](usher_policy::Policy::at)): a
/// guest whom `at` has kept is a user at any time.
const AS_IT_IS: u64 = 0;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Both sides permit the connection.
    Permitted,
    /// The known side permits the connection; the other side's policy is not known here.
    NotRefusedHere,
    /// The connection is permitted, or not refused by the known side, if the user has a certificate that
    /// names one of [`Decision::principals`]. Otherwise it is refused.
    WithCertificate,
    /// At least one side refuses the connection.
    Refused,
}

/// A permitting clause, and its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ground {
    /// The host of the policy.
    pub host: HostName,
    /// The clause.
    pub clause: Clause,
}

/// The answer with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The question, with the hosts' names in this network.
    pub question: Question,
    /// The answer.
    pub verdict: Verdict,
    /// Hosts of the question whose policies are not known here.
    pub not_known: Vec<HostName>,
    /// The principals of which the user's certificate must name one; empty if none is needed, or if
    /// none would help on the server.
    pub principals: Vec<Principal>,
    /// The reasons against the connection; empty unless it is refused.
    pub objections: Vec<Objection>,
    /// The clauses of each side in favour of the connection, whatever the verdict.
    pub grounds: Vec<Ground>,
    /// How the connection is made and served, as far as the policies define it.
    pub how: How,
}

/// The policies of both hosts are unknown here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy of neither {client} nor {server} is known here")]
pub struct NothingKnown {
    /// The client's host.
    pub client: HostName,
    /// The server's host.
    pub server: HostName,
}

impl Network {
    /// Decides a connection.
    ///
    /// # Errors
    /// [`NothingKnown`].
    pub fn decide(&self, question: &Question) -> Result<Decision, NothingKnown> {
        let mut question = question.clone();
        // The question may use the other side's name for a host.
        if let Some(client) = self.host(&question.client) {
            let server = self.as_called_here(&client.policy, &question.server);
            if self.host(&question.server).is_none() {
                question.server = server.clone();
            }
        } else if let Some(server) = self.host(&question.server) {
            question.client = self
                .as_called_here(&server.policy, &question.client)
                .clone();
        }
        let (client, server) = (self.host(&question.client), self.host(&question.server));
        if client.is_none() && server.is_none() {
            let Question { client, server, .. } = question;
            return Err(NothingKnown { client, server });
        }
        let mut case = Case {
            question: &question,
            principals: Vec::new(),
            objections: Vec::new(),
            grounds: Vec::new(),
            how: How::default(),
        };
        let acquaintance = client
            .zip(server)
            .map(|(client, server)| Acquaintance::of(client, server));
        // The client's block for the server, and the server's for the client.
        let blocks = match &acquaintance {
            Some(acquaintance) => (acquaintance.server, acquaintance.client),
            None => (
                client.and_then(|client| client.policy.hosts.get(&question.server)),
                server.and_then(|server| server.policy.hosts.get(&question.client)),
            ),
        };
        let entry = client.and_then(|client| case.ask_client(client, blocks.0));
        let service = server.and_then(|server| case.ask_server(server, blocks.1));
        case.ask_port(entry, service);
        if question.client != question.server && needs_sas(entry.map(|(_, entry)| entry), service) {
            let sides = [client.zip(blocks.0), server.zip(blocks.1)];
            let sides: Vec<(&HostPolicy, &Host)> = sides.into_iter().flatten().collect();
            case.objections.extend(without_ike(&sides));
            let by_client = client.zip(blocks.0).zip(entry.map(|(_, entry)| entry));
            let by_server = server.zip(blocks.1).zip(service);
            case.objections
                .extend(of_another_class(by_client, by_server));
        }
        if let (Some(acquaintance), Some(client), Some(server)) = (acquaintance, client, server) {
            case.ask_both((client, server), service, acquaintance);
        }
        let (principals, objections) = (case.principals, case.objections);
        let (grounds, how) = (case.grounds, case.how);
        let missing = |name: &HostName| self.host(name).is_none().then(|| name.clone());
        let not_known: Vec<HostName> = [&question.client, &question.server]
            .into_iter()
            .filter_map(missing)
            .collect();
        let verdict = match (objections.is_empty(), not_known.is_empty()) {
            (false, _) => Verdict::Refused,
            (true, _) if !principals.is_empty() => Verdict::WithCertificate,
            (true, true) => Verdict::Permitted,
            (true, false) => Verdict::NotRefusedHere,
        };
        Ok(Decision {
            question,
            verdict,
            not_known,
            principals,
            objections,
            grounds,
            how,
        })
    }
}

/// A decision in progress.
pub(crate) struct Case<'q> {
    pub(crate) question: &'q Question,
    pub(crate) principals: Vec<Principal>,
    objections: Vec<Objection>,
    grounds: Vec<Ground>,
    how: How,
}

impl Case<'_> {
    fn object(&mut self, host: &HostName, reason: Reason, clauses: Vec<Clause>) {
        self.objections.push(Objection {
            host: host.clone(),
            reason,
            clauses,
        });
    }

    pub(crate) fn ground(&mut self, host: &HostPolicy, clause: Clause) {
        self.grounds.push(Ground {
            host: host.name.clone(),
            clause,
        });
    }

    /// The other host's block in a host's policy.
    fn known<'n>(
        &mut self,
        host: &'n HostPolicy,
        other: &HostName,
        block: Option<&'n Host>,
    ) -> Option<&'n Host> {
        if let Some(block) = block {
            self.ground(host, Clause::statement(BlockKind::Host, &block.name, "key"));
            return Some(block);
        }
        let (own, other) = (host.name.clone(), other.clone());
        if host.policy.hosts.contains_key(&other) {
            let clause = Clause::statement(BlockKind::Host, &other, "key");
            let reason = Reason::KeyDiffers { host: own, other };
            self.object(&host.name, reason, vec![clause]);
        } else {
            let reason = Reason::HostUnknown { host: own, other };
            self.object(&host.name, reason, Vec::new());
        }
        None
    }

    fn ask_client<'n>(
        &mut self,
        host: &'n HostPolicy,
        server: Option<&'n Host>,
    ) -> Option<(&'n Client, &'n ClientService)> {
        self.ask_disabled(host);
        let server = self.known(host, &self.question.server, server)?;
        let question = self.question;
        let case = host.policy.client_case(ClientUse {
            user: &question.user,
            host: &server.name,
            service: &question.service,
            now: AS_IT_IS,
        });
        self.object_by_policy(host, &server.name, case.objections());
        let (client, entry) = case.entry?;
        self.ground(host, target(client, entry));
        if entry.users.has(&question.user, AS_IT_IS) {
            let block = (BlockKind::Client, client.name.as_ref());
            self.ground_user(host, block, client.user_blocks.iter());
        }
        for keyword in ["programs", "protocol", "key", "protection"] {
            let clause = Clause::statement(BlockKind::Client, &client.name, keyword);
            self.ground(host, clause);
        }
        self.how.client = Some(Request::of(entry, Some(server)));
        Some((client, entry))
    }

    fn ask_server<'n>(
        &mut self,
        host: &'n HostPolicy,
        client: Option<&'n Host>,
    ) -> Option<&'n Service> {
        self.ask_disabled(host);
        let client = self.known(host, &self.question.client, client);
        let question = self.question;
        let offered = host.policy.services.get(&question.service);
        let by_name = offered.is_some_and(|service| service.users.has(&question.user, AS_IT_IS));
        // Assumes every certificate that the user can have, if one is needed.
        let principals = match offered.filter(|_| !by_name) {
            Some(service) => host.certifiable(service, &question.user),
            None => Vec::new(),
        };
        let trusted = |principal: &&'n Principal| TrustedPrincipal {
            name: (*principal).as_ref(),
            until: u64::MAX,
        };
        let trusted: Vec<TrustedPrincipal<'_>> = principals.iter().map(trusted).collect();
        let case = host.policy.service_case(ServiceUse {
            service: &question.service,
            user: &question.user,
            principals: &trusted,
            host: client.map(|client| &client.name),
            now: AS_IT_IS,
        });
        let called = client.map_or(&question.client, |client| &client.name);
        self.object_by_policy(host, called, case.objections());
        let service = case.service?;
        let name = &service.name;
        if by_name {
            let block = (BlockKind::Service, name.as_ref());
            self.ground_user(host, block, service.user_blocks.iter());
        } else {
            self.ground_certificate(host, service, &principals);
        }
        let said = |keyword| Clause::statement(BlockKind::Service, name, keyword);
        if client.is_some_and(|client| service.hosts.contains(&client.name)) {
            self.ground(host, said("hosts"));
        }
        if !host.users.holders(&service.keys).has(&question.user) {
            let former = host.users.former_keys(&service.keys, &question.user);
            let reason = Reason::NoKey {
                host: host.name.clone(),
                user: question.user.clone(),
                keys: service.keys.clone(),
                former: former.to_vec(),
            };
            self.object(&host.name, reason, Vec::new());
        }
        let keywords = "listen program files umask setuid pam connect account style keys session \
                        reauthenticate protection";
        for keyword in keywords.split(' ') {
            self.ground(host, said(keyword));
        }
        self.how.server = Some(Offer::of(service));
        Some(service)
    }

    fn ask_disabled(&mut self, host: &HostPolicy) {
        let user = &self.question.user;
        if host.users.disabled.contains(user) {
            let reason = Reason::Disabled {
                host: host.name.clone(),
                user: user.clone(),
            };
            self.object(&host.name, reason, Vec::new());
        }
    }

    /// Adds the objections of a host's policy to a connection with another host.
    fn object_by_policy<'n>(
        &mut self,
        host: &HostPolicy,
        other: &HostName,
        objections: impl Iterator<Item = usher_policy::Objection<'n>>,
    ) {
        let question = self.question;
        let objections =
            objections.map(|objection| Objection::of_policy(host, question, other, objection));
        self.objections.extend(objections);
    }

    fn ask_port(&mut self, entry: Option<(&Client, &ClientService)>, service: Option<&Service>) {
        let question = self.question;
        let wanted = entry.map(|(client, entry)| (entry.port, target(client, entry)));
        let offered = service.map(|service| {
            let clause = Clause::statement(BlockKind::Service, &service.name, "listen");
            (service.listen, clause)
        });
        self.how.port = match (&wanted, &offered) {
            (Some((wanted, _)), Some((offered, _))) => (wanted == offered).then_some(*wanted),
            (Some((port, _)), None) | (None, Some((port, _))) => Some(*port),
            (None, None) => None,
        };
        if let (Some((port, clause)), Some((offered, _))) = (&wanted, &offered)
            && port != offered
        {
            let reason = Reason::PortDiffers {
                host: question.client.clone(),
                port: *port,
                offered: *offered,
            };
            self.object(&question.client, reason, vec![clause.clone()]);
        }
        let Some(asked) = question.port else { return };
        for (host, said) in [(&question.client, wanted), (&question.server, offered)] {
            if let Some((port, clause)) = said.filter(|(port, _)| *port != asked) {
                let reason = Reason::OtherPort {
                    host: host.clone(),
                    asked,
                    port,
                };
                self.object(host, reason, vec![clause]);
            }
        }
    }

    /// Compares both policies, if both are known.
    fn ask_both(
        &mut self,
        (client, server): (&HostPolicy, &HostPolicy),
        service: Option<&Service>,
        acquaintance: Acquaintance<'_>,
    ) {
        if let (Some(block), false) = (acquaintance.server, acquaintance.control_agrees) {
            let reason = Reason::ControlDiffers {
                host: client.name.clone(),
                other: server.name.clone(),
                block: block.name.clone(),
                port: block.control,
                own: server.own().control,
            };
            let clause = Clause::statement(BlockKind::Host, &block.name, "control");
            self.object(&client.name, reason, vec![clause]);
        }
        if let (Some(of_server), Some(of_client), []) = (
            acquaintance.server,
            acquaintance.client,
            acquaintance.routes.as_slice(),
        ) {
            for (host, block) in [(client, of_server), (server, of_client)] {
                let reason = Reason::NoCommonAddress {
                    client: client.name.clone(),
                    server: server.name.clone(),
                    host: host.name.clone(),
                    block: block.name.clone(),
                };
                let said =
                    |block: &Host| Clause::statement(BlockKind::Host, &block.name, "address");
                self.object(&host.name, reason, vec![said(block), said(host.own())]);
            }
        }
        if let Some(service) = service {
            self.ask_protection((client, server), service, &acquaintance);
        }
        self.how.routes = acquaintance.routes;
    }
}

impl Case<'_> {
    /// Whether the client protects a program's connections as the service demands.
    fn ask_protection(
        &mut self,
        (client, server): (&HostPolicy, &HostPolicy),
        service: &Service,
        acquaintance: &Acquaintance<'_>,
    ) {
        let (routes, block) = (&acquaintance.routes, acquaintance.server);
        let (false, Some(block)) = (routes.is_empty(), block) else {
            return; // That is objected to already.
        };
        if let Some(reason) = unmet(client, &block.name, routes, service) {
            self.object(&client.name, reason, Vec::new());
        }
        let mut entries = client.policy.client_services();
        let entry = entries.find(|entry| entry.host == block.name && entry.service == service.name);
        if let Some(reason) = entry.and_then(|entry| without_sas(client, entry, server)) {
            self.object(&server.name, reason, Vec::new());
        }
        let blocks = protecting(client, routes, service);
        for block in &blocks {
            self.ground(client, Clause::block(APPLICATION, block.name()));
        }
        self.how.protected_programs = programs_of(&blocks);
    }
}

/// `service S at H port P` of a client block.
pub(crate) fn target(client: &Client, entry: &ClientService) -> Clause {
    Clause::value(BlockKind::Client, &client.name, "service", entry.target())
}

impl Case<'_> {
    /// Adds the lines by which a block's `users` name the user.
    pub(crate) fn ground_user<'n>(
        &mut self,
        host: &HostPolicy,
        (kind, name): (BlockKind, &str),
        user_blocks: impl Iterator<Item = &'n Name>,
    ) {
        for block in user_blocks {
            let users = host.policy.users.get(block);
            let clauses = users.map(|users| users.clauses_of(&self.question.user));
            self.ground_users(host, Clause::value(kind, name, "users", block), clauses);
        }
    }

    /// Adds the lines by which a certificate with one of these principals makes the user one.
    pub(crate) fn ground_certificate(
        &mut self,
        host: &HostPolicy,
        service: &Service,
        principals: &[&Principal],
    ) {
        for block in &service.user_blocks {
            let users = host.policy.users.get(block);
            let of_users = |principal: &&Principal| users?.clause_of_principal(principal);
            let clauses = principals.iter().filter_map(of_users).collect();
            let named = Clause::value(BlockKind::Service, &service.name, "users", block);
            self.ground_users(host, named, Some(clauses));
        }
        self.principals = principals.iter().copied().cloned().collect();
    }

    /// Adds the lines of a set that contain the user, after the line that names the set.
    fn ground_users(&mut self, host: &HostPolicy, named: Clause, clauses: Option<Vec<Clause>>) {
        let clauses = clauses.filter(|clauses| !clauses.is_empty());
        for clause in clauses
            .iter()
            .flat_map(|clauses| std::iter::once(&named).chain(clauses))
        {
            self.ground(host, clause.clone());
        }
    }
}
