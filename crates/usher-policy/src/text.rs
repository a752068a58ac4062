//! A policy back to text: what [`crate::parse`] reads as the same policy.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use crate::application::{ApplicationPolicy, Network};
use crate::mac::MacBlock;
use crate::model::{
    Client, ClientService, DEFAULT_CONNECTIONS, DEFAULT_CONTROL_PORT, DEFAULT_EACH_USER_PROCESSES,
    DEFAULT_IDLE, DEFAULT_PROCESSES, DEFAULT_SESSION, DEFAULT_UMASK, Expectation, Host, Policy,
    ProcessLimits, Program, Programs, Protocol, ServedBy, Service, Style, Users,
};

impl Policy {
    /// The policy as text: one block after the other, hosts first, each kind in the order of its
    /// names. Statements at their default are left out; comments are not kept.
    ///
    /// Of a policy from [`crate::parse`], `parse` makes the same policy again, unless the text of
    /// several sources became too long for one ([`crate::MAXIMUM_SOURCE_BYTES`]).
    pub fn to_text(&self) -> String {
        let hosts = self.hosts.values().map(Host::to_text);
        let users = self.users.values().map(Users::to_text);
        let services = self.services.values().map(Service::to_text);
        let clients = self.clients.values().map(Client::to_text);
        let applications = self.applications.iter().map(ApplicationPolicy::to_text);
        let mac = self.mac.iter().map(MacBlock::to_text);
        let expectations: String = self.expectations.iter().map(Expectation::to_text).collect();
        hosts
            .chain(users)
            .chain(services)
            .chain(clients)
            .chain(applications)
            .chain(mac)
            .chain(self.each_user.to_text())
            .chain(Some(expectations).filter(|text| !text.is_empty()))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl ProcessLimits {
    /// The `limit user` statement; none when nothing differs from the defaults.
    fn to_text(self) -> Option<String> {
        let processes = (self.processes != DEFAULT_EACH_USER_PROCESSES)
            .then(|| format!("processes {}", self.processes));
        let memory = self.memory.map(|memory| format!("memory {}", Size(memory)));
        let cpu = self.cpu.map(|percent| format!("cpu {percent}%"));
        let parts: Vec<String> = [processes, memory, cpu].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("limit user {};\n", parts.join(", ")))
    }
}

impl Host {
    /// The `host` block.
    pub fn to_text(&self) -> String {
        let mut block = Block::new("host", &self.name);
        block.list("address", &self.addresses);
        block.statement("key", Quoted(&self.key.to_openssh()));
        if self.control != DEFAULT_CONTROL_PORT {
            block.statement("control", self.control);
        }
        if !self.loopback.is_empty() {
            block.list("loopback", &self.loopback);
        }
        block.end()
    }
}

impl Users {
    /// The `users` block.
    pub fn to_text(&self) -> String {
        let mut block = Block::new("users", &self.name);
        if !self.members.is_empty() {
            block.list("member", &self.members);
        }
        if !self.groups.is_empty() {
            block.list("group", self.groups.keys());
        }
        for (user, until) in &self.guests {
            block.statement("guest", format!("{user} until {until}"));
        }
        if !self.principals.is_empty() {
            block.list("principal", &self.principals);
        }
        block.end()
    }
}

impl Service {
    /// The `service` block.
    pub fn to_text(&self) -> String {
        let mut block = Block::new("service", &self.name);
        match &self.served_by {
            ServedBy::Program(Program {
                path, arguments, ..
            }) => {
                let command: Vec<String> = std::iter::once(path)
                    .chain(arguments)
                    .map(|text| Quoted(text).to_string())
                    .collect();
                block.statement("program", command.join(" "));
            }
            ServedBy::Account(account) => block.statement("account", account),
        }
        block.statement("listen", self.listen);
        block.list("users", &self.user_blocks);
        if self.any_host {
            block.statement("hosts", "any");
        } else {
            block.list("hosts", &self.hosts);
        }
        block.statement("style", self.style);
        match self.style {
            Style::Connection => {
                if self.connections != DEFAULT_CONNECTIONS {
                    block.statement("connections", self.connections);
                }
            }
            Style::User => {
                if self.idle != DEFAULT_IDLE {
                    block.statement("idle", Units(self.idle));
                }
            }
        }
        if let ServedBy::Program(Program { environment, .. }) = &self.served_by
            && !environment.is_empty()
        {
            let entries = environment
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            let entries: Vec<String> = entries.map(|entry| Quoted(&entry).to_string()).collect();
            block.list("environment", &entries);
        }
        if let ServedBy::Program(Program {
            files: Some(files), ..
        }) = &self.served_by
        {
            let entries = files
                .iter()
                .map(|rule| format!("{} {}", Quoted(&rule.path), rule.access));
            block.list("files", entries);
        }
        if let ServedBy::Program(Program {
            umask,
            setuid,
            pam_session,
            ..
        }) = &self.served_by
        {
            if *umask != DEFAULT_UMASK {
                block.statement("umask", format!("{umask:03o}"));
            }
            if *setuid {
                block.statement("setuid", "permit");
            }
            if *pam_session {
                block.statement("pam", "session");
            }
        }
        if self.session != DEFAULT_SESSION {
            block.statement("session", Units(self.session));
        }
        if let Some(keys) = &self.keys {
            block.statement("keys", keys);
        }
        if let Some(interval) = self.reauthenticate {
            block.statement("reauthenticate", Units(interval));
        }
        if self.processes != DEFAULT_PROCESSES {
            block.statement("processes", self.processes);
        }
        if let Some(memory) = self.memory {
            block.statement("memory", Size(memory));
        }
        if let Some(percent) = self.cpu {
            block.statement("cpu", format_args!("{percent}%"));
        }
        if let Some(connect) = &self.connect {
            block.statement("connect", connect);
        }
        if let Some(protection) = &self.protection {
            block.statement("protection", protection.transform);
        }
        block.end()
    }
}

impl Client {
    /// The `client` block.
    pub fn to_text(&self) -> String {
        let mut block = Block::new("client", &self.name);
        block.list("users", &self.user_blocks);
        for entry in &self.services {
            let target = format!("{} at {} port {}", entry.service, entry.host, entry.port);
            block.statement("service", target);
        }
        // One statement stands for all services of a block.
        let any = |holds: fn(&ClientService) -> bool| self.services.iter().any(holds);
        if any(|entry| entry.protocol == Protocol::Imap) {
            block.statement("protocol", "imap");
        }
        match self.services.first().map(|entry| &entry.programs) {
            Some(Programs::Any) => block.statement("programs", "any"),
            Some(Programs::Listed(paths)) => {
                block.list("programs", paths.iter().map(|path| Quoted(path)));
            }
            Some(Programs::Asking) | None => {}
        }
        if let Some(key) = self.services.iter().find_map(|entry| entry.key.as_ref()) {
            block.statement("key", key);
        }
        block.end()
    }
}

impl ApplicationPolicy {
    /// The `application` block.
    pub fn to_text(&self) -> String {
        let applications: Vec<String> = self.applications.iter().map(ToString::to_string).collect();
        let mut block = Block::new("application", applications.join(", "));
        for network in &self.networks {
            let Network {
                peers, treatment, ..
            } = network;
            block.statement("network", format!("{peers} {treatment}"));
        }
        let mut text = block.0;
        for (name, protection) in &self.protections {
            text += &format!("\n  protection {name} {{\n");
            for item in &protection.items {
                text += &format!("    {item};\n");
            }
            text += "  }\n";
        }
        text + "}\n"
    }
}

impl Expectation {
    /// The `expect` statement.
    pub fn to_text(&self) -> String {
        let verdict = if self.permit { "permit" } else { "refuse" };
        let mut text = format!("expect {verdict} user {}", self.user);
        if let Some(host) = &self.from {
            text += &format!(" at {host}");
        }
        text += &format!(" service {}", self.service);
        if let Some(host) = &self.at {
            text += &format!(" at {host}");
        }
        if let Some(port) = self.port {
            text += &format!(" port {port}");
        }
        text + ";\n"
    }
}

/// A block that is being written.
pub(crate) struct Block(String);

impl Block {
    pub(crate) fn new(keyword: &str, name: impl Display) -> Self {
        Self(format!("{keyword} {name} {{\n"))
    }

    fn statement(&mut self, keyword: &str, value: impl Display) {
        self.0.push_str(&format!("  {keyword} {value};\n"));
    }

    pub(crate) fn word(&mut self, keyword: &str) {
        self.0.push_str(&format!("  {keyword};\n"));
    }

    pub(crate) fn list(&mut self, keyword: &str, values: impl IntoIterator<Item = impl Display>) {
        let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
        self.statement(keyword, values.join(", "));
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }
}

/// A size of memory with the largest unit that keeps it whole.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [('T', 40), ('G', 30), ('M', 20)];
        let (letter, power) = units
            .into_iter()
            .find(|(_, power)| self.0.is_multiple_of(1 << power))
            .unwrap_or(('K', 10));
        write!(formatter, "{}{letter}", self.0 >> power)
    }
}

/// A string of the language.
pub(crate) struct Quoted<'t>(pub(crate) &'t str);

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => formatter.write_str("\\\"")?,
                '\\' => formatter.write_str("\\\\")?,
                '\n' => formatter.write_str("\\n")?,
                '\t' => formatter.write_str("\\t")?,
                other => formatter.write_char(other)?,
            }
        }
        formatter.write_char('"')
    }
}

/// A duration as policies have it: whole seconds, in the largest unit that divides them.
#[derive(Debug, Clone, Copy)]
pub struct Units(pub Duration);

impl Display for Units {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds if seconds % 3600 == 0 => write!(formatter, "{}h", seconds / 3600),
            seconds if seconds % 60 == 0 => write!(formatter, "{}m", seconds / 60),
            seconds => write!(formatter, "{seconds}s"),
        }
    }
}
