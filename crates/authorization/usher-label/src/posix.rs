//! POSIX extended regular expressions (POSIX.1-2017, Base Definitions, 9.4), written anew for the crate `regex`.
//!
//! The two languages look alike and differ: `\d`, `[a&&b]`, `[%--]` and `a+?` mean other things in the crate,
//! or nothing there. So a pattern is read by the grammar of POSIX, and each byte of it is written for the
//! crate without ambiguity. A construct that POSIX leaves undefined is refused, and the error names it,
//! because implementations differ.
//!
//! Bytes are compared, as in the POSIX locale: `.` and `[^x]` match one byte each, and `[a-z]` is a range of bytes.

/// The largest number in braces, RE_DUP_MAX of POSIX.
const MOST_REPETITIONS: u32 = 255;

/// A text that is no pattern, or a pattern that POSIX leaves undefined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatternMistake {
    /// Byte of the pattern where it is.
    pub offset: usize,
    /// The mistake and its remedy, as one clause.
    pub reason: String,
}

/// The pattern in the syntax of `regex`, for byte mode.
pub(crate) fn translated(pattern: &str) -> Result<String, PatternMistake> {
    let mut reader = Reader {
        pattern,
        rest: pattern,
        written: String::new(),
        groups: Vec::new(),
    };
    reader.expression()?;
    Ok(reader.written)
}

/// The part of the expression before the reader's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The beginning of the expression, of a group or of an alternative.
    Nothing,
    /// Something that can be repeated.
    Atom,
    /// A repetition.
    Repetition,
    /// `^` or `$`.
    Anchor,
}

struct Reader<'p> {
    pattern: &'p str,
    rest: &'p str,
    written: String,
    /// Where each open group began.
    groups: Vec<usize>,
}

impl Reader<'_> {
    fn offset(&self) -> usize {
        self.pattern.len() - self.rest.len()
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next()?;
        self.rest = characters.as_str();
        Some(next)
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expression(&mut self) -> Result<(), PatternMistake> {
        let mut before = Before::Nothing;
        loop {
            let offset = self.offset();
            let refused = |reason: String| Err(PatternMistake { offset, reason });
            let Some(next) = self.next() else {
                if let Some(&offset) = self.groups.last() {
                    let reason =
                        "the group is not closed: write `)`, or `\\(` for the character".into();
                    return Err(PatternMistake { offset, reason });
                }
                return self.end(before, offset);
            };
            before = match next {
                '(' => {
                    self.groups.push(offset);
                    self.written.push_str("(?:");
                    Before::Nothing
                }
                ')' if self.groups.is_empty() => {
                    return refused("`)` closes no group: write `\\)` for the character".into());
                }
                ')' => {
                    self.end(before, offset)?;
                    self.groups.pop();
                    self.written.push(')');
                    Before::Atom
                }
                '|' => {
                    self.end(before, offset)?;
                    self.written.push('|');
                    Before::Nothing
                }
                '*' | '+' | '?' | '{' => {
                    match before {
                        Before::Atom => {}
                        Before::Repetition => {
                            return refused(format!(
                                "`{next}` repeats a repetition, which POSIX does not define: put a group around the first"
                            ));
                        }
                        Before::Nothing | Before::Anchor => {
                            return refused(format!(
                                "`{next}` repeats nothing, which POSIX does not define: write `\\{next}` for the character"
                            ));
                        }
                    }
                    match next {
                        '{' => self.interval(offset)?,
                        sign => self.written.push(sign),
                    }
                    Before::Repetition
                }
                '^' | '$' => {
                    self.written.push(next);
                    Before::Anchor
                }
                '.' => {
                    self.written.push('.');
                    Before::Atom
                }
                '[' => {
                    self.bracket(offset)?;
                    Before::Atom
                }
                '\\' => {
                    self.escape(offset)?;
                    Before::Atom
                }
                plain => {
                    self.literal(plain);
                    Before::Atom
                }
            };
        }
    }

    /// The end of an alternative.
    fn end(&self, before: Before, offset: usize) -> Result<(), PatternMistake> {
        // The whole pattern is never empty: it is a word of the line.
        if before != Before::Nothing {
            return Ok(());
        }
        let reason = "an alternative is empty, which POSIX does not define: write `(...)?` for what may be absent".into();
        Err(PatternMistake { offset, reason })
    }

    fn literal(&mut self, character: char) {
        let mut bytes = [0; 4];
        let bytes = character.encode_utf8(&mut bytes).as_bytes();
        if let [byte] = bytes {
            self.byte(*byte);
            return;
        }
        // One atom: what repeats it repeats all of its bytes.
        self.written.push_str("(?:");
        bytes.iter().for_each(|byte| self.byte(*byte));
        self.written.push(')');
    }

    fn byte(&mut self, byte: u8) {
        self.written += &format!("\\x{byte:02X}");
    }

    fn escape(&mut self, offset: usize) -> Result<(), PatternMistake> {
        let refused = |reason: String| Err(PatternMistake { offset, reason });
        match self.next() {
            None => {
                refused("`\\` at the end escapes nothing: write `\\\\` for the character".into())
            }
            // glibc matches an edge of a word or of the text by these.
            Some(edge @ ('<' | '>' | '`' | '\'')) => refused(format!(
                "`\\{edge}` is not of POSIX, and libraries differ in it: write `{edge}` for the character"
            )),
            Some(punctuation) if punctuation.is_ascii_punctuation() => {
                self.byte(punctuation as u8);
                Ok(())
            }
            Some(other) => refused(format!(
                "`\\{other}` is not of POSIX: write `{other}` for the character, or a class such as `[0-9]`, `[[:alnum:]_]` \
                 and `[[:space:]]`"
            )),
        }
    }

    /// `{2}`, `{2,}` or `{2,3}`, behind its brace.
    fn interval(&mut self, offset: usize) -> Result<(), PatternMistake> {
        let refused = || PatternMistake {
            offset,
            reason: format!(
                "`{{` begins no number of repetitions (`{{2}}`, `{{2,}}`, `{{2,3}}`, at most {MOST_REPETITIONS}): write \
                 `\\{{` for the character"
            ),
        };
        let (inside, rest) = self.rest.split_once('}').ok_or_else(refused)?;
        let number = |text: &str| -> Result<u32, PatternMistake> {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = is_number.then(|| text.parse().ok()).flatten();
            number
                .filter(|number| *number <= MOST_REPETITIONS)
                .ok_or_else(refused)
        };
        let interval = match inside.split_once(',') {
            None => format!("{{{}}}", number(inside)?),
            Some((least, "")) => format!("{{{},}}", number(least)?),
            Some((least, most)) => {
                let (least, most) = (number(least)?, number(most)?);
                if least > most {
                    return Err(refused());
                }
                format!("{{{least},{most}}}")
            }
        };
        self.written.push_str(&interval);
        self.rest = rest;
        Ok(())
    }

    /// A bracket expression, behind its bracket.
    fn bracket(&mut self, offset: usize) -> Result<(), PatternMistake> {
        let refused = |reason: String| Err(PatternMistake { offset, reason });
        let is_inverted = self.take("^");
        let mut bytes = [false; 256];
        let mut is_first = true;
        loop {
            if !is_first && self.take("]") {
                break;
            }
            if self.rest.is_empty() {
                return refused(
                    "the bracket expression is not closed: write `]`, or `\\[` for the character"
                        .into(),
                );
            }
            is_first = false;
            if self.take("[:") {
                let name = self.named(":]", offset)?;
                let Some(class) = class(&name) else {
                    return refused(format!(
                        "`[:{name}:]` is no class of POSIX: alpha, digit, alnum, upper, lower, space, blank, punct, print, \
                         graph, cntrl and xdigit are"
                    ));
                };
                (0..=u8::MAX)
                    .filter(class)
                    .for_each(|byte| bytes[usize::from(byte)] = true);
                if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                    return refused(format!(
                        "`[:{name}:]` begins a range, which POSIX does not define"
                    ));
                }
                continue;
            }
            let is_equivalence = self.rest.starts_with("[=");
            let first = self.element(offset)?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            if !is_range {
                bytes[usize::from(first)] = true;
                continue;
            }
            self.take("-");
            if is_equivalence || self.rest.starts_with("[:") || self.rest.starts_with("[=") {
                return refused(
                    "a class is the end of a range, which POSIX does not define".into(),
                );
            }
            let last = self.element(offset)?;
            if first > last {
                return refused(format!(
                    "the range `{}-{}` ends before it begins; bytes are compared",
                    char::from(first),
                    char::from(last)
                ));
            }
            (first..=last).for_each(|byte| bytes[usize::from(byte)] = true);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                return refused(
                    "the end of a range begins another one, which POSIX does not define: write `-` last for the character"
                        .into(),
                );
            }
        }
        self.written.push('[');
        let mut byte = 0;
        while byte < bytes.len() {
            if bytes[byte] == is_inverted {
                byte += 1;
                continue;
            }
            let end = (byte..bytes.len()).find(|&at| bytes[at] == is_inverted);
            let end = end.unwrap_or(bytes.len());
            self.written += &format!("\\x{byte:02X}-\\x{:02X}", end - 1);
            byte = end;
        }
        self.written.push(']');
        Ok(())
    }

    /// One byte of a bracket expression: itself, `[.x.]` or `[=x=]`.
    fn element(&mut self, offset: usize) -> Result<u8, PatternMistake> {
        let refused = |reason: String| PatternMistake { offset, reason };
        let character = if self.take("[.") {
            self.only(".]", offset)?
        } else if self.take("[=") {
            self.only("=]", offset)?
        } else {
            let unclosed =
                "the bracket expression is not closed: write `]`, or `\\[` for the character";
            self.next().ok_or_else(|| refused(unclosed.into()))?
        };
        u8::try_from(character)
            .ok()
            .filter(u8::is_ascii)
            .ok_or_else(|| {
                refused(format!(
                    "`{character}` is more than one byte, so it is not in a bracket expression: write `(a|{character})`"
                ))
            })
    }

    /// The text up to this end.
    fn named(&mut self, end: &str, offset: usize) -> Result<String, PatternMistake> {
        let Some((name, rest)) = self.rest.split_once(end) else {
            let reason = format!("`{end}` is missing in the bracket expression");
            return Err(PatternMistake { offset, reason });
        };
        self.rest = rest;
        Ok(name.to_owned())
    }

    /// The only character up to this end.
    fn only(&mut self, end: &str, offset: usize) -> Result<char, PatternMistake> {
        // `[.].]` means the bracket, `[...]` the dot.
        let mut characters = self.rest.chars();
        let one = characters.next();
        if let (Some(one), Some(rest)) = (one, characters.as_str().strip_prefix(end)) {
            self.rest = rest;
            return Ok(one);
        }
        let reason = "a collating element has more than one character, and the POSIX locale has none of these".into();
        Err(PatternMistake { offset, reason })
    }
}

/// A class of the POSIX locale.
fn class(name: &str) -> Option<fn(&u8) -> bool> {
    Some(match name {
        "alpha" => u8::is_ascii_alphabetic,
        "digit" => u8::is_ascii_digit,
        "alnum" => u8::is_ascii_alphanumeric,
        "upper" => u8::is_ascii_uppercase,
        "lower" => u8::is_ascii_lowercase,
        // With the vertical tab, which `is_ascii_whitespace` does not count.
        "space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        "blank" => |byte| matches!(byte, b' ' | b'\t'),
        "punct" => u8::is_ascii_punctuation,
        "print" => |byte| matches!(byte, b' '..=b'~'),
        "graph" => u8::is_ascii_graphic,
        "cntrl" => u8::is_ascii_control,
        "xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}
