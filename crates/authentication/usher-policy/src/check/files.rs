//! `files` of a `service` block.

use usher_language::{Checked, Field, Found, Item, Kind, Unique, is_plain_path};

use crate::limits::MAXIMUM_FILE_RULES;
use crate::mistake::PolicyMistake;
use crate::model::{FileAccess, FileRule};

/// `files "PATH" read|write, ...;`
pub(super) fn check_files(field: &Field<'_>) -> Vec<FileRule> {
    let groups = &field.statement.groups;
    if groups.is_empty() {
        field.missing::<()>();
    }
    if field.has_too_many(MAXIMUM_FILE_RULES, ": folders stand for what is in them") {
        return Vec::new();
    }
    let mut paths = Unique::default();
    groups
        .iter()
        .filter_map(|group| rule(group, &mut paths, field))
        .collect()
}

fn rule(group: &[Item], paths: &mut Unique<String>, field: &Field<'_>) -> Option<FileRule> {
    let (path, access) = match group {
        [path, access] => (path, access),
        [_, _, third, ..] => return field.unexpected(third),
        [path] => {
            let found = Found(path.shown());
            return field.refuse(path, PolicyMistake::MissingFileAccess { found });
        }
        [] => return None,
    };
    let text = Kind::Text(String::new());
    let Checked::Text(text) = text.read(path, field.reporter)? else {
        return None;
    };
    paths.list(text.clone(), path, field.reporter)?;
    if !is_path(&text) {
        let found = text.into();
        return field.refuse(path, PolicyMistake::InvalidFilePath { found });
    }
    FileAccess::kind().read(access, field.reporter)?;
    let access = FileAccess::of_word(access.word()?)?;
    Some(FileRule { path: text, access })
}

/// Whether a text is a plain path, absolute or in the user's home.
fn is_path(text: &str) -> bool {
    let in_home = text.strip_prefix('~');
    text == "/" || in_home == Some("") || is_plain_path(in_home.unwrap_or(text))
}
