//! A policy back to text: what [`crate::parse`] reads as the same policy.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use crate::model::{
    Client, ClientService, DEFAULT_CONNECTIONS, DEFAULT_CONTROL_PORT, DEFAULT_IDLE,
    DEFAULT_PROCESSES, DEFAULT_SESSION, Host, Policy, Program, Programs, Protocol, ServedBy,
    Service, Style, Users,
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
        hosts
            .chain(users)
            .chain(services)
            .chain(clients)
            .collect::<Vec<_>>()
            .join("\n")
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
        match self.style {
            Style::Connection => {
                block.statement("style", "connection");
                if self.connections != DEFAULT_CONNECTIONS {
                    block.statement("connections", self.connections);
                }
            }
            Style::User => {
                block.statement("style", "user");
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
        if any(|entry| entry.programs == Programs::Any) {
            block.statement("programs", "any");
        }
        if let Some(key) = self.services.iter().find_map(|entry| entry.key.as_ref()) {
            block.statement("key", key);
        }
        block.end()
    }
}

struct Block(String);

impl Block {
    fn new(keyword: &str, name: impl Display) -> Self {
        Self(format!("{keyword} {name} {{\n"))
    }

    fn statement(&mut self, keyword: &str, value: impl Display) {
        self.0.push_str(&format!("  {keyword} {value};\n"));
    }

    fn list(&mut self, keyword: &str, values: impl IntoIterator<Item = impl Display>) {
        let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
        self.statement(keyword, values.join(", "));
    }

    fn end(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }
}

/// A string of the language.
struct Quoted<'t>(&'t str);

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

/// A duration in the largest unit that divides it.
struct Units(Duration);

impl Display for Units {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds if seconds % 3600 == 0 => write!(formatter, "{}h", seconds / 3600),
            seconds if seconds % 60 == 0 => write!(formatter, "{}m", seconds / 60),
            seconds => write!(formatter, "{seconds}s"),
        }
    }
}
