//! An unmodified charon on each of several hosts.

mod peers;
mod sas;
mod world;
