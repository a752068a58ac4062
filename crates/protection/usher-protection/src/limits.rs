//! Limits of what a policy may say about the traffic of programs. All of it ends up in tables of the kernel,
//! whose sizes are fixed.

/// Most `application` blocks.
pub const MAXIMUM_APPLICATIONS: usize = 4096;

/// Limit of programs, over all blocks.
pub const MAXIMUM_PROGRAMS: usize = 8192;

/// Limit of items of a protection: a kernel program compares the ports of a packet with one after the
/// other.
pub const MAXIMUM_ITEMS: usize = 64;

/// Limit of names that a policy has looked up: each is asked for again and again.
pub const MAXIMUM_NAMES: usize = 256;

/// Limit of addresses of one name that are taken.
pub const MAXIMUM_ADDRESSES: usize = 64;

/// Limit of entries of [`crate::Rules::networks`], over all applications.
pub const MAXIMUM_NETWORKS: usize = 131_072;
