//! Warnings: statements that are allowed but probably not meant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use usher_base::HostName;
use usher_language::{Clause, Mistake, Name, nearest, shown};
use usher_mac_blocks::bsdextended::{AccessRule, first_about_root_unsaid};
use usher_mac_blocks::ifoff::IfOff;
use usher_mac_blocks::portacl::PortAcl;
use usher_mac_blocks::te::TypeEnforcement;
use usher_mac_blocks::{MODULES, MacBlock, ModuleSettings};
use usher_protection::{Application, Peers, ProgramName, ProtectionWarning, Traffic};

use crate::client::Protocol;
use crate::dialect::BlockKind;
use crate::model::{Host, Policy, ServedBy, Style};

/// Something in a policy that has no effect, or another than it seems. Never a reason to refuse the policy:
/// it permits less than it seems to and never more, or protects traffic less than elsewhere. Displays as an
/// explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWarning {
    /// The part of the policy that it is about; none where the explanation itself begins with the
    /// place.
    pub clause: Option<Clause>,
    explanation: String,
    /// The remedy: one sentence for the administrator.
    pub remedy: String,
}

impl PolicyWarning {
    pub(crate) fn new(explanation: String, remedy: impl Into<String>) -> Self {
        Self {
            clause: None,
            explanation,
            remedy: remedy.into(),
        }
    }

    pub(crate) fn about(clause: Clause, explanation: String, remedy: impl Into<String>) -> Self {
        Self {
            clause: Some(clause),
            ..Self::new(explanation, remedy)
        }
    }
}

impl From<ProtectionWarning> for PolicyWarning {
    fn from(warning: ProtectionWarning) -> Self {
        Self::new(warning.to_string(), warning.remedy())
    }
}

impl fmt::Display for PolicyWarning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.explanation)
    }
}

impl Policy {
    /// Everything in the policy that is allowed but probably not meant, in a fixed order.
    pub fn warnings(&self) -> Vec<PolicyWarning> {
        let mut warnings = Vec::new();
        self.warn_of_users(&mut warnings);
        self.warn_of_services(&mut warnings);
        self.warn_of_demands(&mut warnings);
        self.warn_of_clients(&mut warnings);
        self.warn_of_modules(&mut warnings);
        let reached: BTreeSet<&HostName> =
            self.client_services().map(|entry| &entry.host).collect();
        for host in self.hosts.values() {
            let name = &host.name;
            if !host.loopback.is_empty() && !reached.contains(name) {
                warnings.push(PolicyWarning::about(
                    Clause::statement(BlockKind::Host, name, "loopback"),
                    format!(
                        "`host {name}` has a `loopback` address, but no client block names a service \
                         of it"
                    ),
                    "name a service of the host in a `client` block, or remove `loopback`",
                ));
            }
        }
        let protection = usher_protection::warnings(&self.applications, &self.names);
        warnings.extend(protection.into_iter().map(PolicyWarning::from));
        self.warn_of_peers(&mut warnings);
        let unknown = self.unknown_names().into_iter();
        warnings.extend(unknown.map(|unknown| {
            let explanation = format!(
                "{}: the expectation tests nothing, and `usher policy test` fails by it: {unknown}",
                unknown.place
            );
            PolicyWarning::new(explanation, "correct the name, or remove the expectation")
        }));
        warnings
    }

    /// The guests whose time is over, in seconds since 1970.
    pub fn guests_over(&self, now: u64) -> Vec<PolicyWarning> {
        let guests = self.users.values().flat_map(|users| {
            let over = users.guests.iter();
            let over = over.filter(|(_, until)| until.unix_time() <= now);
            over.map(|(user, until)| {
                let (name, guest) = (&users.name, format!("{user} until {until}"));
                PolicyWarning::about(
                    Clause::value(BlockKind::Users, name, "guest", guest),
                    format!("`users {name}`: the time of the guest {user} was over at {until}"),
                    "remove the guest, or write a later time",
                )
            })
        });
        guests.collect()
    }

    fn warn_of_users(&self, warnings: &mut Vec<PolicyWarning>) {
        let services = self.services.values();
        let services = services.flat_map(|service| &service.user_blocks);
        let clients = self.clients.values().flat_map(|client| &client.user_blocks);
        let named: BTreeSet<&Name> = services.chain(clients).collect();
        for users in self.users.values() {
            let name = &users.name;
            let block = Clause::block(BlockKind::Users, name);
            if users.users().next().is_none() && users.principals.is_empty() {
                warnings.push(PolicyWarning::about(
                    block.clone(),
                    format!("`users {name}` has no member"),
                    "add a `member`, or remove the block",
                ));
            }
            let groups = users.groups.iter();
            for (group, accounts) in groups.filter(|(_, group)| !group.left_out.is_empty()) {
                warnings.push(PolicyWarning::about(
                    Clause::value(BlockKind::Users, name, "group", group),
                    format!(
                        "`users {name}`: of the group {group} these are left out, as no policy can \
                         admit them: {}",
                        some_of(&accounts.left_out)
                    ),
                    "take them out of the group, or name a group without them",
                ));
            }
            if !named.contains(name) {
                warnings.push(PolicyWarning::about(
                    block,
                    format!("`users {name}` is named by no service and no client"),
                    "name it in a `service` or `client` block, or remove it",
                ));
            }
        }
    }

    /// Warns of services that demand protection which this host does not have itself, or which some of
    /// their hosts cannot have.
    fn warn_of_demands(&self, warnings: &mut Vec<PolicyWarning>) {
        for service in self.services.values() {
            let Some(demanded) = &service.protection else {
                continue;
            };
            let (name, kind) = (&service.name, demanded.kind);
            let clause = Clause::statement(BlockKind::Service, name, "protection");
            let hosts = service.hosts.iter().filter_map(|host| self.hosts.get(host));
            let (keyed, keyless): (Vec<&Host>, Vec<&Host>) =
                hosts.partition(|host| !host.ike_keys.is_empty());
            // With `hosts any`, some hosts may have no IPsec and no users of this service.
            if !keyless.is_empty() && (!service.any_host || keyed.is_empty()) {
                let keyless = keyless.iter().map(|host| host.name.to_string()).collect();
                warnings.push(PolicyWarning::about(
                    clause.clone(),
                    format!(
                        "`service {name}` demands {kind} by IPsec, and these of its `hosts` have no \
                         `ike-key`, so none of their users is admitted: {}",
                        some_of(&keyless)
                    ),
                    "add the `ike-key` to their `host` blocks, or remove them from `hosts`",
                ));
            }
            let program = match &service.served_by {
                ServedBy::Program(program) => ProgramName::Path(program.path.clone()),
                ServedBy::Account(_) | ServedBy::Backend(_) => continue,
            };
            let named =
                |block: &&Application| block.programs.iter().any(|own| own.may_be(&program));
            let addresses = || keyed.iter().flat_map(|host| &host.addresses);
            for block in self.applications.iter().filter(named) {
                // A client's system chooses the client's port, so no item names it.
                let differs = |peer: &&IpAddr| {
                    let traffic = block.traffic(&self.names, **peer, service.listen, 0);
                    !matches!(traffic, Traffic::Protect(item) if item.kind.includes(kind))
                };
                if let Some(peer) = addresses().find(differs) {
                    warnings.push(PolicyWarning::about(
                        clause.clone(),
                        format!(
                            "`service {name}` demands {kind} by IPsec, and `application {}` at {} \
                             treats its connections with {peer} otherwise: none of these is admitted",
                            block.name(),
                            block.origin.place
                        ),
                        "have the `application` block protect the service's port by the same, or \
                         more",
                    ));
                }
            }
        }
    }

    fn warn_of_services(&self, warnings: &mut Vec<PolicyWarning>) {
        for service in self.services.values() {
            let name = &service.name;
            let clause = |keyword| Clause::statement(BlockKind::Service, name, keyword);
            if service.users.is_empty() {
                warnings.push(PolicyWarning::about(
                    clause("users"),
                    format!("`service {name}` admits no user"),
                    "add a `member` to one of its `users` blocks",
                ));
            }
            if service.hosts.is_empty() {
                warnings.push(PolicyWarning::about(
                    clause("hosts"),
                    format!("`service {name}` admits users from no host: the policy has none"),
                    "add a `host` block for each host from which users come",
                ));
            }
            let connect = service.connect.iter();
            for entry in connect.flat_map(|connect| connect.needless()) {
                let explanation = format!(
                    "{}: `{entry}` adds nothing to `connect`: its other entries permit all of it",
                    entry.origin.place
                );
                warnings.push(PolicyWarning::new(explanation, "remove the entry"));
            }
            if let Some(account) = service.account() {
                let mut others = self.services.values();
                let consequence = if service.style == Style::Shared {
                    "that user's processes can use the connections of all users of this service"
                } else {
                    "the account is fenced, so none of that user's processes can change to another \
                     user any more, not by su, sudo or setuid programs either"
                };
                if let Some(other) = others.find(|other| other.users.names().contains(account)) {
                    warnings.push(PolicyWarning::about(
                        clause("account"),
                        format!(
                            "`service {name}` has the account {account}, who is a user of `service \
                             {}`: {consequence}",
                            other.name
                        ),
                        "use an account for services and for nothing else",
                    ));
                }
            }
        }
    }

    fn warn_of_clients(&self, warnings: &mut Vec<PolicyWarning>) {
        for client in self.clients.values() {
            let name = &client.name;
            let clause = |keyword| Clause::statement(BlockKind::Client, name, keyword);
            if client.services.iter().all(|entry| entry.users.is_empty()) {
                warnings.push(PolicyWarning::about(
                    clause("users"),
                    format!("`client {name}` permits no user"),
                    "add a `member` to one of its `users` blocks",
                ));
            }
            for entry in &client.services {
                let (service, host, port) = (&entry.service, &entry.host, entry.port);
                let offered = self.services.get(service).map(|service| service.listen);
                if let Some(listen) = offered.filter(|listen| *listen != port) {
                    warnings.push(PolicyWarning::about(
                        Clause::value(BlockKind::Client, name, "service", entry.target()),
                        format!(
                            "a client expects `{service}` at `{host}` on port {port}, but `service \
                             {service}` of this policy listens on {listen}"
                        ),
                        "write the same port in both, if they mean the same service",
                    ));
                }
                let block = self.hosts.get(host);
                if entry.protection.is_some() && block.is_some_and(|host| host.ike_keys.is_empty())
                {
                    warnings.push(PolicyWarning::about(
                        clause("protection"),
                        format!(
                            "`client {name}` has connections with {host} protected by IPsec, and \
                             `host {host}` has no `ike-key`, so none is made"
                        ),
                        "add the `ike-key` to the `host` block",
                    ));
                }
                let proxied = block.is_some_and(|host| !host.loopback.is_empty());
                if entry.protocol != Protocol::Raw && !proxied {
                    warnings.push(PolicyWarning::about(
                        clause("protocol"),
                        format!(
                            "`client {name}` says `protocol imap`, but `host {host}` has no \
                             `loopback` address for the proxy"
                        ),
                        "add `loopback` to the `host` block, or remove `protocol`",
                    ));
                }
            }
        }
    }
}

impl Policy {
    fn warn_of_modules(&self, warnings: &mut Vec<PolicyWarning>) {
        for block in &self.mac {
            match &block.settings {
                ModuleSettings::Bsdextended(rules) => warn_of_rules(rules, warnings),
                ModuleSettings::Portacl(ports) => warn_of_ports(ports, warnings),
                ModuleSettings::Seeotheruids(exempt) if exempt.binds_the_service_manager() => {
                    warn_of_service_manager(block, warnings);
                }
                ModuleSettings::Ifoff(silence) => warn_of_silence(block, silence, warnings),
                ModuleSettings::Te(types) => warn_of_types(block, types, warnings),
                ModuleSettings::Declared(_) => warn_of_name(block, warnings),
                ModuleSettings::Seeotheruids(_)
                | ModuleSettings::Nothing
                | ModuleSettings::Framework(_) => {}
            }
        }
    }
}

fn warn_of_rules(rules: &[AccessRule], warnings: &mut Vec<PolicyWarning>) {
    let Some(rule) = first_about_root_unsaid(rules) else {
        return;
    };
    let explanation = format!(
        "{}: this rule is also about daemons that run as root without CAP_DAC_OVERRIDE, Usher's own \
         among them: what its mode lacks they are refused, and may not start",
        rule.origin.place
    );
    let remedy = "begin the rule with `subject not uid 0:999`, which leaves system accounts alone, or \
                  write `rule subject uid root mode arswx;` before it";
    warnings.push(PolicyWarning::new(explanation, remedy));
}

fn warn_of_ports(ports: &PortAcl, warnings: &mut Vec<PolicyWarning>) {
    for (permit, origin) in ports.needless() {
        let explanation = format!(
            "{}: `{permit}` permits nothing more: `portacl` keeps this port from no process",
            origin.place
        );
        let remedy = match permit.port {
            0 => "remove it, or write `autoport_exempt no;`",
            _ => "remove it, or write a `port_high` that is not lower",
        };
        warnings.push(PolicyWarning::new(explanation, remedy));
    }
}

fn warn_of_silence(block: &MacBlock, silence: &IfOff, warnings: &mut Vec<PolicyWarning>) {
    let place = &block.origin.place;
    if silence.cuts_off() {
        let explanation = format!(
            "{place}: `ifoff` leaves this host no interface but its own loopback: the module ends remote \
             logins, and no user of another host reaches a service"
        );
        let remedy =
            "write `interface \"NAME\" on;` for each interface by which others reach this host";
        warnings.push(PolicyWarning::new(explanation, remedy));
    }
    if !silence.loopback {
        let explanation = format!(
            "{place}: `loopback off` also ends connections between processes of this host, such as those \
             with a resolver or a database at 127.0.0.1, and those of `usher-proxy`"
        );
        warnings.push(PolicyWarning::new(explanation, "remove `loopback off`"));
    }
    for name in silence.needless() {
        let state = if silence.others { "on" } else { "off" };
        let explanation =
            format!("{place}: `interface \"{name}\" {state}` changes nothing: `others` is {state}");
        warnings.push(PolicyWarning::new(explanation, "remove the statement"));
    }
}

fn warn_of_types(block: &MacBlock, types: &TypeEnforcement, warnings: &mut Vec<PolicyWarning>) {
    for warning in types.warnings() {
        let place = &warning.origin.as_ref().unwrap_or(&block.origin).place;
        let explanation = format!("{place}: {warning}");
        warnings.push(PolicyWarning::new(explanation, warning.remedy));
    }
}

/// Warns of a block whose module is not built in, if its name resembles that of one that is.
fn warn_of_name(block: &MacBlock, warnings: &mut Vec<PolicyWarning>) {
    let Some(near) = nearest(block.module.as_ref(), MODULES.iter().copied()) else {
        return;
    };
    let (place, module) = (&block.origin.place, &block.module);
    let explanation = format!("{place}: no module `{module}` is built in: a file must have it");
    let remedy =
        format!("did you mean `{near}`? otherwise put the module where `usher mac list` shows it");
    warnings.push(PolicyWarning::new(explanation, remedy));
}

fn warn_of_service_manager(block: &MacBlock, warnings: &mut Vec<PolicyWarning>) {
    let explanation = format!(
        "{}: `suser_privileged no` also holds the service manager, which then cannot end the processes of \
         services and sessions",
        block.origin.place
    );
    let remedy = "write `specificgid root;`, a group that the service manager has";
    warnings.push(PolicyWarning::new(explanation, remedy));
}

/// The first few names, fit for a terminal, and how many more there are.
pub(crate) fn some_of(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 8;
    let first = names.iter().take(SHOWN).map(|name| shown(60, name));
    let first = first.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => first,
        rest => format!("{first} and {rest} more"),
    }
}

impl Policy {
    /// Looks up each name in `network` statements that has no `host` block, once. Returns a warning for
    /// each network whose name has no address.
    pub fn look_up_names<E: fmt::Display>(
        &mut self,
        mut look_up: impl FnMut(&HostName) -> Result<Vec<IpAddr>, E>,
    ) -> Vec<PolicyWarning> {
        let mut faults: BTreeMap<&HostName, Option<String>> = BTreeMap::new();
        let mut warnings = Vec::new();
        let networks = self.applications.iter();
        for network in networks.flat_map(|application| &application.networks) {
            let Peers::Name(name) = &network.peers else {
                continue;
            };
            if self.hosts.contains_key(name) {
                continue;
            }
            let fault = faults.entry(name).or_insert_with(|| match look_up(name) {
                Ok(addresses) if addresses.is_empty() => Some("it has none".to_owned()),
                Err(reason) => Some(reason.to_string()),
                Ok(addresses) => {
                    self.names.answer(name.clone(), addresses, Duration::ZERO);
                    None
                }
            });
            if let Some(reason) = fault {
                let warning = ProtectionWarning::UnresolvedName {
                    name: name.clone(),
                    place: network.origin.place.clone(),
                    reason: reason.clone(),
                    meanwhile: network.meanwhile(),
                };
                warnings.push(warning.into());
            }
        }
        warnings
    }
}
