//! Texts and places in them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One policy text, already read and known to be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name in errors, normally the path of the file.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A range of a source's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Span {
    /// The beginning: bytes from the start of the text, always at a character boundary.
    pub offset: usize,
    /// How long it is, in bytes. Zero marks a point, for instance where a `;` is missing.
    pub length: usize,
}

impl Span {
    /// From one byte up to another, which is excluded.
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
    /// The name of the source, normally the path of the file.
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

/// The place of a policy's statement.
///
/// Any two are equal: what a policy says does not depend on where it is written, and two policies
/// that say the same are the same.
#[derive(Clone, Debug, Default, Eq, Serialize)]
pub struct Origin {
    /// The beginning; empty for a policy that was never text.
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

/// Places of statements, each found from the one before: cheap where these are near each other, in
/// either direction.
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
        if self.walked.0 != source {
            *self = Self {
                walked: (source, 0),
                ..Self::default()
            };
        }
        let (text, walked) = (&sources[source].text, self.walked.1);
        self.walked.1 = offset;
        let between = &text[walked.min(offset)..walked.max(offset)];
        let lines = between.bytes().filter(|&byte| byte == b'\n').count();
        let columns = between.chars().count();
        if offset < walked {
            self.lines -= lines
        } else {
            self.lines += lines
        }
        self.columns = match (lines, offset < walked) {
            (0, false) => self.columns + columns,
            (0, true) => self.columns - columns,
            _ => {
                let begin = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
                text[begin..offset].chars().count()
            }
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_same_in_whatever_order_they_are_asked_for() {
        let texts = ["a\n\u{e4}b\r\n\nccc", "\n", "one line \u{2013} only"];
        let sources = texts.map(|text| Source {
            name: "test".to_owned(),
            text: text.to_owned(),
        });
        let locations = |source: usize| {
            let text = &sources[source].text;
            let offsets = (0..=text.len()).filter(|&offset| text.is_char_boundary(offset));
            offsets.map(move |offset| Location {
                source,
                span: Span { offset, length: 0 },
            })
        };
        let all: Vec<Location> = (0..sources.len()).flat_map(locations).collect();
        for first in &all {
            for second in &all {
                let mut finder = PlaceFinder::default();
                for location in [first, second] {
                    let text = &sources[location.source].text[..location.span.offset];
                    let last = text.rsplit('\n').next().unwrap_or_default();
                    let expected = (text.matches('\n').count() + 1, last.chars().count() + 1);
                    let place = finder.place(&sources, *location);
                    assert_eq!((place.line, place.column), expected, "{location:?}");
                }
            }
        }
    }
}
