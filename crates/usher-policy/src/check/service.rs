//! `service` blocks.

use std::collections::{BTreeMap, BTreeSet};

use usher_proto::{HostName, ServiceName};

use super::fields::{Field, Fields};
use super::host::ControlPort;
use super::unique::Unique;
use super::{Names, connect, limits, served_by, users, values};
use crate::error::{NameKind, PolicyErrorKind};
use crate::keywords::BlockKind;
use crate::model::{
    DEFAULT_CONNECTIONS, DEFAULT_IDLE, DEFAULT_PROCESSES, DEFAULT_SESSION, MAXIMUM_CONNECTIONS,
    MAXIMUM_PROCESSES, MINIMUM_REAUTHENTICATION, RequiredProtection, Service, Style, service_id,
};
use crate::report::Reporter;
use crate::tree::Block;

/// Remembers what no two services may share.
pub(super) struct ServiceChecker {
    controls: BTreeMap<u16, ControlPort>,
    ports: Unique<u16>,
    ids: BTreeMap<u32, ServiceName>,
}

/// `hosts` of a service.
struct Hosts {
    any: bool,
    names: BTreeSet<HostName>,
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
        name: Option<ServiceName>,
        block: &Block,
        names: &Names<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Option<Service> {
        let fields = Fields::read(block, reporter);
        let listen = fields
            .one("listen")
            .and_then(|field| self.listen(field, reporter));
        let users = fields
            .one("users")
            .and_then(|field| users::resolve(field, BlockKind::Service, names, reporter));
        let served_by = {
            let user_blocks = users.as_ref().map(|(blocks, _)| blocks);
            served_by::check(&fields, block, user_blocks, names, reporter)
        };
        let hosts = fields
            .one("hosts")
            .and_then(|field| hosts(field, names, reporter));
        let style = fields.one("style").and_then(|field| style(field, reporter));
        let idle = match fields.one("idle") {
            Some(field) => {
                only_for(Style::User, style, field, reporter);
                field
                    .single(reporter)
                    .and_then(|item| values::duration(item, reporter))
            }
            None => Some(DEFAULT_IDLE),
        };
        let session = match fields.one("session") {
            Some(field) => field
                .single(reporter)
                .and_then(|item| values::duration(item, reporter)),
            None => Some(DEFAULT_SESSION),
        };
        let keys = match fields.one("keys") {
            Some(field) => field.key(reporter).map(Some),
            None => Some(None),
        };
        let reauthenticate = match fields.one("reauthenticate") {
            Some(field) => field
                .single(reporter)
                .and_then(|item| values::duration_from(MINIMUM_REAUTHENTICATION, item, reporter))
                .map(Some),
            None => Some(None),
        };
        let connections = match fields.one("connections") {
            Some(field) => {
                only_for(Style::Connection, style, field, reporter);
                field
                    .single(reporter)
                    .and_then(|item| values::number(item, MAXIMUM_CONNECTIONS, reporter))
            }
            None => Some(DEFAULT_CONNECTIONS),
        };
        let processes = match fields.one("processes") {
            Some(field) => field
                .single(reporter)
                .and_then(|item| values::number(item, MAXIMUM_PROCESSES, reporter)),
            None => Some(DEFAULT_PROCESSES),
        };
        let memory = match fields.one("memory") {
            Some(field) => field
                .single(reporter)
                .and_then(|item| limits::memory(item, reporter))
                .map(Some),
            None => Some(None),
        };
        let cpu = match fields.one("cpu") {
            Some(field) => field
                .single(reporter)
                .and_then(|item| limits::cpu(item, reporter))
                .map(Some),
            None => Some(None),
        };
        let connect = match fields.one("connect") {
            Some(field) => connect::check(field, names, reporter).map(Some),
            None => Some(None),
        };
        let protection = match fields.one("protection") {
            Some(field) => protection(field, reporter).map(Some),
            None => Some(None),
        };
        let name = name?;
        let id = self.id(&name, block, reporter)?;
        let (user_blocks, users) = users?;
        let hosts = hosts?;
        Some(Service {
            name,
            id,
            served_by: served_by?,
            listen: listen?,
            user_blocks,
            users,
            any_host: hosts.any,
            hosts: hosts.names,
            style: style?,
            idle: idle?,
            session: session?,
            keys: keys?,
            reauthenticate: reauthenticate?,
            connections: connections?,
            processes: processes?,
            memory: memory?,
            cpu: cpu?,
            connect: connect?,
            protection: protection?,
        })
    }

    fn id(
        &mut self,
        name: &ServiceName,
        block: &Block,
        reporter: &mut Reporter<'_>,
    ) -> Option<u32> {
        let id = service_id(name);
        if let Some(other) = self.ids.insert(id, name.clone()) {
            let name = name.clone();
            let error = PolicyErrorKind::ServiceNumberCollision { name, other };
            reporter.report(block.name.as_ref()?.location, error);
            return None;
        }
        Some(id)
    }

    fn listen(&mut self, field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<u16> {
        let item = field.single(reporter)?;
        let port = values::port(item, reporter)?;
        if let Some(first) = self.ports.claim(port, item.location) {
            reporter.report_repeated(item.location, first, |first| {
                PolicyErrorKind::DuplicateListen { port, first }
            });
            return None;
        }
        match self.controls.get(&port) {
            None => return Some(port),
            Some(ControlPort::Written(control)) => {
                reporter.report_repeated(item.location, *control, |control| {
                    PolicyErrorKind::ListenOnControl { port, control }
                });
            }
            Some(ControlPort::Default(host)) => {
                let host = host.clone();
                let error = PolicyErrorKind::ListenOnDefaultControl { port, host };
                reporter.report(item.location, error);
            }
        }
        None
    }
}

/// `hosts HOST, ...;` or `hosts any;`
fn hosts(field: Field<'_>, names: &Names<'_>, reporter: &mut Reporter<'_>) -> Option<Hosts> {
    let items = field.list(reporter)?;
    if field.is_any(&items, reporter)? {
        return Some(Hosts {
            any: true,
            names: names.hosts.clone(),
        });
    }
    let mut listed = Unique::default();
    for item in items {
        let Some(found) = values::name::<HostName>(item, NameKind::Host, reporter) else {
            continue;
        };
        if listed.list(found.clone(), item, reporter).is_some() {
            values::known_host(found, item, names.hosts, reporter);
        }
    }
    Some(Hosts {
        any: false,
        names: listed.into_keys(),
    })
}

/// `protection encryption;` or `protection authentication;`
fn protection(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<RequiredProtection> {
    let item = field.single(reporter)?;
    Some(RequiredProtection {
        transform: values::transform(item, reporter)?,
        origin: reporter.origin(field.statement.location, field.statement.last),
    })
}

fn style(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Style> {
    let item = field.single(reporter)?;
    values::choice(item, &["connection", "user"], reporter)
        .map(|position| [Style::Connection, Style::User][position])
}

/// Reports a statement that the service's style does not know.
fn only_for(meant: Style, style: Option<Style>, field: Field<'_>, reporter: &mut Reporter<'_>) {
    if let Some(style) = style.filter(|&style| style != meant) {
        let error = PolicyErrorKind::NotForStyle {
            statement: field.rule.keyword,
            style,
        };
        reporter.report(field.statement.location, error);
    }
}
