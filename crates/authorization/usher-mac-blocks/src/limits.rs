//! The limits of a module's block.

/// Limit of rules, as in FreeBSD.
pub const MAXIMUM_ACCESS_RULES: usize = 256;

/// Limit of names and ranges of one condition.
pub const MAXIMUM_RANGES: usize = 4;

/// Limit of statements `permit`.
pub const MAXIMUM_PERMITS: usize = 256;

/// Limit of statements `interface`.
pub const MAXIMUM_SWITCHES: usize = 64;

/// Limit of domains and types together.
pub const MAXIMUM_NAMES: usize = 256;

/// Limit of attributes.
pub const MAXIMUM_ATTRIBUTES: usize = 64;

/// Limit of rules: statements `allow`, one for each domain and type that they are about, `transition` and
/// `create`.
pub const MAXIMUM_TYPE_RULES: usize = 4096;

/// Limit of statements `relabel`.
pub const MAXIMUM_RELABELS: usize = 256;

/// Limit of file systems of `multilabel`.
pub const MAXIMUM_MULTILABEL: usize = 16;

/// Limit of network interfaces with a label.
pub const MAXIMUM_INTERFACES: usize = 64;

/// Longest name of a network interface, in bytes.
pub const MAXIMUM_INTERFACE_NAME: usize = 15;
