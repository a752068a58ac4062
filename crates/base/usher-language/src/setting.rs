//! Statements as they are written, for modules whose statements the language does not know.

use crate::item::{Item, Value};
use crate::print::{Quoted, joined};
use crate::report::Reporter;
use crate::source::Origin;
use crate::tree::{Block, Statement};

/// A statement as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The word that it begins with.
    pub keyword: String,
    /// The values that follow it, in groups that commas divide.
    pub values: Vec<Vec<Written>>,
    /// The place of the statement.
    pub origin: Origin,
}

/// A value as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// A word.
    Word(String),
    /// A string, without its quotes.
    Text(String),
}

impl Setting {
    /// The statements of a block. One with a string that has been reported is left out.
    pub fn all(block: &Block<'_>, reporter: &Reporter<'_>) -> Vec<Self> {
        let statements = block.statements.iter();
        statements
            .filter_map(|statement| Self::of(statement, reporter))
            .collect()
    }

    fn of(statement: &Statement, reporter: &Reporter<'_>) -> Option<Self> {
        let groups = statement.groups.iter();
        let values = groups.map(|group| group.iter().map(Written::of).collect());
        Some(Self {
            keyword: statement.keyword.clone(),
            values: values.collect::<Option<_>>()?,
            origin: reporter.origin(statement.location, statement.last),
        })
    }
}

impl std::fmt::Display for Setting {
    /// The statement in its canonical form, without `;`.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.keyword)?;
        for (number, group) in self.values.iter().enumerate() {
            let between = if number == 0 { " " } else { ", " };
            write!(formatter, "{between}{}", joined(group, " "))?;
        }
        Ok(())
    }
}

impl Written {
    fn of(item: &Item) -> Option<Self> {
        match &item.value {
            Value::Word(word) => Some(Self::Word(word.clone())),
            Value::Text(text) => Some(Self::Text(text.clone())),
            Value::Broken => None,
        }
    }
}

impl std::fmt::Display for Written {
    /// The value in its canonical form.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Word(text) => formatter.write_str(text),
            Self::Text(text) => Quoted(text).fmt(formatter),
        }
    }
}
