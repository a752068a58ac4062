//! The session table: the kernel's rows, and what the keeper knows about each session besides.

pub mod agenda;
#[cfg(test)]
mod example;
pub mod recent;
pub mod room;
pub mod share;
pub mod tokens;
pub mod unrecorded;
