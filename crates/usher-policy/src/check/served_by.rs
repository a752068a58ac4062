//! What serves a service: the statements of a `service` block that say which processes do, and with
//! what.

use std::collections::BTreeSet;

use usher_proto::UserName;

use super::fields::{Field, Fields};
use super::{Names, files, values};
use crate::application::is_plain_path;
use crate::error::{EnvironmentFault, NameKind, PolicyErrorKind};
use crate::group::is_ushers;
use crate::model::{DEFAULT_UMASK, MAXIMUM_ARGUMENT_BYTES, Program, ServedBy};
use crate::name::Name;
use crate::report::Reporter;
use crate::tree::Block;

/// `program` with its `environment`, `files`, `umask`, `setuid` and `pam`, or `account`: exactly one
/// of the two.
///
/// `user_blocks` are the names of the `users` blocks that the service admits, as far as known.
pub(super) fn check(
    fields: &Fields<'_>,
    block: &Block,
    user_blocks: Option<&BTreeSet<Name>>,
    names: &Names<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<ServedBy> {
    let program_field = fields.one("program");
    let account_field = fields.one("account");
    let environment_field = fields.one("environment");
    let command = program_field.and_then(|field| program(field, reporter));
    let account = account_field.and_then(|field| account(field, user_blocks, names, reporter));
    let environment = match environment_field {
        Some(field) => environment(field, reporter),
        None => Some(Vec::new()),
    };
    let files_field = fields.one("files");
    let files = match files_field {
        Some(field) => files::check(field, reporter).map(Some),
        None => Some(None),
    };
    let umask_field = fields.one("umask");
    let umask = match umask_field {
        Some(field) => field
            .single(reporter)
            .and_then(|item| values::umask(item, reporter)),
        None => Some(DEFAULT_UMASK),
    };
    let setuid_field = fields.one("setuid");
    let setuid = match setuid_field {
        Some(field) => field
            .single(reporter)
            .and_then(|item| values::choice(item, &["permit", "refuse"], reporter))
            .map(|position| position == 0),
        None => Some(false),
    };
    let pam_field = fields.one("pam");
    let pam_session = match pam_field {
        Some(field) => field
            .single(reporter)
            .and_then(|item| values::choice(item, &["session", "account"], reporter))
            .map(|position| position == 0),
        None => Some(false),
    };
    if let (Some(true), Some(setuid), Some(files)) = (setuid, setuid_field, files_field) {
        let (location, first) = (setuid.statement.location, files.statement.location);
        reporter.report_repeated(location, first, |first| PolicyErrorKind::SetuidWithFiles {
            first,
        });
        return None;
    }
    match (program_field, account_field) {
        (Some(_), None) => {
            let (path, arguments) = command?;
            Some(ServedBy::Program(Program {
                path,
                arguments,
                environment: environment?,
                files: files?,
                umask: umask?,
                setuid: setuid?,
                pam_session: pam_session?,
            }))
        }
        (None, Some(_)) => {
            let for_program = [environment_field, files_field, umask_field, setuid_field];
            let pam_session = pam_field.filter(|_| pam_session != Some(false));
            let for_program = for_program.into_iter().chain([pam_session]);
            if let Some(field) = for_program.flatten().next() {
                let statement = field.rule.keyword;
                let error = match statement {
                    "pam" => PolicyErrorKind::PamSessionForAccount,
                    _ => PolicyErrorKind::NotForAccount { statement },
                };
                reporter.report(field.statement.location, error);
                return None;
            }
            Some(ServedBy::Account(account?))
        }
        (Some(program), Some(account)) => {
            let (first, second) = if program.statement.location < account.statement.location {
                (program, account)
            } else {
                (account, program)
            };
            let (location, first_location) = (second.statement.location, first.statement.location);
            reporter.report_repeated(location, first_location, |place| {
                PolicyErrorKind::ServedTwice {
                    statement: second.rule.keyword,
                    other: first.rule.keyword,
                    first: place,
                }
            });
            None
        }
        (None, None) => {
            reporter.report(block.location, PolicyErrorKind::NotServed);
            None
        }
    }
}

/// `account NAME;`
fn account(
    field: Field<'_>,
    user_blocks: Option<&BTreeSet<Name>>,
    names: &Names<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<UserName> {
    let item = field.single(reporter)?;
    let account = values::name::<UserName>(item, NameKind::Account, reporter)?;
    // As for members: the keeper refuses accounts of uid 0, whatever they are called.
    if account.as_ref() == "root" {
        reporter.report(item.location, PolicyErrorKind::RootAsAccount);
        return None;
    }
    if is_ushers(&account) {
        let error = PolicyErrorKind::UshersAccount { account };
        reporter.report(item.location, error);
        return None;
    }
    let admitting = user_blocks.into_iter().flatten().find(|block| {
        let users = names.users.get(*block);
        users.is_some_and(|users| users.has(&account))
    });
    if let Some(block_name) = admitting.cloned() {
        let error = PolicyErrorKind::AccountIsUser {
            account,
            block_name,
        };
        reporter.report(item.location, error);
        return None;
    }
    Some(account)
}

/// `program "/path" "argument" ...;`
fn program(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<(String, Vec<String>)> {
    let items = field.sequence(reporter)?;
    let texts: Vec<Option<&str>> = items
        .iter()
        .map(|item| values::text(item, reporter))
        .collect();
    let texts: Vec<&str> = texts.into_iter().collect::<Option<_>>()?;
    let (program, arguments) = texts.split_first()?;
    if !is_plain_path(program) {
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
fn environment(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Vec<(String, String)>> {
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
