//! How much of a text is read.

/// Longest source in bytes. A longer one is refused whole.
pub const MAXIMUM_SOURCE_BYTES: usize = 1024 * 1024;

/// Most statements in all sources together, blocks counted as one each.
pub const MAXIMUM_STATEMENTS: usize = 65_536;
