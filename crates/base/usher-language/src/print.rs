//! Values and blocks back to text.

use std::fmt::{self, Display, Write};
use std::time::Duration;

/// A block that is being written in the canonical form.
#[derive(Debug)]
pub struct BlockText {
    text: String,
    depth: usize,
}

impl BlockText {
    /// Opens a block.
    pub fn new(keyword: &str, name: impl Display) -> Self {
        let (text, depth) = (String::new(), 0);
        let mut block = Self { text, depth };
        block.open(keyword, name);
        block
    }

    /// Opens a block inside.
    pub fn open(&mut self, keyword: &str, name: impl Display) {
        if self.depth > 0 {
            self.text.push('\n');
        }
        self.line(format_args!("{keyword} {name} {{"));
        self.depth += 1;
    }

    /// A statement with its values.
    pub fn statement(&mut self, keyword: &str, value: impl Display) {
        self.line(format_args!("{keyword} {value};"));
    }

    /// Writes a statement, if there is a value.
    pub fn optional(&mut self, keyword: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.statement(keyword, value);
        }
    }

    /// Writes a statement, if its value is not the default.
    pub fn unless<T: PartialEq + Display>(&mut self, default: T, keyword: &str, value: T) {
        if value != default {
            self.statement(keyword, value);
        }
    }

    /// A statement without values.
    pub fn word(&mut self, keyword: &str) {
        self.line(format_args!("{keyword};"));
    }

    /// Writes a statement with a list, unless the list is empty.
    pub fn list(&mut self, keyword: &str, values: impl IntoIterator<Item = impl Display>) {
        let values = joined(values, ", ");
        if !values.is_empty() {
            self.statement(keyword, values);
        }
    }

    /// Closes the innermost block that is open.
    pub fn close(&mut self) {
        self.depth -= 1;
        self.line(format_args!("}}"));
    }

    /// Closes the block, and returns its text.
    pub fn end(mut self) -> String {
        self.close();
        self.text
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.text += &format!("{}{line}\n", "  ".repeat(self.depth));
    }
}

/// Values as text, with this between them.
pub fn joined(values: impl IntoIterator<Item = impl Display>, between: &str) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    values.join(between)
}

/// A size of memory, written with the largest unit that leaves a whole number.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [('T', 40), ('G', 30), ('M', 20)];
        let (letter, power) = units
            .into_iter()
            .find(|(_, power)| self.0.is_multiple_of(1 << power))
            .unwrap_or(('K', 10));
        write!(formatter, "{}{letter}", self.0 >> power)
    }
}

/// A string of the language.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'t>(pub &'t str);

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => formatter.write_str("\\\"")?,
                '\\' => formatter.write_str("\\\\")?,
                '\n' => formatter.write_str("\\n")?,
                '\t' => formatter.write_str("\\t")?,
                other => formatter.write_char(other)?,
            }
        }
        formatter.write_char('"')
    }
}

/// A duration as policies have it: whole seconds, in the largest unit that divides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units(pub Duration);

impl Display for Units {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds if seconds % 3600 == 0 => write!(formatter, "{}h", seconds / 3600),
            seconds if seconds % 60 == 0 => write!(formatter, "{}m", seconds / 60),
            seconds => write!(formatter, "{seconds}s"),
        }
    }
}

/// [`Units`] of this many seconds.
pub(crate) fn seconds(seconds: u64) -> Units {
    Units(Duration::from_secs(seconds))
}
