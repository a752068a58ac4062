//! The BPF toolkit: what all of Usher's rooms with kernel programs do in the same way.
//!
//! 1. [`Code::probe`] tries whether this kernel takes a room's programs.
//! 2. [`Code::open`] reads them. [`Opened`] sizes and pins their tables, and loads them; tables that
//!    an earlier process has pinned are adopted.
//! 3. [`Object`] hands out [`Table`]s, [`Counters`] and [`Ring`]s, and attaches programs: for as long
//!    as a descriptor is open, or for good by a pinned link, which the next process brings up to
//!    date.
//! 4. [`Pins`] is the folder of what stays. Closing it all is to drop it, and
//!    [`Pins::remove`] for what is pinned.
//!
//! 5. [`guard`] is how a daemon owns what it makes.
//!
//! It knows nothing of what programs decide, and its errors name tables and pins only. It has unsafe
//! code: calls of libbpf whose Rust wrapper hides errno or is missing.

// What is generated names this crate.
extern crate self as usher_bpf;

mod code;
mod counters;
mod error;
pub mod guard;
mod ingress;
mod lsm;
mod mirrored;
mod object;
mod pins;
mod plain;
mod print;
mod ring;
mod table;

pub use code::{Code, Opened};
pub use counters::{Counted, Counters};
pub use error::KernelError;
pub use ingress::{Filter, Unattached};
pub use lsm::has_hook;
pub use mirrored::Mirrored;
pub use object::{Object, keep_for_all, let_go, program_id, run};
pub use pins::{Objects, Pins, exists};
pub use plain::Plain;
pub use ring::{Batch, Ring};
pub use table::{Insertion, Table};
