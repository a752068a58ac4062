//! Texts and places in them.

use std::fmt;

use serde::Serialize;

/// Longest source in bytes. A longer one is refused whole ([`crate::PolicyErrorKind::SourceTooLong`]).
pub const MAXIMUM_SOURCE_BYTES: usize = 1024 * 1024;

/// One policy text, already read and known to be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What errors call it, normally the path of the file.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A range of a source's text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Span {
    /// Where it begins: bytes from the start of the text, always at a character boundary.
    pub offset: usize,
    /// How long it is, in bytes. Zero marks a point, for instance where a `;` is missing.
    pub length: usize,
}

impl Span {
    /// The byte after the last one.
    pub(crate) fn end(self) -> usize {
        self.offset + self.length
    }
}

/// A place as people name it: file, line and column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The [`Source::name`].
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters (not bytes, not screen cells), counted from 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A span in one of the sources given to [`crate::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    /// Index of the source.
    pub(crate) source: usize,
    pub(crate) span: Span,
}

impl Location {
    /// The point right after this location.
    pub(crate) fn after(self) -> Self {
        Self {
            source: self.source,
            span: Span {
                offset: self.span.end(),
                length: 0,
            },
        }
    }
}

/// Line and column of a byte offset. Walks the text: for errors only.
pub(crate) fn place_of(sources: &[Source], location: Location) -> Place {
    let source = &sources[location.source];
    let before = &source.text[..location.span.offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Place {
        file: source.name.clone(),
        line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}
