//! The block `mac` and the statements of each module, as a dialect of the language.

use usher_language::{BlockRule, Dialect, StatementRule};

use crate::bsdextended;
use crate::framework::{self, FRAMEWORK_BLOCK};
use crate::{ifoff, portacl, seeotheruids, te};

/// Opens a block about a module.
pub const MAC: &str = "mac";

/// The host's means to enforce such a block, as declarations name it.
pub const FRAMEWORK: &str = "the MAC framework";

/// The module that decides by the services of the policy. Its block is empty: it says that a host needs the
/// framework for this policy.
pub const UBNS: &str = "ubns";

/// The modules of this version. Those without settings have empty blocks.
pub const MODULES: &[&str] = &[
    bsdextended::MODULE,
    "biba",
    "mls",
    "lomac",
    "none",
    "test",
    UBNS,
    portacl::MODULE,
    seeotheruids::MODULE,
    "partition",
    ifoff::MODULE,
    te::MODULE,
];

/// The blocks of this system, with the statements of all modules.
pub fn dialect() -> Dialect {
    let blocks = MODULES.iter().copied().chain([FRAMEWORK_BLOCK]);
    let modules = blocks.map(|block| (block, statements(block)));
    let mac = BlockRule {
        keyword: MAC.to_owned(),
        modules: Some(modules.collect()),
        needs: Some(FRAMEWORK),
        ..BlockRule::default()
    };
    Dialect {
        blocks: vec![mac],
        statements: Vec::new(),
    }
}

fn statements(module: &str) -> Vec<StatementRule> {
    match module {
        bsdextended::MODULE => bsdextended::statements(),
        portacl::MODULE => portacl::statements(),
        seeotheruids::MODULE => seeotheruids::statements(),
        ifoff::MODULE => ifoff::statements(),
        te::MODULE => te::statements(),
        FRAMEWORK_BLOCK => framework::statements(),
        _ => Vec::new(),
    }
}
