//! The statements of a `service` block that say which processes serve it, and with what.

use std::collections::BTreeSet;

use usher_base::UserName;
use usher_language::{Field, Fields, Found, Item, Name, is_plain_path};

use super::{Names, files};
use crate::limits::{
    DEFAULT_UMASK, MAXIMUM_ARGUMENT_BYTES, MAXIMUM_HEADER_BYTES, MAXIMUM_SOCKET_BYTES,
};
use crate::members::is_ushers;
use crate::mistake::PolicyMistake;
use crate::model::{Backend, Identification, Program, ServedBy, Style};
use crate::names::ACCOUNT;

/// The header with the user's name, where `identify` names none.
const DEFAULT_HEADER: &str = "X-Remote-User";
/// Headers that HTTP gives a meaning (RFC 9110, 9112), and those in which usher-identify says where the client
/// is.
const RESERVED_HEADERS: [&str; 20] = [
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Cookie",
    "Date",
    "Expect",
    "Forwarded",
    "Host",
    "HTTP2-Settings",
    "Keep-Alive",
    "Proxy-Connection",
    "Range",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Via",
    "X-Forwarded-For",
];

/// `program` with its `environment`, `files`, `umask`, `setuid` and `pam`, or `account`; with
/// [`Style::Shared`] `account` beside `program` or `identify`.
///
/// `user_blocks` are the names of the `users` blocks that the service admits, as far as known.
pub(super) fn check_served_by(
    fields: &Fields<'_>,
    user_blocks: Option<&BTreeSet<Name>>,
    names: &Names<'_>,
) -> Option<ServedBy> {
    let program = fields.one("program").and_then(check_program);
    let account = fields
        .one("account")
        .and_then(|field| account(field, user_blocks, names));
    let environment = fields
        .one("environment")
        .map(environment)
        .unwrap_or_default();
    let files = fields.one("files").map(files::check_files);
    let setuid = fields.word("setuid") == Some("permit");
    let pam_session = fields.word("pam") == Some("session");
    if let (true, Some(setuid), Some(files)) = (setuid, fields.one("setuid"), fields.one("files")) {
        let first = names.reporter.place(files.statement.location);
        let mistake = PolicyMistake::SetuidWithFiles { first };
        names.reporter.report(setuid.statement.location, mistake);
    }
    if let (true, Some(pam), Some(_)) = (pam_session, fields.one("pam"), fields.one("account")) {
        let mistake = PolicyMistake::PamSessionForAccount;
        names.reporter.report(pam.statement.location, mistake);
    }
    let account = match (fields.word("style"), fields.one("account")) {
        (Some(style), found) if style == Style::Shared.word() => {
            let identify = fields.one("identify");
            let mistake = match (found, fields.one("program"), identify) {
                (Some(account), None, None) => Some((account, PolicyMistake::SharedWithoutProgram)),
                (None, Some(program), _) => Some((program, PolicyMistake::SharedWithoutAccount)),
                (Some(_), Some(program), Some(identify)) => {
                    let first = names.reporter.place(program.statement.location);
                    Some((identify, PolicyMistake::IdentifyWithProgram { first }))
                }
                _ => None,
            };
            if let Some((field, mistake)) = mistake {
                return names.reporter.refuse(field.statement.location, mistake);
            }
            if let Some(identify) = identify {
                return backend(identify, account?);
            }
            Some(account?)
        }
        (_, Some(_)) => return account.map(ServedBy::Account),
        (_, None) => None,
    };
    let (path, arguments) = program?;
    Some(ServedBy::Program(Program {
        path,
        arguments,
        account,
        environment,
        files,
        umask: fields.number("umask").unwrap_or(DEFAULT_UMASK),
        setuid,
        pam_session,
    }))
}

/// `account NAME;`
fn account(
    field: &Field<'_>,
    user_blocks: Option<&BTreeSet<Name>>,
    names: &Names<'_>,
) -> Option<UserName> {
    let (account, item) = field.names::<UserName>(&ACCOUNT).next()?;
    // The keeper refuses accounts of uid 0, whatever their name. `root` is refused here as well, as it is
    // among members.
    if account.as_ref() == "root" {
        return field.refuse(item, PolicyMistake::RootAsAccount);
    }
    if is_ushers(&account) {
        return field.refuse(item, PolicyMistake::UshersAccount { account });
    }
    let admits = |block: &&Name| {
        names
            .users
            .get(*block)
            .is_some_and(|users| users.has(&account))
    };
    match user_blocks.into_iter().flatten().find(admits).cloned() {
        None => Some(account),
        Some(block_name) => {
            let mistake = PolicyMistake::AccountIsUser {
                account,
                block_name,
            };
            field.refuse(item, mistake)
        }
    }
}

/// `identify WAY "/path" [header NAME];`
fn backend(field: &Field<'_>, account: UserName) -> Option<ServedBy> {
    let [way, path, named] = field.parts()?;
    let identification = Identification::of_word(way?.word()?)?;
    let item = path?;
    let socket = item.text()?;
    if !is_plain_path(socket) || socket.len() > MAXIMUM_SOCKET_BYTES {
        let found = socket.into();
        return field.refuse(item, PolicyMistake::InvalidSocket { found });
    }
    let header = match (identification, named) {
        (Identification::Http | Identification::Http2, None) => Some(DEFAULT_HEADER.to_owned()),
        (Identification::Http | Identification::Http2, Some(item)) => Some(header(field, item)?),
        (_, Some(item)) => return field.refuse(item, PolicyMistake::HeaderWithoutHttp),
        (_, None) => None,
    };
    Some(ServedBy::Backend(Backend {
        account,
        identification,
        socket: socket.to_owned(),
        header,
    }))
}

/// The name of a header for the user's name: letters, digits and hyphens, because servers take other
/// characters for one of these or drop the header; none that HTTP itself gives a meaning.
fn header(field: &Field<'_>, item: &Item) -> Option<String> {
    let name = item.word()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_plain = name.bytes().all(plain)
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric())
        && name.len() <= MAXIMUM_HEADER_BYTES;
    let is_reserved = RESERVED_HEADERS
        .iter()
        .any(|reserved| name.eq_ignore_ascii_case(reserved));
    if is_plain && !is_reserved {
        return Some(name.to_owned());
    }
    let found = name.into();
    field.refuse(item, PolicyMistake::InvalidHeader { found })
}

/// `program "/path" "argument" ...;`
fn check_program(field: &Field<'_>) -> Option<(String, Vec<String>)> {
    let mut texts = field.texts();
    let (program, item) = texts.next()?;
    if !is_plain_path(program) {
        let found = program.into();
        return field.refuse(item, PolicyMistake::InvalidProgram { found });
    }
    limit_bytes(field);
    Some((
        program.to_owned(),
        texts.map(|(text, _)| text.to_owned()).collect(),
    ))
}

/// `environment "NAME=VALUE", ...;`
fn environment(field: &Field<'_>) -> Vec<(String, String)> {
    let mut names = BTreeSet::new();
    let entries = field.texts().filter_map(|(text, item)| {
        let entry = environment_entry(text, &mut names);
        entry
            .map_err(|mistake| field.reporter.report(item.location, mistake))
            .ok()
    });
    let entries = entries.collect();
    limit_bytes(field);
    entries
}

fn environment_entry<'t>(
    text: &'t str,
    names: &mut BTreeSet<&'t str>,
) -> Result<(String, String), PolicyMistake> {
    let found = Found::from(text);
    let Some((name, value)) = text.split_once('=') else {
        return Err(PolicyMistake::NoEqualSign { found });
    };
    let capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let valid = name.bytes().next().is_some_and(capital)
        && name
            .bytes()
            .all(|byte| capital(byte) || byte.is_ascii_digit());
    if !valid {
        return Err(PolicyMistake::InvalidVariable { found });
    }
    let set_by_usher = ["HOME", "USER", "LOGNAME", "SHELL", "PATH"].contains(&name)
        || ["LISTEN_", "USHER_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    if set_by_usher {
        return Err(PolicyMistake::ReservedVariable { found });
    }
    if !names.insert(name) {
        return Err(PolicyMistake::RepeatedVariable { found });
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Reports a statement that is too long for a worker's start: each string counts with its ending zero.
fn limit_bytes(field: &Field<'_>) {
    let bytes: usize = field.texts().map(|(text, _)| text.len() + 1).sum();
    if bytes > MAXIMUM_ARGUMENT_BYTES {
        let statement = field.rule.keyword.clone();
        let mistake = PolicyMistake::ArgumentsTooLong { statement };
        field.reporter.report(field.statement.location, mistake);
    }
}
