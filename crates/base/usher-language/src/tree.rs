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
    /// The dialect's declaration of its kind.
    pub rule: &'d BlockRule,
    /// The place of its keyword.
    pub location: Location,
    /// Its names, nearly always one. None where it is missing, which has been reported.
    pub names: Vec<Item>,
    /// Its statements.
    pub statements: Vec<Statement>,
    /// The blocks inside.
    pub blocks: Vec<Block<'d>>,
}

impl Block<'_> {
    /// Its first name.
    pub fn name(&self) -> Option<&Item> {
        self.names.first()
    }

    /// The last token of its head before the `{`.
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
    /// Its place.
    pub location: Location,
    /// The values, by the commas between them. No group is empty.
    pub groups: Vec<Vec<Item>>,
    /// The last token before the `;`.
    pub last: Location,
}
