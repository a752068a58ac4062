//! Cuts texts into words, and remembers where each stood.

use usher_language::Span;

use crate::limits::{MAXIMUM_ELEMENTS, MAXIMUM_TEXT};
use crate::mistake::{LabelError, LabelMistake};

/// The parts between the commas of a label or of a list, none of them empty, within the limits.
pub(crate) fn parts(text: &str) -> Result<Vec<(Span, &str)>, LabelError> {
    let length = text.len();
    let whole = Span { offset: 0, length };
    let refused = |span, mistake| Err(LabelError { span, mistake });
    if length == 0 {
        return refused(whole, LabelMistake::Empty);
    }
    if length > MAXIMUM_TEXT {
        return refused(whole, LabelMistake::TooLong { length });
    }
    let mut offset = 0;
    let mut parts = Vec::new();
    for part in text.split(',') {
        let length = part.len();
        let span = Span { offset, length };
        if part.is_empty() {
            return refused(span, LabelMistake::EmptyElement);
        }
        parts.push((span, part));
        offset += length + 1;
    }
    let count = parts.len();
    if count > MAXIMUM_ELEMENTS {
        return refused(whole, LabelMistake::TooManyElements { count });
    }
    Ok(parts)
}

/// The lines of a text, each with its offset, without the line ends.
pub(crate) fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut offset = 0;
    text.split_inclusive('\n').map(move |line| {
        let begin = offset;
        offset += line.len();
        let line = line.strip_suffix('\n').unwrap_or(line);
        (begin, line.strip_suffix('\r').unwrap_or(line))
    })
}

/// The words of a line, separated by blanks and tabs, each with its place in the text. The line is at
/// `offset` there.
pub(crate) fn words(offset: usize, line: &str) -> Vec<(Span, &str)> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if rest.is_empty() {
            return words;
        }
        let length = rest.find([' ', '\t']).unwrap_or(rest.len());
        let offset = offset + (line.len() - rest.len());
        words.push((Span { offset, length }, &rest[..length]));
        rest = &rest[length..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_know_where_they_stood() {
        let text = "# one\r\n\n  a\tbc  \nd";
        let found: Vec<_> = numbered_lines(text)
            .flat_map(|(offset, line)| words(offset, line))
            .collect();
        for (span, word) in &found {
            assert_eq!(&text[span.offset..span.end()], *word);
        }
        let found: Vec<_> = found.into_iter().map(|(_, word)| word).collect();
        assert_eq!(found, ["#", "one", "a", "bc", "d"]);
    }
}
