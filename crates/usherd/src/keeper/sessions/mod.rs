//! Sessions: how they are opened, which connections they admit, and how they end.

pub mod announced;
pub mod open;
pub mod restore;
pub mod table;
pub mod teardown;
pub mod verifier;
pub mod views;
