//! Text to tokens.
//!
//! A word is a run of anything but blanks and the six characters `; , { } " #`: addresses, paths and
//! `localport=any` are one word each. Later stages know what a word means.

use crate::faults::SyntaxMistake;
use crate::report::Reporter;
use crate::source::{Location, Source, Span};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind<'a> {
    Word(&'a str),
    /// A string, escapes already replaced.
    Text(String),
    /// A string without its end, already reported: it takes the rest of its line along, up to the `;`
    /// that ends a statement.
    BrokenText,
    Semicolon,
    Comma,
    Open,
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind<'a>,
    pub(crate) location: Location,
    /// Only blanks stand before the token on its line.
    pub(crate) starts_line: bool,
}

pub(crate) struct Lexer<'a> {
    text: &'a str,
    source: usize,
    position: usize,
    at_line_start: bool,
    /// The end of the line whose quotes were counted last, and whether one is missing.
    quotes: Option<(usize, bool)>,
}

impl<'a> Lexer<'a> {
    /// Begins the source with this index. Reports, once, every character that does not belong in
    /// a policy at all; the lexer then passes over them.
    pub(crate) fn new(source: &'a Source, index: usize, reporter: &Reporter<'_>) -> Self {
        let lexer = Self {
            text: &source.text,
            source: index,
            position: 0,
            at_line_start: true,
            quotes: None,
        };
        for (offset, character) in source.text.char_indices() {
            if reporter.is_full() {
                break;
            }
            if is_forbidden(character, &source.text[offset + character.len_utf8()..]) {
                let location = lexer.location(offset, offset + character.len_utf8());
                reporter.report(location, SyntaxMistake::ForbiddenCharacter { character });
            }
        }
        lexer
    }

    /// The next token, or none at the end of the text.
    pub(crate) fn next_token(&mut self, reporter: &Reporter<'_>) -> Option<Token<'a>> {
        self.skip_blanks_and_comments();
        let start = self.position;
        let starts_line = std::mem::replace(&mut self.at_line_start, false);
        let kind = match self.peek()? {
            ';' => self.punctuation(TokenKind::Semicolon),
            ',' => self.punctuation(TokenKind::Comma),
            '{' => self.punctuation(TokenKind::Open),
            '}' => self.punctuation(TokenKind::Close),
            '"' => self.string(reporter),
            _ => self.word(),
        };
        Some(Token {
            kind,
            location: self.location(start, self.position),
            starts_line,
        })
    }

    fn location(&self, start: usize, end: usize) -> Location {
        Location {
            source: self.source,
            span: Span::between(start, end),
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.position..].chars().next()
    }

    fn peek_is_forbidden(&self, character: char) -> bool {
        is_forbidden(
            character,
            &self.text[self.position + character.len_utf8()..],
        )
    }

    fn punctuation(&mut self, kind: TokenKind<'a>) -> TokenKind<'a> {
        self.position += 1;
        kind
    }

    fn skip_blanks_and_comments(&mut self) {
        while let Some(character) = self.peek() {
            match character {
                '\n' => {
                    self.at_line_start = true;
                    self.position += 1;
                }
                '#' => {
                    let rest = &self.text[self.position..];
                    self.position += rest.find('\n').unwrap_or(rest.len());
                }
                ' ' | '\t' | '\r' => self.position += 1,
                _ if self.peek_is_forbidden(character) => self.position += character.len_utf8(),
                _ => return,
            }
        }
    }

    fn word(&mut self) -> TokenKind<'a> {
        let start = self.position;
        while let Some(character) = self.peek() {
            if " \t\r\n;,{}\"#".contains(character) || self.peek_is_forbidden(character) {
                break;
            }
            self.position += character.len_utf8();
        }
        TokenKind::Word(&self.text[start..self.position])
    }

    /// Reads a string. It must end on its line, so that a forgotten quote spoils one statement and not the
    /// rest of the file.
    fn string(&mut self, reporter: &Reporter<'_>) -> TokenKind<'a> {
        let start = self.position;
        self.position += 1;
        let mut content = String::new();
        loop {
            let character = self.peek().filter(|&character| character != '\n');
            let ends_elsewhere =
                character == Some('"') && self.lacks_quote(start) && self.begins_another();
            let Some(character) = character.filter(|_| !ends_elsewhere) else {
                let line = &self.text[start..self.position];
                let unterminated = self.location(start, start + line.trim_end().len());
                reporter.report(unterminated, SyntaxMistake::UnterminatedString);
                // A string without its quote was not meant to include the `;` of the statement or a brace and
                // what follows, nor the quote of the next string.
                if let Some(end) = end_meant(line) {
                    self.position = start + end;
                }
                self.quotes = None;
                return TokenKind::BrokenText;
            };
            if self.peek_is_forbidden(character) {
                self.position += character.len_utf8();
                continue;
            }
            self.position += character.len_utf8();
            match character {
                '"' => return TokenKind::Text(content),
                '\\' => self.escape(&mut content, reporter),
                // A part of the line end "\r\n" after an unterminated string.
                '\r' => {}
                other => content.push(other),
            }
        }
    }

    /// Whether a quote is missing on the line, from `start` on, where a string begins.
    fn lacks_quote(&mut self, start: usize) -> bool {
        if let Some((end, lacks)) = self.quotes
            && start < end
        {
            return lacks;
        }
        let rest = &self.text[start..];
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        let (mut inside, mut escaped) = (false, false);
        for character in line.chars() {
            match character {
                _ if escaped => escaped = false,
                '\\' if inside => escaped = true,
                '"' => inside = !inside,
                '#' if !inside => break,
                _ => {}
            }
        }
        self.quotes = Some((start + line.len(), inside));
        inside
    }

    /// Whether the quote at the present position looks like the first of the next string: a word follows
    /// without a blank.
    fn begins_another(&self) -> bool {
        let next = self.text[self.position + 1..].chars().next();
        next.is_some_and(|next| !" \t\r\n;,{}\"#".contains(next))
    }

    /// Reads the rest of an escape after its backslash.
    fn escape(&mut self, content: &mut String, reporter: &Reporter<'_>) {
        let backslash = self.position - 1;
        let Some(character) = self.peek().filter(|character| !"\r\n".contains(*character)) else {
            return; // The string is unterminated, and reported as that.
        };
        self.position += character.len_utf8();
        match character {
            '"' | '\\' => content.push(character),
            'n' => content.push('\n'),
            't' => content.push('\t'),
            _ => reporter.report(
                self.location(backslash, self.position),
                SyntaxMistake::UnknownEscape { character },
            ),
        }
    }
}

/// The latest place at which a string was meant to end: the first `;` of its line before a blank or the end,
/// or the first brace between blanks or at the end, whichever comes first.
fn end_meant(line: &str) -> Option<usize> {
    let ends = |(place, found): &(usize, &str)| {
        let rest = &line[place + 1..];
        let is_before_blank = rest.is_empty() || rest.starts_with([' ', '\t', '\r', '}', '#']);
        is_before_blank && (*found == ";" || line[..*place].ends_with([' ', '\t']))
    };
    let mut marks = line.match_indices([';', '{', '}']);
    marks.find(ends).map(|(place, _)| place)
}

/// Characters that make a text look like something it is not: control characters, line and
/// direction tricks, blanks that are none, and characters without width. A policy must be what a
/// reviewer sees.
fn is_forbidden(character: char, rest: &str) -> bool {
    match character {
        '\n' | '\t' => false,
        '\r' => !rest.starts_with('\n'),
        '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}' => true,
        other => other.is_control() || (other.is_whitespace() && other != ' '),
    }
}

/// Whether a character may stand in a policy. Messages escape all others.
pub fn is_plain(character: char) -> bool {
    !is_forbidden(character, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> (Vec<(String, bool)>, usize) {
        let sources = [Source {
            name: "test".to_owned(),
            text: text.to_owned(),
        }];
        let reporter = Reporter::new(&sources);
        let mut lexer = Lexer::new(&sources[0], 0, &reporter);
        let mut found = Vec::new();
        while let Some(token) = lexer.next_token(&reporter) {
            let shown = match token.kind {
                TokenKind::Word(word) => word.to_owned(),
                TokenKind::Text(content) => format!("<{content}>"),
                TokenKind::BrokenText => "<".to_owned(),
                TokenKind::Semicolon => ";".to_owned(),
                TokenKind::Comma => ",".to_owned(),
                TokenKind::Open => "{".to_owned(),
                TokenKind::Close => "}".to_owned(),
            };
            found.push((shown, token.starts_line));
        }
        (found, reporter.finish().len())
    }

    fn words(text: &str) -> Vec<String> {
        tokens(text).0.into_iter().map(|(shown, _)| shown).collect()
    }

    #[test]
    fn words_of_the_whole_language_are_single_tokens() {
        assert_eq!(
            words("network 192.168.0.0/24 localport=any www.abc.com,fd77::2;/usr/sbin/x{}"),
            [
                "network",
                "192.168.0.0/24",
                "localport=any",
                "www.abc.com",
                ",",
                "fd77::2",
                ";",
                "/usr/sbin/x",
                "{",
                "}"
            ]
        );
    }

    #[test]
    fn comments_end_with_their_line() {
        assert_eq!(words("a# b ; \"\nc # d"), ["a", "c"]);
    }

    #[test]
    fn strings_keep_what_words_cannot() {
        assert_eq!(
            words(r#""a # b;" "\"\\" "" "\t\n""#),
            ["<a # b;>", "<\"\\>", "<>", "<\t\n>"]
        );
    }

    #[test]
    fn first_token_of_a_line_is_marked() {
        let (found, errors) = tokens("a b\n  c");
        let marks: Vec<bool> = found
            .into_iter()
            .map(|(_, starts_line)| starts_line)
            .collect();
        assert_eq!((marks, errors), (vec![true, false, true], 0));
    }

    #[test]
    fn unterminated_string_spoils_one_line_only() {
        let (found, errors) = tokens("a \"b;\r\nc;");
        assert_eq!(found.len(), 5);
        assert_eq!(errors, 1);
        // The rest of the line is read behind the `;` of the statement. A `;` in the middle of a word does
        // not end one.
        let words = |text: &str| -> Vec<String> {
            let (found, errors) = tokens(text);
            assert_eq!(errors, 1, "{text}");
            found.into_iter().map(|(shown, _)| shown).collect()
        };
        assert_eq!(
            words("a \"b; c d; }\ne;"),
            ["a", "<", ";", "c", "d", ";", "}", "e", ";"]
        );
        assert_eq!(words("a \"B=1;C=2;\ne;"), ["a", "<", ";", "e", ";"]);
        assert_eq!(words("a \"b\ne;"), ["a", "<", "e", ";"]);
        // A brace is not the string's, unless it is in the middle of a word.
        assert_eq!(words("a \"b {\ne; }"), ["a", "<", "{", "e", ";", "}"]);
        assert_eq!(words("a { e \"b }\nf"), ["a", "{", "e", "<", "}", "f"]);
        assert_eq!(words("a \"b{c} d\ne;"), ["a", "<", "e", ";"]);
        // The quote that is missing is not the last one.
        assert_eq!(words("a \"b\" \"c \"d\";"), ["a", "<b>", "<", "<d>", ";"]);
        assert_eq!(
            words("a \"b; c \"d\", \"e; f\"; }"),
            ["a", "<", ";", "c", "<d>", ",", "<e; f>", ";", "}"]
        );
        assert_eq!(
            words("a \"b; c\", \"d; e; # \n"),
            ["a", "<b; c>", ",", "<", ";", "e", ";"]
        );
    }

    #[test]
    fn invisible_characters_are_reported_and_passed_over() {
        for character in [
            "\u{202e}", "\u{a0}", "\u{feff}", "\0", "\u{7f}", "\r", "\u{2028}",
        ] {
            let (found, errors) = tokens(&format!("a{character}b"));
            assert_eq!(
                (found.len(), errors),
                (2, 1),
                "{character:?} as a separator"
            );
            let (found, errors) = tokens(&format!("\"a{character}b\""));
            assert_eq!(
                (found[0].0.as_str(), errors),
                ("<ab>", 1),
                "{character:?} in a string"
            );
        }
        let (found, errors) = tokens("a \"größer\"\r\n# größer\t\r\n");
        assert_eq!((found.len(), errors), (2, 0));
    }
}
