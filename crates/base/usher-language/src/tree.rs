//! The contents of sources, as blocks of statements: [`crate::parse_syntax`] makes them of the text, and
//! dialects know their meaning.

use crate::dialect::BlockRule;
use crate::item::Item;
use crate::source::Location;

/// The contents of all sources.
#[derive(Debug, Default)]
pub struct Tree<'d> {
    /// The blocks that stand outside of others, in the order of the text.
    pub blocks: Vec<Block<'d>>,
    /// The statements outside of blocks.
    pub statements: Vec<Statement>,
}

/// A block.
#[derive(Clone, Debug)]
pub struct Block<'d> {
    /// The dialect's declaration of this kind of block.
    pub rule: &'d BlockRule,
    /// The place of the block's keyword.
    pub location: Location,
    /// The block's names, nearly always one. Empty if the name is missing, which has been reported.
    pub names: Vec<Item>,
    /// The block's statements.
    pub statements: Vec<Statement>,
    /// The blocks inside.
    pub blocks: Vec<Block<'d>>,
}

impl Block<'_> {
    /// The block's first name.
    pub fn name(&self) -> Option<&Item> {
        self.names.first()
    }

    /// The last token of the block's head before the `{`.
    pub fn head_end(&self) -> Location {
        self.names
            .last()
            .map_or(self.location, |name| name.location)
    }
}

/// A keyword and its values: `keyword a b, c` has the groups `a b` and `c`.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The first word.
    pub keyword: String,
    /// The place of the first word.
    pub location: Location,
    /// The values, by the commas between them. No group is empty.
    pub groups: Vec<Vec<Item>>,
    /// The last token before the `;`.
    pub last: Location,
}
