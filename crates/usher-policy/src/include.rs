//! `include` statements. This crate reads no files: the caller follows them, and gives what it has
//! read as further sources.

use crate::error::{PolicyError, PolicyErrorKind};
use crate::report::Reporter;
use crate::source::{Origin, Source};
use crate::syntax;
use crate::tree::{Item, Value};

/// Longest path of an `include`, in bytes: PATH_MAX of Linux, with its ending zero.
pub const MAXIMUM_INCLUDE_BYTES: usize = 4095;

/// An `include` statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Include {
    /// The file: absolute, or relative to the folder of the file in which this stands.
    pub path: String,
    /// Where it stands.
    pub origin: Origin,
}

impl Include {
    /// The mistake of naming a file that cannot be read.
    pub fn unreadable(&self, reason: String) -> PolicyError {
        let found = self.path.clone();
        let kind = PolicyErrorKind::UnreadableInclude { found, reason };
        PolicyError::at(&self.origin, kind)
    }
}

/// The files that a source includes, in the order of its text; of a source with mistakes those that
/// can be read.
pub fn includes(source: &Source) -> Vec<Include> {
    let sources = std::slice::from_ref(source);
    let mut reporter = Reporter::new(sources);
    let tree = syntax::parse_sources(sources, &mut reporter).unwrap_or_default();
    let statements = tree.statements.iter();
    statements
        .filter(|statement| statement.keyword == "include")
        .filter_map(|statement| match statement.groups.as_slice() {
            [group] => match group.as_slice() {
                [item] => Some((statement, path(item)?)),
                _ => None,
            },
            _ => None,
        })
        .map(|(statement, path)| Include {
            path: path.to_owned(),
            origin: reporter.origin(statement.location, statement.last),
        })
        .collect()
}

/// The path, where it can be one.
fn path(item: &Item) -> Option<&str> {
    match &item.value {
        Value::Text(text) if is_path(text) => Some(text),
        _ => None,
    }
}

/// Whether a text can be the path of a file, for all that can be known without looking.
pub(crate) fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAXIMUM_INCLUDE_BYTES
        && !text.ends_with('/')
        && !text.chars().any(char::is_control)
}
