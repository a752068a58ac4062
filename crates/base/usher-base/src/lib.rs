//! Names, connections' endpoints, the codec in which all formats of Usher are written, and a hash.
//!
//! No I/O, no clock, no randomness, no unsafe code. Knows no message of any system.
//!
//! Room: touches nothing outside its arguments. Any crate may use it.
#![forbid(unsafe_code)]

pub mod codec;
mod connection;
mod hash;
mod key_line;
mod name;
pub mod serde_text;

pub use codec::DecodeError;
pub use codec::address_bytes;
pub use connection::{CONNECTION_TUPLE_SIZE, ConnectionTuple, MixedFamilies};
pub use hash::sha256;
pub use key_line::with_single_blanks;
pub use name::{HostName, Name, NameError, Padded, ServiceName, UserName};
