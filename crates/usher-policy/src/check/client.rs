//! `client` blocks.

use std::sync::Arc;

use usher_proto::{HostName, ServiceName};

use super::fields::{Field, Fields};
use super::unique::Unique;
use super::{Names, users, values};
use crate::application::is_plain_path;
use crate::error::{NameKind, PolicyErrorKind};
use crate::keywords::BlockKind;
use crate::model::{Client, ClientService, MAXIMUM_PROGRAMS, Programs, Protocol};
use crate::name::Name;
use crate::report::Reporter;
use crate::tree::{Block, Item, Value};

/// Remembers what may stand once in all `client` blocks together.
#[derive(Default)]
pub(super) struct ClientChecker {
    services: Unique<(ServiceName, HostName)>,
    ports: Unique<(HostName, u16)>,
}

/// `service SERVICE at HOST port PORT;`
struct Target {
    service: ServiceName,
    host: HostName,
    port: u16,
}

impl ClientChecker {
    pub(super) fn check(
        &mut self,
        name: Option<Name>,
        block: &Block,
        names: &Names<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Option<Client> {
        let fields = Fields::read(block, reporter);
        let users = fields
            .one("users")
            .and_then(|field| users::resolve(field, BlockKind::Client, names, reporter));
        let targets: Vec<Option<Target>> = fields
            .all("service")
            .map(|field| self.target(field, names, reporter))
            .collect();
        let protocol = match fields.one("protocol") {
            Some(field) => protocol(field, reporter),
            None => Some(Protocol::Raw),
        };
        let programs = match fields.one("programs") {
            Some(field) => programs(field, reporter),
            None => Some(Programs::Asking),
        };
        let key = match fields.one("key") {
            Some(field) => field.key(reporter).map(Some),
            None => Some(None),
        };
        let (user_blocks, users) = users?;
        let (protocol, programs, key) = (protocol?, programs?, key?);
        let services = targets
            .into_iter()
            .map(|target| {
                let Target {
                    service,
                    host,
                    port,
                } = target?;
                Some(ClientService {
                    service,
                    host,
                    port,
                    users: users.clone(),
                    protocol,
                    programs: programs.clone(),
                    key: key.clone(),
                })
            })
            .collect::<Option<_>>()?;
        Some(Client {
            name: name?,
            user_blocks,
            services,
        })
    }

    fn target(
        &mut self,
        field: Field<'_>,
        names: &Names<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Option<Target> {
        let items = field.sequence(reporter)?;
        let [service, at, host, port_word, port] = items else {
            return match items.get(5) {
                Some(sixth) => field.unexpected(sixth, reporter),
                None => field.missing(reporter),
            };
        };
        for (item, keyword) in [(at, "at"), (port_word, "port")] {
            if !item.is_word(keyword) {
                return field.unexpected(item, reporter);
            }
        }
        let service_name = values::name::<ServiceName>(service, NameKind::Service, reporter);
        let host_name = values::name::<HostName>(host, NameKind::Host, reporter);
        let port_number = values::port(port, reporter);
        let (service_name, host_name) = (service_name?, host_name?);
        let host_name = values::known_host(host_name, host, names.hosts, reporter)?;
        let pair = (service_name.clone(), host_name.clone());
        if let Some(first) = self.services.claim(pair, service.location) {
            reporter.report_repeated(service.location, first, |first| {
                PolicyErrorKind::DuplicateClientService {
                    service: service_name,
                    host: host_name,
                    first,
                }
            });
            return None;
        }
        let port_number = port_number?;
        if let Some(first) = self
            .ports
            .claim((host_name.clone(), port_number), port.location)
        {
            reporter.report_repeated(port.location, first, |first| {
                PolicyErrorKind::DuplicateClientPort {
                    port: port_number,
                    host: host_name,
                    first,
                }
            });
            return None;
        }
        Some(Target {
            service: service_name,
            host: host_name,
            port: port_number,
        })
    }
}

fn protocol(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Protocol> {
    let item = field.single(reporter)?;
    values::choice(item, &["raw", "imap"], reporter)
        .map(|position| [Protocol::Raw, Protocol::Imap][position])
}

fn programs(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Programs> {
    let items = field.list(reporter)?;
    if field.is_any(&items, reporter)? {
        return Some(Programs::Any);
    }
    if items.len() > MAXIMUM_PROGRAMS {
        let error = PolicyErrorKind::TooManyPrograms { found: items.len() };
        reporter.report(field.statement.location, error);
        return None;
    }
    let mut listed = Unique::default();
    let mut sound = true;
    for item in items {
        sound &= program(field, item, &mut listed, reporter).is_some();
    }
    sound.then(|| Programs::Listed(Arc::new(listed.into_keys())))
}

/// One path of `programs`.
fn program(
    field: Field<'_>,
    item: &Item,
    listed: &mut Unique<String>,
    reporter: &mut Reporter<'_>,
) -> Option<()> {
    if let Value::Word(_) = item.value {
        return field.unexpected(item, reporter);
    }
    let path = values::text(item, reporter)?;
    if !is_plain_path(path) {
        let found = path.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidProgram { found });
        return None;
    }
    listed.list(path.to_owned(), item, reporter)
}
