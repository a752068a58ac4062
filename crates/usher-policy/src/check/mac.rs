//! `mac` blocks, whose statements are for their modules to understand.

use crate::mac::{MacBlock, MacStatement, MacValue};
use crate::name::Name;
use crate::report::Reporter;
use crate::tree::{Block, Item, Statement, Value};

pub(super) fn check(module: Name, block: &Block, reporter: &mut Reporter<'_>) -> Option<MacBlock> {
    let statements: Option<Vec<MacStatement>> = block.statements.iter().map(statement).collect();
    let name = block.name.as_ref()?;
    Some(MacBlock {
        module,
        statements: statements?,
        origin: reporter.origin(block.location, name.location),
    })
}

/// None for one with a string that has been reported.
fn statement(read: &Statement) -> Option<MacStatement> {
    let values = read
        .groups
        .iter()
        .map(|group| group.iter().map(value).collect());
    Some(MacStatement {
        keyword: read.keyword.clone(),
        values: values.collect::<Option<_>>()?,
    })
}

fn value(item: &Item) -> Option<MacValue> {
    match &item.value {
        Value::Word(word) => Some(MacValue::Word(word.clone())),
        Value::Text(text) => Some(MacValue::Text(text.clone())),
        Value::Broken => None,
    }
}
