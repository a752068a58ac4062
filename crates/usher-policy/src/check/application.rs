//! `application` blocks.

use std::collections::{BTreeMap, BTreeSet};

use usher_proto::HostName;

use super::fields::{Field, Fields};
use super::unique::Unique;
use super::{Declared, declared, peers, values};
use crate::application::{
    Application, ApplicationPolicy, Level, Network, Protection, ProtectionItem, Treatment,
};
use crate::error::{NameKind, PolicyErrorKind};
use crate::keywords::{BlockKind, LOCAL_PORT};
use crate::model::Host;
use crate::name::Name;
use crate::report::Reporter;
use crate::tree::{Block, Item, Value};

/// Remembers which programs have a policy.
pub(super) struct ApplicationChecker<'p> {
    hosts: &'p BTreeMap<HostName, Host>,
    taken: Unique<Application>,
}

impl<'p> ApplicationChecker<'p> {
    pub(super) fn new(hosts: &'p BTreeMap<HostName, Host>) -> Self {
        Self {
            hosts,
            taken: Unique::default(),
        }
    }

    pub(super) fn check(
        &mut self,
        block: &Block,
        reporter: &mut Reporter<'_>,
    ) -> Option<ApplicationPolicy> {
        let names = block.name.iter().chain(&block.more_names);
        let applications: Vec<Option<Application>> =
            names.map(|item| self.application(item, reporter)).collect();
        let (defined, protections) = protections(block, reporter);
        let fields = Fields::read(block, reporter);
        let networks: Vec<Option<Network>> = fields
            .all("network")
            .map(|field| self.network(field, &defined, reporter))
            .collect();
        let last = block.more_names.last().or(block.name.as_ref());
        let last = last.map_or(block.location, |item| item.location);
        Some(ApplicationPolicy {
            applications: applications.into_iter().collect::<Option<_>>()?,
            networks: networks.into_iter().collect::<Option<_>>()?,
            protections: protections?,
            origin: reporter.origin(block.location, last),
        })
    }

    fn application(&mut self, item: &Item, reporter: &mut Reporter<'_>) -> Option<Application> {
        let found = values::word(item, reporter)?;
        let Some(application) = Application::parse(found) else {
            let found = found.to_owned();
            reporter.report(item.location, PolicyErrorKind::InvalidApplication { found });
            return None;
        };
        if let Some(first) = self.taken.claim(application.clone(), item.location) {
            let found = found.to_owned();
            reporter.report_repeated(item.location, first, |first| {
                PolicyErrorKind::DuplicateApplication { found, first }
            });
            return None;
        }
        Some(application)
    }

    /// `network ADDRESSES trusted;`, `untrusted;` or `protected NAME;`
    fn network(
        &self,
        field: Field<'_>,
        defined: &BTreeSet<Name>,
        reporter: &mut Reporter<'_>,
    ) -> Option<Network> {
        let items = field.sequence(reporter)?;
        let Some((range, rest)) = peers::split(items) else {
            return field.missing(reporter);
        };
        let peers = peers::read(range, |name| self.hosts.contains_key(name), reporter);
        let treatment = match rest {
            [] => return field.missing(reporter),
            [treatment, rest @ ..] => {
                let choices = &["trusted", "untrusted", "protected"];
                match (values::choice(treatment, choices, reporter)?, rest) {
                    (0, []) => Treatment::Trusted,
                    (1, []) => Treatment::Untrusted,
                    (2, [name]) => Treatment::Protected(protection_name(name, defined, reporter)?),
                    (2, []) => return field.missing(reporter),
                    (2, [_, excess, ..]) | (_, [excess, ..]) => {
                        return field.unexpected(excess, reporter);
                    }
                    _ => return None,
                }
            }
        };
        let peers = peers?;
        Some(Network {
            addresses: peers::addresses(&peers, self.hosts),
            peers,
            treatment,
            origin: reporter.origin(field.statement.location, field.statement.last),
        })
    }
}

fn protection_name(
    item: &Item,
    defined: &BTreeSet<Name>,
    reporter: &mut Reporter<'_>,
) -> Option<Name> {
    let found = values::name::<Name>(item, NameKind::Block, reporter)?;
    if !defined.contains(&found) {
        let nearest = values::nearest_name(found.as_ref(), defined, reporter);
        reporter.report(
            item.location,
            PolicyErrorKind::UnknownProtection { found, nearest },
        );
        return None;
    }
    Some(found)
}

/// The names of all `protection` blocks of an application, and the blocks when all are right.
fn protections(
    block: &Block,
    reporter: &mut Reporter<'_>,
) -> (BTreeSet<Name>, Option<BTreeMap<Name, Protection>>) {
    let kind = BlockKind::Protection;
    let declared = declared::<Name>(&block.blocks, kind, NameKind::Block, reporter);
    let names = declared.iter().filter_map(|block| block.name.clone());
    let names = names.collect();
    let mut found = Some(BTreeMap::new());
    for Declared { name, block } in declared {
        let items: Vec<Option<ProtectionItem>> = Fields::read(block, reporter)
            .all(LOCAL_PORT)
            .map(|field| item(field, reporter))
            .collect();
        let last = block
            .name
            .as_ref()
            .map_or(block.location, |item| item.location);
        let protection = items
            .into_iter()
            .collect::<Option<_>>()
            .map(|items| Protection {
                items,
                origin: reporter.origin(block.location, last),
            });
        found = found
            .zip(name.zip(protection))
            .map(|(mut found, (name, protection))| {
                found.insert(name, protection);
                found
            });
    }
    (names, found)
}

/// `localport=PORT remoteport=PORT encryption|authentication optional|mandatory;`
fn item(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<ProtectionItem> {
    let [remote, transform, level] = field.sequence(reporter)? else {
        return match field
            .statement
            .groups
            .first()
            .and_then(|group| group.get(3))
        {
            Some(excess) => field.unexpected(excess, reporter),
            None => field.missing(reporter),
        };
    };
    let keyword = Item {
        value: Value::Word(field.statement.keyword.clone()),
        location: field.statement.location,
    };
    let local = port(&keyword, LOCAL_PORT, reporter);
    let remote = match &remote.value {
        Value::Word(word) if word.starts_with("remoteport=") => {
            port(remote, "remoteport=", reporter)
        }
        _ => field.unexpected(remote, reporter),
    };
    let transform = values::transform(transform, reporter);
    let level = values::choice(level, &["optional", "mandatory"], reporter);
    Some(ProtectionItem {
        local: local?,
        remote: remote?,
        transform: transform?,
        level: [Level::Optional, Level::Mandatory][level?],
        origin: reporter.origin(field.statement.location, field.statement.last),
    })
}

/// `localport=PORT` or `localport=any`; none is `any`.
#[expect(clippy::option_option, reason = "wrong, any and one port are three")]
fn port(item: &Item, prefix: &str, reporter: &mut Reporter<'_>) -> Option<Option<u16>> {
    let word = values::word(item, reporter)?;
    let found = word.strip_prefix(prefix).unwrap_or(word);
    if found == "any" {
        return Some(None);
    }
    let port = values::port_number(found);
    if port.is_none() {
        let found = word.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidItemPort { found });
    }
    port.map(Some)
}
