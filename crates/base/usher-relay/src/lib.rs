//! Moves the bytes between two connections, for `usher proxy` and usher-identify(8).
//!
//! Room: the connections that its callers pass. It reads none of their bytes.
#![forbid(unsafe_code)]

mod carrier;
mod relay;

pub use carrier::{Carriers, PIPES};
pub use relay::{Connection, abort, relay};
