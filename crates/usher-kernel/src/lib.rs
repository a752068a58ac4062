//! What Usher's daemons ask of the kernel: the programs of `bpf/`, listeners, workers and their
//! cgroups. It has unsafe code and knows nothing of policy text.
//!
//! Each room with programs has the same verbs, on the toolkit of `usher-bpf`: its `CODE` is probed,
//! `open` puts it in force, it is told what to apply, `counters` says what it has done. Dropping it
//! ends it, or leaves it in force where it is pinned: [`release`] ends that.
//!
//! Kernels from 6.1 on. What a kernel lacks is found by trying ([`probe`]) and said plainly.

pub mod admission;
pub mod cgroup;
mod clock;
pub mod descriptor_store;
pub mod destinations;
pub mod listener;
pub mod ownership;
pub mod ports;
pub mod probe;
pub mod release;
mod shared;
pub mod ticket;
pub mod worker;

pub use usher_bpf::KernelError;
