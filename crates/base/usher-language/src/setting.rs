//! Statements as data, for modules.

use serde::Serialize;

use crate::item::{Item, Value};
use crate::kind::Checked;
use crate::print::{BlockText, Quoted, joined};
use crate::tree::Statement;

/// A statement as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The word that it begins with.
    pub keyword: String,
    /// The values that follow it, in groups that commas divide.
    pub values: Vec<Vec<Checked>>,
}

impl Setting {
    /// A statement that no declaration explains, as it is written. None for one with a string that
    /// has been reported.
    pub fn as_written(statement: &Statement) -> Option<Self> {
        let groups = statement.groups.iter();
        let values = groups
            .map(|group| group.iter().map(Checked::as_written).collect())
            .collect::<Option<_>>()?;
        let keyword = statement.keyword.clone();
        Some(Self { keyword, values })
    }

    /// Writes the statement.
    pub fn print(&self, block: &mut BlockText) {
        if self.values.is_empty() {
            return block.word(&self.keyword);
        }
        let groups = self.values.iter().map(|group| joined(group, " "));
        block.list(&self.keyword, groups);
    }
}

impl Checked {
    /// A value of unknown kind; none for a string that has been reported.
    pub(crate) fn as_written(item: &Item) -> Option<Self> {
        match &item.value {
            Value::Word(word) => Some(Self::Word(word.clone())),
            Value::Text(text) => Some(Self::Text(text.clone())),
            Value::Broken => None,
        }
    }
}

impl std::fmt::Display for Checked {
    /// As the canonical form has it.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(_, text) | Self::Word(text) => formatter.write_str(text),
            Self::Text(text) => Quoted(text).fmt(formatter),
        }
    }
}
