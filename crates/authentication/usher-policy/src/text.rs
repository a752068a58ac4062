//! A policy back to text: what [`crate::parse_policy`] reads as the same policy.

use usher_language::{BlockText, Quoted, Size, Units, joined};
use usher_mac_blocks::MacBlock;
use usher_protection::{Application, MarkMask};

use crate::client::{Client, Programs, Protocol};
use crate::dialect::BlockKind;
use crate::limits::{
    DEFAULT_CONNECTIONS, DEFAULT_CONTROL_PORT, DEFAULT_EACH_USER_PROCESSES, DEFAULT_IDLE,
    DEFAULT_KEEPALIVE, DEFAULT_PROCESSES, DEFAULT_SESSION, DEFAULT_UMASK,
};
use crate::members::Users;
use crate::model::Expectation;
use crate::model::{Host, Policy, ProcessLimits, Program, ServedBy, Service};

impl Policy {
    /// The policy as text: one block after the other, hosts first, each kind in the order of its
    /// names. Statements at their default are left out; comments are not kept.
    ///
    /// From the text of a policy of [`crate::parse_policy`], it makes the same policy again, unless the text of
    /// several sources became too long for one ([`crate::MAXIMUM_SOURCE_BYTES`]).
    pub fn to_text(&self) -> String {
        let hosts = self.hosts.values().map(Host::to_text);
        let users = self.users.values().map(Users::to_text);
        let services = self.services.values().map(Service::to_text);
        let clients = self.clients.values().map(Client::to_text);
        let applications = self.applications.iter().map(Application::to_text);
        let mac = self.mac.iter().map(MacBlock::to_text);
        let expectations: String = self.expectations.iter().map(Expectation::to_text).collect();
        hosts
            .chain(users)
            .chain(services)
            .chain(clients)
            .chain(applications)
            .chain(mac)
            .chain(self.each_user.to_text())
            .chain(marks(self.marks))
            .chain(Some(expectations).filter(|text| !text.is_empty()))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// The statement `marks`; none for the default.
fn marks(mask: MarkMask) -> Option<String> {
    (mask != MarkMask::default()).then(|| format!("marks {mask};\n"))
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
        let mut block = BlockText::new(BlockKind::Host.word(), &self.name);
        block.list("address", &self.addresses);
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        block.list("key", keys.iter().map(|key| Quoted(key)));
        let ike_keys: Vec<String> = self.ike_keys.iter().map(ToString::to_string).collect();
        block.list("ike-key", ike_keys.iter().map(|key| Quoted(key)));
        if !self.is_held {
            block.statement("hold", "no");
        }
        block.optional("unlabelled", self.unlabelled);
        block.unless(DEFAULT_CONTROL_PORT, "control", self.control);
        block.list("loopback", &self.loopback);
        block.end()
    }
}

impl Users {
    /// The `users` block.
    pub fn to_text(&self) -> String {
        let mut block = BlockText::new(BlockKind::Users.word(), &self.name);
        block.list("member", &self.members);
        block.list("group", self.groups.keys());
        for (user, until) in &self.guests {
            block.statement("guest", format_args!("{user} until {until}"));
        }
        block.list("principal", &self.principals);
        block.end()
    }
}

impl Service {
    /// The `service` block.
    pub fn to_text(&self) -> String {
        let mut block = BlockText::new(BlockKind::Service.word(), &self.name);
        match &self.served_by {
            ServedBy::Program(program) => {
                let command = std::iter::once(&program.path).chain(&program.arguments);
                block.statement("program", joined(command.map(|text| Quoted(text)), " "));
                block.optional("account", program.account.as_ref());
            }
            ServedBy::Account(account) => block.statement("account", account),
            ServedBy::Backend(backend) => {
                let socket = Quoted(&backend.socket);
                let header = backend.header.as_ref();
                let header = header.map(|header| format!(" header {header}"));
                block.statement("account", &backend.account);
                block.statement(
                    "identify",
                    format_args!(
                        "{} {socket}{}",
                        backend.identification,
                        header.unwrap_or_default()
                    ),
                );
            }
        }
        block.statement("listen", self.listen);
        block.list("users", &self.user_blocks);
        if self.any_host {
            block.statement("hosts", "any")
        } else {
            block.list("hosts", &self.hosts)
        }
        block.statement("style", self.style);
        block.unless(DEFAULT_CONNECTIONS, "connections", self.connections);
        block.unless(Units(DEFAULT_IDLE), "idle", Units(self.idle));
        if let ServedBy::Program(program) = &self.served_by {
            program.print(&mut block);
        }
        block.unless(Units(DEFAULT_SESSION), "session", Units(self.session));
        block.optional("keys", self.keys.as_ref());
        block.optional("reauthenticate", self.reauthenticate.map(Units));
        block.unless(Units(DEFAULT_KEEPALIVE), "keepalive", Units(self.keepalive));
        block.unless(DEFAULT_PROCESSES, "processes", self.processes);
        block.optional("memory", self.memory.map(Size));
        block.optional("cpu", self.cpu.map(|percent| format!("{percent}%")));
        block.optional("connect", self.connect.as_ref());
        block.optional(
            "protection",
            self.protection.as_ref().map(|required| required.kind),
        );
        block.end()
    }
}

impl Program {
    /// The statements of a `service` block that `program` has besides itself.
    fn print(&self, block: &mut BlockText) {
        let entries = self
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        block.list(
            "environment",
            entries.map(|entry| Quoted(&entry).to_string()),
        );
        let files = self.files.iter().flatten();
        block.list(
            "files",
            files.map(|rule| format!("{} {}", Quoted(&rule.path), rule.access)),
        );
        let octal = |umask: u16| format!("{umask:03o}");
        block.unless(octal(DEFAULT_UMASK), "umask", octal(self.umask));
        block.optional("setuid", self.setuid.then_some("permit"));
        block.optional("pam", self.pam_session.then_some("session"));
    }
}

impl Client {
    /// The `client` block.
    pub fn to_text(&self) -> String {
        let mut block = BlockText::new(BlockKind::Client.word(), &self.name);
        block.list("users", &self.user_blocks);
        for entry in &self.services {
            block.statement("service", entry.target());
        }
        // One statement stands for all services of a block.
        if let Some(entry) = self.services.first() {
            block.unless(Protocol::Raw, "protocol", entry.protocol);
            match &entry.programs {
                Programs::Any => block.statement("programs", "any"),
                Programs::Listed(paths) => {
                    block.list("programs", paths.iter().map(|path| Quoted(path)));
                }
                Programs::Asking => {}
            }
            block.optional("key", entry.key.as_ref());
            block.optional("protection", entry.protection);
        }
        block.end()
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
