//! `service` blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use usher_base::{HostName, ServiceName};
use usher_language::{Declared, Field, Fields, Name, Unique};

use super::host::ControlPort;
use super::{Names, connect, served_by, users};
use crate::limits::{
    DEFAULT_CONNECTIONS, DEFAULT_IDLE, DEFAULT_KEEPALIVE, DEFAULT_PROCESSES, DEFAULT_SESSION,
};
use crate::mistake::PolicyMistake;
use crate::model::{RequiredProtection, Service, Style, service_id};
use crate::names::{HOST, KEY};

/// Remembers what no two services may share.
pub(super) struct ServiceChecker {
    controls: BTreeMap<u16, ControlPort>,
    ports: Unique<u16>,
    ids: BTreeMap<u32, ServiceName>,
}

impl ServiceChecker {
    pub(super) fn new(controls: BTreeMap<u16, ControlPort>) -> Self {
        Self {
            controls,
            ports: Unique::default(),
            ids: BTreeMap::new(),
        }
    }

    pub(super) fn check(
        &mut self,
        declared: Declared<'_, ServiceName>,
        names: &Names<'_>,
    ) -> Option<Service> {
        let fields = Fields::read(declared.block, names.reporter);
        let listen = fields.one("listen").and_then(|field| self.listen(field));
        let users = fields
            .one("users")
            .map(|field| users::resolve(field, false, names));
        let user_blocks = users.as_ref().map(|(blocks, _)| blocks);
        let served_by = served_by::check_served_by(&fields, user_blocks, names);
        let hosts = fields.one("hosts").map(|field| hosts(field, names));
        let connect = fields
            .one("connect")
            .map(|field| connect::check_connect(field, names));
        let seconds = |keyword| fields.number(keyword).map(Duration::from_secs);
        let keys = fields.name::<Name>("keys", &KEY);
        let protection = fields
            .word("protection")
            .and_then(usher_protection::Kind::of_word);
        let name = declared.name?;
        let id = service_id(&name);
        if let Some(other) = self.ids.insert(id, name.clone()) {
            let location = declared.block.head_end();
            let mistake = PolicyMistake::ServiceNumberCollision { name, other };
            return names.reporter.refuse(location, mistake);
        }
        let (user_blocks, users) = users?;
        let (any_host, hosts) = hosts?;
        Some(Service {
            name,
            id,
            served_by: served_by?,
            listen: listen?,
            user_blocks,
            users,
            any_host,
            hosts,
            style: fields.word("style").and_then(Style::of_word)?,
            idle: seconds("idle").unwrap_or(DEFAULT_IDLE),
            session: seconds("session").unwrap_or(DEFAULT_SESSION),
            keys,
            reauthenticate: seconds("reauthenticate"),
            keepalive: seconds("keepalive").unwrap_or(DEFAULT_KEEPALIVE),
            connections: fields.number("connections").unwrap_or(DEFAULT_CONNECTIONS),
            processes: fields.number("processes").unwrap_or(DEFAULT_PROCESSES),
            memory: fields.number("memory"),
            cpu: fields.number("cpu"),
            connect: connect.flatten(),
            protection: protection
                .zip(fields.one("protection"))
                .map(|(kind, field)| {
                    let origin = field.origin();
                    RequiredProtection { kind, origin }
                }),
        })
    }

    fn listen(&mut self, field: &Field<'_>) -> Option<u16> {
        let item = field.items().next()?;
        let port = u16::try_from(field.number()?).ok()?;
        let taken = |first| PolicyMistake::DuplicateListen { port, first };
        self.ports.take(port, item, field.reporter, taken)?;
        match self.controls.get(&port) {
            None => Some(port),
            Some(ControlPort::Written(control)) => {
                let control = field.reporter.place(*control);
                field.refuse(item, PolicyMistake::ListenOnControl { port, control })
            }
            Some(ControlPort::Default(host)) => {
                let host = host.clone();
                field.refuse(item, PolicyMistake::ListenOnDefaultControl { port, host })
            }
        }
    }
}

/// `hosts HOST, ...;` or `hosts any;`: whether it is `any`, and the hosts.
fn hosts(field: &Field<'_>, names: &Names<'_>) -> (bool, BTreeSet<HostName>) {
    if field.is_any() {
        return (true, names.hosts.clone());
    }
    let mut listed = Unique::default();
    for (found, item) in field.unique_names::<HostName>(&HOST, &mut listed) {
        names.known_host(found, item);
    }
    (false, listed.into_keys())
}
