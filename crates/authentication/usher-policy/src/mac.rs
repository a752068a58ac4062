//! `mac` blocks: settings of modules of the MAC framework. Each module declares its statements; this
//! version has no modules, so it reads and keeps such blocks and enforces none.

use usher_language::{Name, Origin, Setting};

/// A `mac` block. No two of a policy are for one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacBlock {
    /// The module.
    pub module: Name,
    /// In the order of the text.
    pub statements: Vec<Setting>,
    /// The block's head.
    pub origin: Origin,
}
