//! What Usher asks of the kernel, and the only room with unsafe code besides libusher's C
//! interface: BPF programs and maps, listeners, live connections, workers and their cgroups,
//! privileges and confinement. It knows nothing of policy text.
//!
//! Kernels from 6.1 on. What a kernel lacks is found by trying ([`probe`]) and said plainly.

pub mod accounts;
pub mod admission;
mod attach;
pub mod cgroup;
mod clock;
pub mod connections;
pub mod descriptor_store;
pub mod destinations;
mod error;
pub mod listener;
pub mod namespace;
pub mod ownership;
pub mod ports;
pub mod privileges;
pub mod probe;
pub mod process;
pub mod release;
pub mod sandbox;
pub mod stream;
pub mod ticket;
pub mod worker;

pub use error::KernelError;
