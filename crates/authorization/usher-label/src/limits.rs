//! The limits of labels and of the files that hold them.

/// Longest text of a label in bytes. A longer attribute is not a label.
pub const MAXIMUM_TEXT: usize = 1024;

/// Limit of elements of one label: one for each policy module that the framework can hold.
pub const MAXIMUM_ELEMENTS: usize = 8;

/// Longest name of an element in bytes.
pub const MAXIMUM_NAME: usize = 31;

/// Longest value of an element in bytes.
pub const MAXIMUM_VALUE: usize = 255;

/// Limit of object classes of one mac.conf.
pub const MAXIMUM_CLASSES: usize = 64;

/// Limit of specifications of one file of setfsmac.
pub const MAXIMUM_SPECIFICATIONS: usize = 16_384;

/// Limit of memory in bytes that the compiled patterns of one specification file may take; one pattern
/// alone may take a sixty-fourth of it.
pub const MAXIMUM_PATTERN_MEMORY: usize = 64 * 1024 * 1024;

/// Longest name of a user or group in mac.login in bytes.
pub const MAXIMUM_ACCOUNT_NAME: usize = 255;

/// Limit of users of mac.login.
pub const MAXIMUM_LOGIN_USERS: usize = 16_384;

/// Limit of groups of mac.login: the name service may be asked for each at every login.
pub const MAXIMUM_LOGIN_GROUPS: usize = 256;
