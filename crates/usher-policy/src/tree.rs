//! What the sources say, as blocks of statements: [`crate::syntax`] makes them of the text, and what
//! they mean [`crate::check`] knows.

use crate::keywords::BlockKind;
use crate::source::Location;

/// What all sources have.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) blocks: Vec<Block>,
    /// The statements outside of blocks.
    pub(crate) statements: Vec<Statement>,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) kind: BlockKind,
    /// Where the block's keyword stands.
    pub(crate) location: Location,
    /// None when it is missing or unusable, which has been reported.
    pub(crate) name: Option<Item>,
    /// More names, of a kind that has several.
    pub(crate) more_names: Vec<Item>,
    pub(crate) statements: Vec<Statement>,
    /// The blocks inside.
    pub(crate) blocks: Vec<Block>,
}

/// A keyword and its values: `keyword a b, c` has the groups `a b` and `c`.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) keyword: String,
    pub(crate) location: Location,
    pub(crate) groups: Vec<Vec<Item>>,
    /// The last token of the head.
    pub(crate) last: Location,
}

/// One value of a statement.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) value: Value,
    pub(crate) location: Location,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Word(String),
    Text(String),
    /// A string that has been reported: nothing more is to be said of it.
    Broken,
}

impl Item {
    pub(crate) fn is_word(&self, keyword: &str) -> bool {
        matches!(&self.value, Value::Word(word) if word == keyword)
    }

    /// The value as it stands in the text, for error messages.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Word(word) => word.clone(),
            Value::Text(text) => format!("\"{text}\""),
            Value::Broken => "\"".to_owned(),
        }
    }
}
