//! VICI, the protocol of charon's control socket: the messages, and a connection whose answers are
//! bounded in size and time.
//!
//! The messages have six kinds of elements. Decoding keeps a stack of its own and stops at limits, so
//! that no answer can exhaust memory or the thread's stack; it has a fuzz target.

mod connection;
mod message;

pub use connection::{Connection, PATH};
pub use message::{LARGEST_MESSAGE, MessageError, Section};
