//! `expect` statements: their form. Names that the policy lacks are no mistakes but warnings
//! ([`crate::Policy::unknown_names`]): an expectation about what was removed must not keep the removal
//! from being applied.

use usher_proto::{HostName, ServiceName, UserName};

use super::fields::Field;
use super::values;
use crate::error::NameKind;
use crate::model::Expectation;
use crate::report::Reporter;
use crate::tree::Item;

/// `expect permit|refuse user USER [at HOST] service SERVICE [at HOST] [port PORT];`
pub(super) fn check(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Expectation> {
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
    let user = values::name::<UserName>(user, NameKind::User, reporter);
    let from = from.map(|item| values::name::<HostName>(item, NameKind::Host, reporter));
    let service = values::name::<ServiceName>(service, NameKind::Service, reporter);
    let at = at.map(|item| values::name::<HostName>(item, NameKind::Host, reporter));
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
