//! The `mac` blocks of the policy: the settings of the modules of mandatory access control.
//!
//! Each module declares the statements of its block as data ([`dialect()`]) and checks what the tables
//! cannot tell. The block `framework` is about the framework itself. [`check`] turns the blocks into [`MacBlock`]s, [`MacBlock::to_text`] writes them back.
//! usher-mac encodes the settings for the kernel, and the labeller puts them in force.
//!
//! No I/O: names of users, groups and file systems stay names. The labeller resolves them.
//!
//! Room: touches nothing outside its arguments. usher-policy reads policies through it; it enforces
//! nothing.
#![forbid(unsafe_code)]

mod account;
mod block;
pub mod bsdextended;
mod dialect;
mod framework;
pub mod ifoff;
mod limits;
mod mistake;
pub mod portacl;
pub mod seeotheruids;
pub mod te;
mod words;

pub use account::{AccountId, NamedAccount};
pub use block::{MacBlock, ModuleSettings, check};
pub use dialect::{FRAMEWORK, MAC, MODULES, UBNS, dialect};
pub use framework::{FRAMEWORK_BLOCK, FrameworkSettings};
pub use limits::{MAXIMUM_NAMES, MAXIMUM_RELABELS, MAXIMUM_SWITCHES, MAXIMUM_TYPE_RULES};
pub use mistake::MacMistake;
