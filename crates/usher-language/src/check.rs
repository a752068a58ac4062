//! Blocks by kind, with the names that they define.

use std::str::FromStr;

use crate::dialect::Modules;
use crate::faults::StatementMistake;
use crate::fields::Fields;
use crate::mistake::Found;
use crate::name::NameRule;
use crate::nearest::nearest;
use crate::report::Reporter;
use crate::setting::Setting;
use crate::tree::{Block, Item};
use crate::unique::Unique;

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
        let Some(first) = taken.claim(name.clone(), item.location) else {
            return Some(name);
        };
        let mistake = StatementMistake::DuplicateBlock {
            block: keyword.to_owned(),
            name: Found(item.shown()),
            first: reporter.place(first),
        };
        reporter.refuse(item.location, mistake)
    };
    let declared = blocks.map(|block| Declared {
        name: block.name().and_then(&mut name_of),
        block,
    });
    declared.collect()
}

/// The statements of a module's block as data: checked by what the module declares or, where the
/// dialect permits it and nothing declares them, as they are written. None where a mistake has been
/// reported.
pub fn module_settings<'t>(
    block: &'t Block<'t>,
    modules: &Modules,
    reporter: &'t Reporter<'t>,
) -> Option<Vec<Setting>> {
    let name = block.name()?;
    if block.rule.statements_of(name.word()).is_some() {
        return Some(Fields::read(block, reporter).settings());
    }
    if modules.open {
        return block.statements.iter().map(Setting::as_written).collect();
    }
    let shown = name.shown();
    let mistake = StatementMistake::UnknownModule {
        block: block.rule.keyword.clone(),
        nearest: nearest(&shown, modules.declared.keys().map(String::as_str)),
        found: Found(shown),
    };
    reporter.refuse(name.location, mistake)
}
