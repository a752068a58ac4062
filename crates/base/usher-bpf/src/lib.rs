//! The BPF toolkit: what all rooms with kernel programs have in common.
//!
//! 1. [`Code::probe`] tries whether this kernel accepts a room's programs.
//! 2. [`Code::open`] reads them. [`Opened`] sizes and pins their tables and loads them; it adopts
//!    tables that an earlier process has pinned.
//! 3. [`Object`] hands out [`Table`]s, [`Counters`] and [`Ring`]s, and attaches programs: either as
//!    long as a descriptor is open, or for good by a pinned link, which the next process updates.
//! 4. [`Pins`] is the folder of pinned objects. Dropping everything releases the rest;
//!    [`Pins::remove`] releases what is pinned.
//! 5. [`show`] lets every process read what iterators write.
//! 6. [`guard`] lets a daemon own its objects.
//! 7. [`executables`] identifies the programs that processes run.
//!
//! The toolkit does not know what programs decide, and its errors name only tables and pins. Its
//! unsafe code is in `usher-bpf-ffi`. Functions whose errors are not described return those of the kernel
//! and of libbpf.
//!
//! Room: BPF objects, and the folders of pins that its callers name. Only crates that daemons run
//! use it.

#![forbid(unsafe_code)]

// Generated code names this crate.
extern crate self as usher_bpf;

mod code;
mod counters;
mod error;
pub mod executables;
pub mod guard;
mod ingress;
mod interfaces;
mod lsm;
mod mirrored;
mod netfilter;
mod object;
mod pins;
mod print;
mod ring;
mod shown;
mod slots;
mod table;

pub use code::{Code, Opened};
pub use code::{Step, tell_progress};
pub use counters::{Counted, Counters, or_zeros};
pub use error::KernelError;
pub use error::Lack;
pub use ingress::{Filter, Unattached};
pub use interfaces::{
    AtInterfaces, InterfacePlace, is_kept_at_interfaces, keep_at_interfaces, leave_interfaces,
};
pub use lsm::Hooks;
pub use mirrored::Mirrored;
pub use netfilter::{NetfilterHook, NetfilterPlace, leave_netfilter};
pub use object::{Iteration, Object, cgroup_number, keep_for_all, let_go, run, run_on_packet};
pub use pins::{Objects, Pins, exists, program_id};
pub use ring::{Batch, Ring};
pub use shown::{SHOWN_MODE, Shown, hide, show};
pub use slots::{is_kept, keep, keep_at_egress, leave};
pub use table::Plain;
pub use table::{Insertion, Table, frozen_bytes};
// For generated code.
pub use zerocopy;
