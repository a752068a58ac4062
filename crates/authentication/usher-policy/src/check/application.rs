//! `application` blocks.

use std::collections::{BTreeMap, BTreeSet};

use usher_base::HostName;
use usher_language::{
    Block, Declared, Field, Fields, Found, Item, Kind, Name, Reporter, Unique, Value, declared,
};

use super::{nearest_name, peers};
use crate::application::{
    Application, ApplicationPolicy, Level, Network, Protection, ProtectionItem, Transform,
    Treatment,
};
use crate::dialect::{BlockKind, LOCAL_PORT};
use crate::mistake::PolicyMistake;
use crate::model::Host;
use crate::names::BLOCK;

/// Remembers which programs have a policy.
pub(super) struct ApplicationChecker<'p> {
    hosts: &'p BTreeMap<HostName, Host>,
    reporter: &'p Reporter<'p>,
    taken: Unique<Application>,
}

impl<'p> ApplicationChecker<'p> {
    pub(super) fn new(hosts: &'p BTreeMap<HostName, Host>, reporter: &'p Reporter<'p>) -> Self {
        Self {
            hosts,
            reporter,
            taken: Unique::default(),
        }
    }

    pub(super) fn check(&mut self, block: &Block<'_>) -> Option<ApplicationPolicy> {
        let names = block.names.iter();
        let applications = names.filter_map(|item| self.application(item)).collect();
        let (defined, protections) = protections(block, self.reporter);
        let fields = Fields::read(block, self.reporter);
        let networks = fields
            .all("network")
            .filter_map(|field| self.network(field, &defined));
        Some(ApplicationPolicy {
            applications,
            networks: networks.collect(),
            protections,
            origin: self.reporter.origin(block.location, block.head_end()),
        })
    }

    fn application(&mut self, item: &Item) -> Option<Application> {
        Kind::Word(String::new()).read(item, self.reporter)?;
        let word = item.word()?;
        let found = Found::from(word);
        let Some(application) = Application::parse(word) else {
            let mistake = PolicyMistake::InvalidApplication { found };
            return self.reporter.refuse(item.location, mistake);
        };
        let taken = |first| PolicyMistake::DuplicateApplication { found, first };
        self.taken
            .take(application.clone(), item, self.reporter, taken)?;
        Some(application)
    }

    /// `network ADDRESSES trusted;`, `untrusted;` or `protected NAME;`
    fn network(&self, field: &Field<'_>, defined: &BTreeSet<Name>) -> Option<Network> {
        let Some((range, rest)) = peers::split(field.sequence()?) else {
            return field.missing();
        };
        let peers = peers::read(range, |name| self.hosts.contains_key(name), field);
        let Some((treatment, rest)) = rest.split_first() else {
            return field.missing();
        };
        let treatments = ["trusted", "untrusted", "protected"].map(str::to_owned);
        Kind::Choice(treatments.into()).read(treatment, field.reporter)?;
        let treatment = match (treatment.word()?, rest) {
            ("trusted", []) => Treatment::Trusted,
            ("untrusted", []) => Treatment::Untrusted,
            ("protected", []) => return field.missing(),
            ("protected", [name]) => Treatment::Protected(protection(name, defined, field)?),
            ("protected", [_, excess, ..]) | (_, [excess, ..]) => return field.unexpected(excess),
            _ => return None,
        };
        let peers = peers?;
        Some(Network {
            addresses: peers::addresses(&peers, self.hosts),
            peers,
            treatment,
            origin: field.origin(),
        })
    }
}

/// The name of a protection that the block defines.
fn protection(item: &Item, defined: &BTreeSet<Name>, field: &Field<'_>) -> Option<Name> {
    item.word().or_else(|| field.expected_word(item))?;
    let found = field.name_of::<Name>(item, &BLOCK)?;
    if defined.contains(&found) {
        return Some(found);
    }
    let nearest = nearest_name(found.as_ref(), defined, field.reporter);
    field.refuse(item, PolicyMistake::UnknownProtection { found, nearest })
}

/// The names of all `protection` blocks of an application, and the blocks.
fn protections(
    block: &Block<'_>,
    reporter: &Reporter<'_>,
) -> (BTreeSet<Name>, BTreeMap<Name, Protection>) {
    let keyword = BlockKind::Protection.word();
    let declared = declared::<Name>(&block.blocks, keyword, &BLOCK, reporter);
    let names = declared
        .iter()
        .filter_map(|block| block.name.clone())
        .collect();
    let protections = declared.into_iter().filter_map(|Declared { name, block }| {
        let fields = Fields::read(block, reporter);
        let items = fields.all(LOCAL_PORT).filter_map(item).collect();
        let origin = reporter.origin(block.location, block.head_end());
        Some((name?, Protection { items, origin }))
    });
    (names, protections.collect())
}

/// `localport=PORT remoteport=PORT encryption|authentication optional|mandatory;`
fn item(field: &Field<'_>) -> Option<ProtectionItem> {
    let [remote, transform, level] = field.sequence()? else {
        return match field
            .statement
            .groups
            .first()
            .and_then(|group| group.get(3))
        {
            Some(excess) => field.unexpected(excess),
            None => field.missing(),
        };
    };
    let keyword = Item {
        value: Value::Word(field.statement.keyword.clone()),
        location: field.statement.location,
    };
    let local = port(&keyword, LOCAL_PORT, field);
    let remote = match remote.word() {
        Some(word) if word.starts_with("remoteport=") => port(remote, "remoteport=", field),
        _ => field.unexpected(remote),
    };
    Transform::kind().read(transform, field.reporter);
    Level::kind().read(level, field.reporter);
    Some(ProtectionItem {
        local: local?,
        remote: remote?,
        transform: transform.word().and_then(Transform::of_word)?,
        level: level.word().and_then(Level::of_word)?,
        origin: field.origin(),
    })
}

/// `localport=PORT` or `localport=any`; none is `any`.
#[expect(clippy::option_option, reason = "wrong, any and one port are three")]
fn port(item: &Item, prefix: &str, field: &Field<'_>) -> Option<Option<u16>> {
    let word = item.word()?;
    let found = word.strip_prefix(prefix).unwrap_or(word);
    if found == "any" {
        return Some(None);
    }
    match Kind::Port
        .number(found)
        .and_then(|port| u16::try_from(port).ok())
    {
        Some(port) => Some(Some(port)),
        None => {
            let (found, form) = (Found::from(word), field.rule.form());
            field.refuse(item, PolicyMistake::InvalidItemPort { found, form })
        }
    }
}
