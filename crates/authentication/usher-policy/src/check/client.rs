//! `client` blocks.

use std::sync::Arc;

use usher_base::{HostName, ServiceName};
use usher_language::{Declared, Field, Fields, Name, Unique, is_plain_path};

use super::{Names, users};
use crate::client::{Client, ClientService, MAXIMUM_PROGRAMS, Programs, Protocol};
use crate::mistake::PolicyMistake;
use crate::names::{HOST, KEY, SERVICE};

/// Remembers the services and the ports of hosts. Each may stand only once in all `client` blocks together.
#[derive(Default)]
pub(super) struct ClientChecker {
    services: Unique<(ServiceName, HostName)>,
    ports: Unique<(HostName, u16)>,
}

impl ClientChecker {
    pub(super) fn check(
        &mut self,
        declared: Declared<'_, Name>,
        names: &Names<'_>,
    ) -> Option<Client> {
        let fields = Fields::read(declared.block, names.reporter);
        let users = fields
            .one("users")
            .map(|field| users::resolve(field, true, names));
        let targets = fields
            .all("service")
            .filter_map(|field| self.target(field, names));
        let targets: Vec<(ServiceName, HostName, u16)> = targets.collect();
        let protocol = fields.word("protocol").and_then(Protocol::of_word);
        let protocol = protocol.unwrap_or_default();
        let programs = fields.one("programs").map(programs).unwrap_or_default();
        let key = fields.name::<Name>("key", &KEY);
        let protection = fields
            .word("protection")
            .and_then(usher_protection::Kind::of_word);
        let (user_blocks, users) = users?;
        let services = targets
            .into_iter()
            .map(|(service, host, port)| ClientService {
                service,
                host,
                port,
                users: Arc::clone(&users),
                protocol,
                programs: programs.clone(),
                key: key.clone(),
                protection,
            });
        Some(Client {
            name: declared.name?,
            user_blocks,
            services: services.collect(),
        })
    }

    /// `service SERVICE at HOST port PORT;`
    fn target(
        &mut self,
        field: &Field<'_>,
        names: &Names<'_>,
    ) -> Option<(ServiceName, HostName, u16)> {
        let [Some(service_item), Some(host_item), Some(port_item)] = field.parts()? else {
            return None;
        };
        let service = field.name_of::<ServiceName>(service_item, &SERVICE);
        let host = field.name_of::<HostName>(host_item, &HOST);
        let port = u16::try_from(field.number()?).ok()?;
        let (service, host) = (service?, host?);
        let host = names.known_host(host, host_item)?;
        let pair = (service.clone(), host.clone());
        let reporter = field.reporter;
        self.services.take(pair, service_item, reporter, |first| {
            let (service, host) = (service.clone(), host.clone());
            PolicyMistake::DuplicateClientService {
                service,
                host,
                first,
            }
        })?;
        let pair = (host.clone(), port);
        self.ports.take(pair, port_item, reporter, |first| {
            let host = host.clone();
            PolicyMistake::DuplicateClientPort { port, host, first }
        })?;
        Some((service, host, port))
    }
}

/// `programs any;` or `programs "PATH", ...;`
fn programs(field: &Field<'_>) -> Programs {
    if field.is_any() {
        return Programs::Any;
    }
    let mut listed = Unique::default();
    if !field.has_too_many(MAXIMUM_PROGRAMS, ", or `any`") {
        for (path, item) in field.texts() {
            if is_plain_path(path) {
                listed.list(path.to_owned(), item, field.reporter);
            } else {
                let found = path.into();
                field
                    .reporter
                    .report(item.location, PolicyMistake::InvalidProgram { found });
            }
        }
    }
    Programs::Listed(Arc::new(listed.into_keys()))
}
