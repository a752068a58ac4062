//! `files` of a `service` block.

use super::fields::Field;
use super::unique::Unique;
use super::values;
use crate::application::is_plain_path;
use crate::error::PolicyErrorKind;
use crate::model::{FileAccess, FileRule, MAXIMUM_FILE_RULES};
use crate::report::Reporter;

/// `files "PATH" read|write, ...;`
pub(super) fn check(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Vec<FileRule>> {
    let groups = &field.statement.groups;
    if groups.is_empty() {
        return field.missing(reporter);
    }
    if groups.len() > MAXIMUM_FILE_RULES {
        reporter.report(
            field.statement.location,
            PolicyErrorKind::TooManyFileRules {
                found: groups.len(),
            },
        );
        return None;
    }
    let mut paths = Unique::default();
    let mut rules = Some(Vec::with_capacity(groups.len()));
    for group in groups {
        let rule = match group.as_slice() {
            [path, access] => values::text(path, reporter).and_then(|text| {
                paths.list(text.to_owned(), path, reporter)?;
                if !is_path(text) {
                    let found = text.to_owned();
                    reporter.report(path.location, PolicyErrorKind::InvalidFilePath { found });
                    return None;
                }
                let access = values::choice(access, &["read", "write"], reporter)?;
                Some(FileRule {
                    path: text.to_owned(),
                    access: [FileAccess::Read, FileAccess::Write][access],
                })
            }),
            [path] => {
                let found = path.shown();
                reporter.report(path.location, PolicyErrorKind::MissingFileAccess { found });
                None
            }
            [_, _, third, ..] => field.unexpected(third, reporter),
            [] => None,
        };
        rules = rules.zip(rule).map(|(mut rules, rule)| {
            rules.push(rule);
            rules
        });
    }
    rules
}

/// An absolute path, or one in the user's home, with one spelling.
fn is_path(text: &str) -> bool {
    let in_home = text.strip_prefix('~');
    text == "/" || in_home == Some("") || is_plain_path(in_home.unwrap_or(text))
}
