//! What Usher's daemons ask of the kernel: BPF programs and maps, listeners, workers and their
//! cgroups. It has unsafe code and knows nothing of policy text.
//!
//! Kernels from 6.1 on. What a kernel lacks is found by trying ([`probe`]) and said plainly.

pub mod admission;
mod attach;
pub mod cgroup;
mod clock;
pub mod descriptor_store;
pub mod destinations;
mod error;
pub mod listener;
pub mod ownership;
pub mod ports;
pub mod probe;
pub mod release;
pub mod ticket;
pub mod worker;

pub use error::KernelError;
