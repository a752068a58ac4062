//! Sessions: how they are opened, which connections they admit, and how they end.

pub mod agenda;
pub mod announced;
#[cfg(test)]
mod example;
pub mod open;
pub mod recent;
pub mod restore;
pub mod room;
pub mod share;
pub mod teardown;
pub mod tokens;
pub mod unrecorded;
pub mod verifier;
pub mod who;
