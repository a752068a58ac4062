//! Requests of all of Usher's programs to the kernel, without loading BPF programs: privileges and
//! confinement, live connections, network namespaces, accounts, access control lists, new files, files that
//! only root can write.
//!
//! Its unsafe code is in `usher-system-ffi`. Functions whose errors are not described return the
//! kernel's.
//!
//! Room: privileges, sandbox and attributes of the calling process, namespaces, live connections, account
//! files and file systems that the caller names. Any program may use it; it decides nothing.

#![forbid(unsafe_code)]

pub mod access_lists;
pub mod accounts;
pub mod connections;
mod error;
pub mod namespace;
pub mod new_files;
pub mod privileges;
pub mod process;
pub mod roots_file;
pub mod sandbox;

pub use error::SystemError;
