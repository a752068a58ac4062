//! The MAC framework's kernel side: it puts policy modules in force at the kernel's hooks.
//!
//! - [`Framework`] owns the *dispatchers* of bpf/mac: one LSM program for each [`EntryPoint`], attached
//!   only while a loaded module declares it. A dispatcher has [`MAX_MODULES`] *slots*, functions that a
//!   module's function replaces (BPF_PROG_TYPE_EXT), and asks those of all modules that are in force.
//!   Any refusal refuses; of several errors one is chosen by precedence.
//! - A [`Module`] is one C file: built in, of bpf/mac/modules, or somebody else's, from an object file. Its
//!   [`Declaration`] is read before libbpf or the kernel gets anything of it. `bsdextended` has rules, `portacl` the
//!   ports of users, `seeotheruids` exemptions, `ifoff` interfaces, `te` rules about types, `ubns` the services of
//!   the policy ([`ubns`]).
//! - Settings are those of the policy (usher-mac-blocks), with what the names in them mean on this host ([`Names`]).
//!   Each module's `encode` makes the structure of `usher_mac_settings.h` that it reads.
//! - The framework keeps labels of processes, files, interfaces and other objects for modules that declare a kind
//!   of element. Each module sees its own elements only. docs/adr/0076-labels-in-the-kernel.md has the reasons.
//! - [`Framework::take_events`] returns the refusals of modules, and the processes that they have lowered.
//! - Everything is pinned. The process's end changes nothing; the next [`Framework::open`] adopts it.
//!
//! docs/mac-entry-points.md lists the entry points, docs/adr/0071-mac-framework.md has the reasons.
//!
//! Room: the BPF objects of `bpf/mac`, below the folder of pins that the caller names. Only the daemon
//! that owns mandatory access control uses it.
#![forbid(unsafe_code)]

mod answers;
mod bsdextended;
mod cgroups;
mod declaration;
mod devices;
mod dispatchers;
mod elements;
mod error;
mod events;
mod followed;
mod framework;
mod ifoff;
mod in_force;
mod interfaces;
mod labels;
mod module;
mod names;
mod new_files;
mod points;
mod portacl;
mod seeotheruids;
mod shared;
mod shown;
mod slots;
mod statements;
pub mod te;
pub mod ubns;

pub use answers::Answers;
pub use declaration::{Declaration, MAX_MODULE_SIZE, NotAModule};
pub use error::{Error, ServiceMistake, Unsupported};
pub use events::{EventFile, ModuleEvent, NotLowered, Outcome, Told};
pub use framework::Framework;
pub use interfaces::MAX_INTERFACES;
pub use labels::MAX_ELEMENTS_OF_USERS;
pub use module::{Loaded, MAX_MODULES, Module, NAMES, Settings};
pub use names::Names;
pub use new_files::NewFileLabels;
pub use points::EntryPoint;
pub use shared::is_module_name;
pub use statements::{DeclaredSettings, NoStatements, Statement, StatementValues};
