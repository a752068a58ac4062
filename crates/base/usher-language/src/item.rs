//! Values as they are written.

use crate::print::joined;
use crate::source::Location;

/// One value of a statement.
#[derive(Clone, Debug)]
pub struct Item {
    /// The value.
    pub value: Value,
    /// The place of the value.
    pub location: Location,
}

/// A value as it is written.
#[derive(Clone, Debug)]
pub enum Value {
    /// A word.
    Word(String),
    /// A string, escapes already replaced.
    Text(String),
    /// A string with a mistake, which has been reported already.
    Broken,
}

impl Item {
    /// The word; none for a string.
    pub fn word(&self) -> Option<&str> {
        match &self.value {
            Value::Word(word) => Some(word),
            Value::Text(_) | Value::Broken => None,
        }
    }

    /// The string; none for a word.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Word(_) | Value::Broken => None,
        }
    }

    /// Whether the value is this word.
    pub fn is_word(&self, word: &str) -> bool {
        self.word() == Some(word)
    }

    /// The value as it stands in the text, for messages.
    pub fn shown(&self) -> String {
        match &self.value {
            Value::Word(word) => word.clone(),
            Value::Text(text) => format!("\"{text}\""),
            Value::Broken => "\"".to_owned(),
        }
    }
}

/// Whether a path is absolute, and has no `.`, `..`, `//`, and no `/` at its end.
pub fn is_plain_path(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|path| {
        path.split('/')
            .all(|component| !["", ".", ".."].contains(&component))
    })
}

/// Values as they stand in the text, for messages.
pub fn shown_together(items: &[Item]) -> String {
    joined(items.iter().map(Item::shown), " ")
}
