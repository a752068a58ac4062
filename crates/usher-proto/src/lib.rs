//! Usher's wire formats, the authenticator and the hash chain.
//!
//! No I/O, no clock, no randomness, no unsafe code: every function takes bytes, times and seeds as
//! arguments and gives back values or a typed error. The formats are told byte by byte in
//! `docs/PROTOCOL.md`; the rules all decoders of this crate keep are:
//!
//! - a length is checked against its limit and against what is there *before* anything is
//!   allocated or copied;
//! - every format is canonical: if `decode(x)` gives a value, encoding that value gives `x` again.
//!   Trailing bytes, set padding and second spellings of one value are refused;
//! - a decoder never panics, whatever the bytes.
//!
//! Encoders never fail. A value whose public fields were filled beyond the limits (a list of
//! nine addresses, a statement of a megabyte) encodes to bytes that the decoder refuses; nothing
//! is cut silently.
#![forbid(unsafe_code)]

mod codec;
mod serde_text;

pub mod connection;
pub mod error;
pub mod host_key;
pub mod name;
pub mod refusal;
pub mod session_id;

pub use connection::{ConnectionTuple, MixedFamilies};
pub use error::DecodeError;
pub use host_key::{HostKeyError, HostPublicKey};
pub use name::{HostName, NameError, ServiceName, UserName};
pub use refusal::Refusal;
pub use session_id::{SessionId, session_id};
