//! Texts and places in them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One policy text, already read and known to be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// What errors call it, normally the path of the file.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A range of a source's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Span {
    /// Where it begins: bytes from the start of the text, always at a character boundary.
    pub offset: usize,
    /// How long it is, in bytes. Zero marks a point, for instance where a `;` is missing.
    pub length: usize,
}

impl Span {
    /// From one byte to another, which is not of it.
    pub(crate) fn between(offset: usize, end: usize) -> Self {
        let length = end - offset;
        Self { offset, length }
    }

    /// The byte after the last one.
    pub fn end(self) -> usize {
        self.offset + self.length
    }
}

/// A place as people name it: file, line and column.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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

/// Where a statement of a policy stands.
///
/// Any two are equal: what a policy says does not depend on where it is written, and two policies
/// that say the same are the same.
#[derive(Clone, Debug, Default, Eq, Serialize)]
pub struct Origin {
    /// Where it begins; for a policy that was never text, an empty one.
    #[serde(flatten)]
    pub place: Place,
    /// The statement, in bytes of its source.
    pub span: Span,
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A span in one of the sources that are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Index of the source.
    pub source: usize,
    /// The span.
    pub span: Span,
}

impl Location {
    /// The point right after this location.
    pub fn after(self) -> Self {
        Self {
            source: self.source,
            span: Span::between(self.span.end(), self.span.end()),
        }
    }
}

/// Places of statements that are asked for in the order of their text, at the cost of one walk.
#[derive(Debug, Default)]
pub(crate) struct PlaceFinder {
    /// The source and the offset up to which lines and columns are counted.
    walked: (usize, usize),
    lines: usize,
    columns: usize,
}

impl PlaceFinder {
    pub(crate) fn place(&mut self, sources: &[Source], location: Location) -> Place {
        let (source, offset) = (location.source, location.span.offset);
        if self.walked.0 != source || self.walked.1 > offset {
            *self = Self {
                walked: (source, 0),
                ..Self::default()
            };
        }
        let text = &sources[source].text[self.walked.1..offset];
        self.walked.1 = offset;
        match text.rfind('\n') {
            Some(newline) => {
                self.lines += text.bytes().filter(|&byte| byte == b'\n').count();
                self.columns = text[newline + 1..].chars().count();
            }
            None => self.columns += text.chars().count(),
        }
        Place {
            file: sources[source].name.clone(),
            line: self.lines + 1,
            column: self.columns + 1,
        }
    }
}

/// The place of one location. Walks the text: for errors only.
pub(crate) fn place_of(sources: &[Source], location: Location) -> Place {
    PlaceFinder::default().place(sources, location)
}
