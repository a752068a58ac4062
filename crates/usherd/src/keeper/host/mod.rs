//! What this host lends to the other rooms of the keeper: its accounts, the rules that its kernel
//! enforces, and its processes. Nothing here knows of sessions or queues.

pub mod accounts;
pub mod destinations;
pub mod fence;
pub mod identities;
pub mod pam;
pub mod ports;
pub mod process;
