//! How the traffic of programs is protected by IPsec: the tables that are made of a policy, and what
//! they mean.
//!
//! [`Tables`] is what the monitor and the IKE side work by. [`Tables::treat`] is the reference: what
//! the kernel programs decide about a packet is what it says.
//!
//! No I/O and no clock.
#![forbid(unsafe_code)]

mod class;
mod tables;

pub use class::{Class, Kind, LOWEST_CLASS_MARK, Level, Profile};
pub use tables::{Item, ProgramName, Rules, Tables, Treatment, Verdict};
