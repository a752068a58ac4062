//! The lines around a mistake, as messages show them.

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};
use usher_policy::PolicyError;

use crate::output::escaped;

/// Limit of characters of a line that are shown on each side of the mistake.
const SIDE: usize = 100;

/// A line and its neighbours. Long lines are cut, and characters that a terminal would obey or hide are
/// replaced.
#[derive(Debug)]
pub struct Excerpt {
    name: String,
    text: String,
    /// The mistake, in bytes of `text`.
    pub span: SourceSpan,
    /// Number of the first line of `text`, from 0.
    first_line: usize,
    /// Number of the mistake's line, from 0.
    line: usize,
    column: usize,
}

impl Excerpt {
    /// The excerpt around a mistake in this text.
    pub fn new(error: &PolicyError, text: &str) -> Self {
        let start = error.span.offset.min(text.len());
        let end = (start + error.span.length).min(text.len());
        let begins = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let ends = text[start..]
            .find('\n')
            .map_or(text.len(), |newline| start + newline);
        // A line may end with a carriage return.
        let shown = |part: &str| -> String {
            let part = part.strip_suffix('\r').unwrap_or(part);
            part.chars().take(SIDE).map(visible).collect()
        };
        let last = |part: &str| -> String {
            let skipped = part.chars().count().saturating_sub(SIDE);
            let cut = part.chars().skip(skipped).map(visible);
            let dots = if skipped > 0 { "…" } else { "" };
            dots.to_owned() + &cut.collect::<String>()
        };
        let mut excerpt = String::new();
        let mut first_line = error.place.line - 1;
        if begins > 0 {
            let former = &text[..begins - 1];
            let former = former.rsplit('\n').next().unwrap_or_default();
            excerpt = shown(former) + "\n";
            first_line -= 1;
        }
        excerpt += &last(&text[begins..start]);
        let from = excerpt.len();
        let mistake = shown(&text[start..end.min(ends)]);
        let length = mistake.len();
        excerpt += &mistake;
        excerpt += &shown(&text[end.min(ends)..ends]);
        if ends < text.len() {
            let next = text[ends + 1..].split('\n').next().unwrap_or_default();
            excerpt += "\n";
            excerpt += &shown(next);
        }
        Self {
            name: escaped(&error.place.file).into_owned(),
            text: excerpt,
            span: (from, length).into(),
            first_line,
            line: error.place.line - 1,
            column: error.place.column - 1,
        }
    }
}

/// Replaces a character that a terminal would obey or hide by a visible one. Unlike [`escaped`] it
/// returns one character, so that the underline fits.
fn visible(character: char) -> char {
    match character {
        character if usher_policy::is_plain(character) => character,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(character)).unwrap_or('\u{fffd}'),
        _ => '\u{fffd}',
    }
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        _lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        // A request without neighbours asks for the place of the mistake.
        let (part, line, column) = match lines_before {
            0 => (*span, self.line, self.column),
            _ => ((0, self.text.len()).into(), self.first_line, 0),
        };
        let bytes = &self.text.as_bytes()[part.offset()..part.offset() + part.len()];
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            bytes,
            part,
            line,
            column,
            1,
        )))
    }
}
