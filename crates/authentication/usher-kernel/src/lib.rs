//! The daemons' kernel interfaces: the programs of `bpf/`, listeners, workers and their cgroups. This
//! crate has unsafe code and knows nothing of policy text.
//!
//! Each room with programs has the same verbs, on the toolkit of `usher-bpf`: its `CODE` is probed, `open`
//! puts it in force, `apply` changes it, `counters` reports its work. Dropping the value ends its work,
//! except for what is pinned, which stays in force until [`release`].
//!
//! It supports kernels from 6.1 on. [`probe`] finds missing features by trying them. Functions
//! whose errors are not described return the kernel's.
//!
//! Room: listeners, control groups, worker processes, and the BPF objects of authentication. Only
//! `usherd` uses it, and each daemon only the objects that it owns.

pub mod admission;
pub mod cgroup;
mod clock;
pub mod descriptor_store;
pub mod destinations;
pub mod listener;
pub mod ownership;
pub mod ports;
pub mod probe;
pub mod protected;
pub mod release;
mod shared;
pub mod ticket;
pub mod worker;

pub use usher_bpf::KernelError;
