//! What all of Usher's programs ask of the kernel, without BPF: privileges and confinement, live
//! connections, network namespaces, accounts.
//!
//! It has unsafe code, each block for one system call or one call of the C library.
//!
//! Room: privileges and sandbox of the calling process, namespaces, live connections, account
//! files. Any program may use it; it decides nothing.

pub mod accounts;
pub mod connections;
mod error;
pub mod namespace;
pub mod privileges;
pub mod process;
pub mod sandbox;
pub mod stream;

pub use error::SystemError;
