//! Pinned BPF maps that every program may read, where their modes permit it.

pub use usher_system_ffi::ReadOnlyMap;
