//! `mac` blocks: what modules of the MAC framework are told. Which statements there are is for each
//! module to say; this version has no modules, so it reads and keeps such blocks and enforces none.

use std::fmt;

use serde::Serialize;

use crate::name::Name;
use crate::source::Origin;
use crate::text::{Block, Quoted};

/// A `mac` block. No two of a policy are for one module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MacBlock {
    /// The module.
    pub module: Name,
    /// In the order of the text.
    pub statements: Vec<MacStatement>,
    /// The block's head.
    pub origin: Origin,
}

/// A statement of a [`MacBlock`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MacStatement {
    /// The word that it begins with.
    pub keyword: String,
    /// What follows it: groups of values, with commas between the groups.
    pub values: Vec<Vec<MacValue>>,
}

/// A value of a [`MacStatement`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MacValue {
    /// A word.
    Word(String),
    /// A string, without its quotes.
    Text(String),
}

impl MacBlock {
    /// The `mac` block.
    pub fn to_text(&self) -> String {
        let mut block = Block::new("mac", &self.module);
        for statement in &self.statements {
            if statement.values.is_empty() {
                block.word(&statement.keyword);
                continue;
            }
            let groups = statement.values.iter().map(|group| {
                let values: Vec<String> = group.iter().map(ToString::to_string).collect();
                values.join(" ")
            });
            block.list(&statement.keyword, groups);
        }
        block.end()
    }
}

impl fmt::Display for MacValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => formatter.write_str(word),
            Self::Text(text) => Quoted(text).fmt(formatter),
        }
    }
}
