//! `expect` statements.

use std::collections::BTreeSet;

use usher_proto::{HostName, ServiceName, UserName};

use super::fields::Field;
use super::values;
use crate::error::{NameKind, PolicyErrorKind};
use crate::model::{Expectation, Policy};
use crate::report::Reporter;
use crate::tree::Item;

/// What `expect` statements may name.
pub(super) struct Known<'p> {
    pub(super) hosts: &'p BTreeSet<HostName>,
    users: BTreeSet<&'p UserName>,
    services: BTreeSet<&'p ServiceName>,
    /// All users are named in the policy: one who is not found does not exist.
    users_are_known: bool,
    /// Every block is in the policy: a service that is not found does not exist.
    whole: bool,
}

impl<'p> Known<'p> {
    /// Of a policy whose blocks have been checked; `whole` when all of them are sound.
    pub(super) fn of(policy: &'p Policy, hosts: &'p BTreeSet<HostName>, whole: bool) -> Self {
        let offered = policy.services.keys();
        let wanted = policy.client_services().map(|entry| &entry.service);
        // Whom certificates or groups make users, no policy names; and who leaves a group must not
        // make a mistake of an expectation, which would keep the policy from being applied.
        let mut blocks = policy.users.values();
        let by_name = blocks.all(|block| block.principals.is_empty() && block.groups.is_empty());
        Self {
            hosts,
            users: policy
                .users
                .values()
                .flat_map(|block| block.users())
                .collect(),
            services: offered.chain(wanted).collect(),
            users_are_known: whole && by_name,
            whole,
        }
    }
}

/// `expect permit|refuse user USER [at HOST] service SERVICE [at HOST] [port PORT];`
pub(super) fn check(
    field: Field<'_>,
    known: &Known<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Expectation> {
    let mut words = field.sequence(reporter)?.iter().peekable();
    let verdict = next(&mut words, field, reporter)?;
    let permit = values::choice(verdict, &["permit", "refuse"], reporter).map(|found| found == 0);
    keyword(&mut words, "user", field, reporter)?;
    let user = next(&mut words, field, reporter)?;
    let from = after_keyword(&mut words, "at", field, reporter)?;
    keyword(&mut words, "service", field, reporter)?;
    let service = next(&mut words, field, reporter)?;
    let at = after_keyword(&mut words, "at", field, reporter)?;
    let port = after_keyword(&mut words, "port", field, reporter)?;
    if let Some(excess) = words.next() {
        return field.unexpected(excess, reporter);
    }
    let user = known_user(user, known, reporter);
    let from = from.map(|item| host(item, known, reporter));
    let service = known_service(service, known, reporter);
    let at = at.map(|item| host(item, known, reporter));
    let port = port.map(|item| values::port(item, reporter));
    Some(Expectation {
        permit: permit?,
        user: user?,
        from: all_or_none(from)?,
        service: service?,
        at: all_or_none(at)?,
        port: all_or_none(port)?,
        origin: reporter.origin(field.statement.location, field.statement.last),
    })
}

type Words<'i> = std::iter::Peekable<std::slice::Iter<'i, Item>>;

/// A value that was left out is right, and one that is wrong is not.
#[expect(clippy::option_option, reason = "left out, wrong and right are three")]
fn all_or_none<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(value) => value.map(Some),
    }
}

fn next<'i>(
    words: &mut Words<'i>,
    field: Field<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<&'i Item> {
    match words.next() {
        Some(item) => Some(item),
        None => field.missing(reporter),
    }
}

/// The word that must stand here.
fn keyword(
    words: &mut Words<'_>,
    keyword: &str,
    field: Field<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<()> {
    let item = next(words, field, reporter)?;
    if item.is_word(keyword) {
        Some(())
    } else {
        field.unexpected(item, reporter)
    }
}

/// The value after a keyword that may be left out with it.
#[expect(clippy::option_option, reason = "left out, wrong and right are three")]
fn after_keyword<'i>(
    words: &mut Words<'i>,
    keyword: &str,
    field: Field<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Option<&'i Item>> {
    match words.next_if(|item| item.is_word(keyword)) {
        Some(_) => next(words, field, reporter).map(Some),
        None => Some(None),
    }
}

fn known_user(item: &Item, known: &Known<'_>, reporter: &mut Reporter<'_>) -> Option<UserName> {
    let found = values::name::<UserName>(item, NameKind::User, reporter)?;
    if known.users_are_known && !known.users.contains(&found) {
        let nearest = values::nearest_name(found.as_ref(), known.users.iter().copied(), reporter);
        reporter.report(
            item.location,
            PolicyErrorKind::UnknownUser { found, nearest },
        );
        return None;
    }
    Some(found)
}

fn known_service(
    item: &Item,
    known: &Known<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<ServiceName> {
    let found = values::name::<ServiceName>(item, NameKind::Service, reporter)?;
    if known.whole && !known.services.contains(&found) {
        let nearest =
            values::nearest_name(found.as_ref(), known.services.iter().copied(), reporter);
        reporter.report(
            item.location,
            PolicyErrorKind::UnknownService { found, nearest },
        );
        return None;
    }
    Some(found)
}

fn host(item: &Item, known: &Known<'_>, reporter: &mut Reporter<'_>) -> Option<HostName> {
    let found = values::name::<HostName>(item, NameKind::Host, reporter)?;
    values::known_host(found, item, known.hosts, reporter)
}
