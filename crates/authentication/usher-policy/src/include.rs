//! References of sources to included files and groups of accounts. This crate reads neither. The
//! caller follows `include` statements, passes the files as further sources, and looks groups up.

use std::collections::BTreeSet;

use usher_language::{Diagnostic, Item, Origin, Reporter, Source, parse_syntax};

use crate::dialect::{BlockKind, DIALECT};
use crate::mistake::PolicyMistake;
use crate::names::GroupName;

/// Longest path of an `include`, in bytes: PATH_MAX of Linux, with its ending zero.
pub const MAXIMUM_INCLUDE_BYTES: usize = 4095;

/// An `include` statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Include {
    /// The file: absolute, or relative to the folder of the file in which this stands.
    pub path: String,
    /// Its place.
    pub origin: Origin,
}

impl Include {
    /// The mistake of naming a file that cannot be read.
    pub fn unreadable(&self, reason: String) -> Diagnostic {
        let found = self.path.clone();
        Diagnostic::at(
            &self.origin,
            PolicyMistake::UnreadableInclude { found, reason },
        )
    }
}

/// The files that a source includes, in the order of its text; of a source with mistakes those that
/// can be read.
pub fn includes(source: &Source) -> Vec<Include> {
    let sources = std::slice::from_ref(source);
    let reporter = Reporter::new(sources);
    let tree = parse_syntax(&DIALECT, sources, &reporter).unwrap_or_default();
    let statements = tree.statements.iter();
    let included = statements.filter(|statement| statement.keyword == "include");
    let paths = included.filter_map(|statement| match statement.groups.as_slice() {
        [group] => match group.as_slice() {
            [item] => Some((statement, item.text().filter(|path| is_path(path))?)),
            _ => None,
        },
        _ => None,
    });
    let includes = paths.map(|(statement, path)| Include {
        path: path.to_owned(),
        origin: reporter.origin(statement.location, statement.last),
    });
    includes.collect()
}

/// Whether a text can be the path of a file, for all that can be known without looking.
pub(crate) fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAXIMUM_INCLUDE_BYTES
        && !text.ends_with('/')
        && !text.chars().any(char::is_control)
}

/// The groups that sources name, whose members [`crate::parse_with_groups`] takes. Where sources have
/// mistakes: the groups in the statements that can be read.
pub fn groups_named(sources: &[Source]) -> BTreeSet<GroupName> {
    let reporter = Reporter::new(sources);
    let tree = parse_syntax(&DIALECT, sources, &reporter).unwrap_or_default();
    let blocks = tree.blocks.iter();
    blocks
        .filter(|block| block.rule.keyword == BlockKind::Users.word())
        .flat_map(|block| &block.statements)
        .filter(|statement| statement.keyword == "group")
        .flat_map(|statement| statement.groups.iter().flatten())
        .filter_map(Item::word)
        .filter_map(|word| word.parse().ok())
        .collect()
}
