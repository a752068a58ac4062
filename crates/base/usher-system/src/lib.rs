//! Requests of all of Usher's programs to the kernel, without BPF: privileges and confinement, live
//! connections, network namespaces, accounts.
//!
//! Its unsafe code is in `usher-system-ffi`. Functions whose errors are not described return the
//! kernel's.
//!
//! Room: privileges and sandbox of the calling process, namespaces, live connections, account
//! files. Any program may use it; it decides nothing.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod connections;
mod error;
pub mod namespace;
pub mod privileges;
pub mod process;
pub mod sandbox;
pub mod stream;

pub use error::SystemError;
