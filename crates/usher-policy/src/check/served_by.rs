//! What serves a service: the statements of a `service` block that say which processes do.

use std::collections::BTreeSet;

use super::fields::Field;
use super::values;
use crate::error::{EnvironmentFault, PolicyErrorKind};
use crate::model::MAXIMUM_ARGUMENT_BYTES;
use crate::report::Reporter;

/// `program "/path" "argument" ...;`
pub(super) fn program(
    field: Field<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<(String, Vec<String>)> {
    let items = field.sequence(reporter)?;
    let texts: Vec<Option<&str>> = items
        .iter()
        .map(|item| values::text(item, reporter))
        .collect();
    let texts: Vec<&str> = texts.into_iter().collect::<Option<_>>()?;
    let (program, arguments) = texts.split_first()?;
    let plain = program.strip_prefix('/').is_some_and(|path| {
        path.split('/')
            .all(|component| !["", ".", ".."].contains(&component))
    });
    if !plain {
        let found = (*program).to_owned();
        reporter.report(items[0].location, PolicyErrorKind::InvalidProgram { found });
        return None;
    }
    limit_bytes(field, texts.iter().copied(), reporter)?;
    Some((
        (*program).to_owned(),
        arguments.iter().map(|&text| text.to_owned()).collect(),
    ))
}

/// `environment "NAME=VALUE", ...;`
pub(super) fn environment(
    field: Field<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Vec<(String, String)>> {
    let items = field.list(reporter)?;
    let mut names = BTreeSet::new();
    let mut entries = Some(Vec::with_capacity(items.len()));
    for item in items {
        let entry = values::text(item, reporter).and_then(|text| {
            match environment_entry(text, &mut names) {
                Ok(entry) => Some(entry),
                Err(fault) => {
                    let found = text.to_owned();
                    let error = PolicyErrorKind::InvalidEnvironment { found, fault };
                    reporter.report(item.location, error);
                    None
                }
            }
        });
        entries = entries.zip(entry).map(|(mut entries, entry)| {
            entries.push(entry);
            entries
        });
    }
    let entries = entries?;
    // The `=` of each entry counts for its ending zero, which limit_bytes adds to the name's.
    let texts = entries
        .iter()
        .flat_map(|(name, value): &(String, String)| [name, value]);
    limit_bytes(field, texts.map(String::as_str), reporter)?;
    Some(entries)
}

fn environment_entry(
    text: &str,
    names: &mut BTreeSet<String>,
) -> Result<(String, String), EnvironmentFault> {
    let (name, value) = text.split_once('=').ok_or(EnvironmentFault::NoEqualSign)?;
    let capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let valid = name.bytes().next().is_some_and(capital)
        && name
            .bytes()
            .all(|byte| capital(byte) || byte.is_ascii_digit());
    if !valid {
        return Err(EnvironmentFault::InvalidName);
    }
    let set_by_usher = ["HOME", "USER", "LOGNAME", "SHELL", "PATH"].contains(&name)
        || ["LISTEN_", "USHER_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    if set_by_usher {
        return Err(EnvironmentFault::Reserved);
    }
    if !names.insert(name.to_owned()) {
        return Err(EnvironmentFault::Repeated);
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Refuses what would be too long for a worker's start.
fn limit_bytes<'t>(
    field: Field<'_>,
    texts: impl Iterator<Item = &'t str>,
    reporter: &mut Reporter<'_>,
) -> Option<()> {
    let bytes: usize = texts.map(|text| text.len() + 1).sum();
    if bytes > MAXIMUM_ARGUMENT_BYTES {
        let statement = field.rule.keyword;
        reporter.report(
            field.statement.location,
            PolicyErrorKind::ArgumentsTooLong { statement },
        );
        return None;
    }
    Some(())
}
