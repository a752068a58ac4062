//! Blocks by kind, with the names that they define.

use std::str::FromStr;

use crate::faults::StatementMistake;
use crate::item::Item;
use crate::mistake::Found;
use crate::name::NameRule;
use crate::report::Reporter;
use crate::source::Place;
use crate::tree::{Block, Tree};
use crate::unique::Unique;

/// A part of a text that Usher's daemons alone cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The block, or the statement with its block, in backquotes.
    pub says: String,
    /// The feature that a host must have, as its declaration names it.
    pub needs: String,
    /// The place of the text that needs it.
    pub place: Place,
}

impl Tree<'_> {
    /// The features that a host needs to enforce the text, by the declarations, in the order of the
    /// text.
    pub fn needs(&self, reporter: &Reporter<'_>) -> Vec<Need> {
        let mut found = Vec::new();
        for block in &self.blocks {
            let name = block.name().map(Item::shown).unwrap_or_default();
            let says = format!("`{} {name}`", block.rule.keyword);
            if let Some(needs) = block.rule.needs {
                let place = reporter.origin(block.location, block.head_end()).place;
                found.push((says.clone(), needs.to_owned(), place));
            }
            let rules = block.rule.statements_of(Some(&name)).unwrap_or_default();
            for statement in &block.statements {
                let mut rules = rules
                    .iter()
                    .filter(|rule| rule.begins_with(&statement.keyword));
                if let Some(needs) = rules.find_map(|rule| rule.needs.clone()) {
                    let place = reporter.origin(statement.location, statement.last).place;
                    found.push((format!("`{}` of {says}", statement.keyword), needs, place));
                }
            }
        }
        let need = |(says, needs, place)| Need { says, needs, place };
        found.into_iter().map(need).collect()
    }
}

/// A block and the name that it defines.
#[derive(Debug)]
pub struct Declared<'b, N> {
    /// None when the name is missing, invalid or taken, which has been reported.
    pub name: Option<N>,
    /// The block.
    pub block: &'b Block<'b>,
}

/// The blocks of a keyword in the order of the text. No two define one name.
pub fn declared<'b, N: FromStr + Ord + Clone>(
    blocks: &'b [Block<'b>],
    keyword: &str,
    rule: &NameRule,
    reporter: &Reporter<'_>,
) -> Vec<Declared<'b, N>> {
    let mut taken = Unique::default();
    let blocks = blocks.iter().filter(|block| block.rule.keyword == keyword);
    let mut name_of = |item: &Item| {
        let Some(word) = item.word() else {
            let found = Found(item.shown());
            return reporter.refuse(item.location, StatementMistake::ExpectedWord { found });
        };
        let name = match rule.parse::<N>(word) {
            Ok(name) => name,
            Err(mistake) => return reporter.refuse(item.location, mistake),
        };
        taken.take(name.clone(), item, reporter, |first| {
            let (block, name) = (keyword.to_owned(), Found(item.shown()));
            StatementMistake::DuplicateBlock { block, name, first }
        })?;
        Some(name)
    };
    let declared = blocks.map(|block| Declared {
        name: block.name().and_then(&mut name_of),
        block,
    });
    declared.collect()
}
