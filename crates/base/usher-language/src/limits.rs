//! How much of a text is read and reported.

/// Longest source in bytes. A longer one is refused whole.
pub const MAXIMUM_SOURCE_BYTES: usize = 1024 * 1024;

/// Limit of statements in all sources together, blocks counted as one each.
pub const MAXIMUM_STATEMENTS: usize = 65_536;

/// Limit of errors reported at once. After a hundred mistakes the text is not a policy; without a limit, a
/// text of one megabyte could make an answer of many megabytes.
pub const MAXIMUM_ERRORS: usize = 100;
