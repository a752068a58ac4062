//! A lab is a set of hosts as namespaces on this machine, for the integration tests, the demo and
//! the bench.
//!
//! A host has its own network, processes, mounts, host name, accounts (`/etc/passwd` is a private
//! copy) and homes, a BPF file system and a cgroup. One switch connects all hosts of a lab, IPv4
//! `10.77.0.N/24` and IPv6 `fd77::N/64`. The namespaces of the machine itself never change.
//!
//! ```no_run
//! # fn main() -> Result<(), usher_lab::LabError> {
//! let lab = usher_lab::Lab::new()?;
//! let laptop = lab.host("laptop")?;
//! let mailhost = lab.host("mailhost")?;
//! laptop.add_account("alice", 1001)?;
//! let output = laptop.run_as("alice", ["id", "-un"])?;
//! assert_eq!(output.stdout.trim(), "alice");
//! # Ok(())
//! # }
//! ```
//!
//! Everything dies with the process that made the lab, even if SIGKILL ends it: the first process of
//! each host reads from a pipe whose only other end is in the lab's process, and exits when the pipe
//! ends; the kernel then ends the rest of the host and drops its namespaces. The next lab removes
//! what the kernel keeps (cgroup folders).
#![forbid(unsafe_code)]

mod anchor;
mod c_program;
pub mod capture;
mod cgroup;
mod command;
mod daemon;
mod dovecot;
mod error;
mod host;
pub mod hostile;
mod interruption;
mod mail;
mod network;
mod notify;
pub mod protected;
mod running;
mod shell;
mod status;
mod topology;
mod waiting;

pub use c_program::LIBRARY_PATH;
pub use command::{Command, Output};
pub use daemon::{Daemon, Role};
pub use error::LabError;
pub use host::{Host, Process};
pub use interruption::Interruption;
pub use mail::{ALICE, BOB, CAROL, Mail, User};
pub use running::Running;
/// The signals of [`Daemon::kill`] and [`Running::kill`].
pub use rustix::process::Signal;
pub use topology::{Lab, Remover};
pub use waiting::{PATIENCE, eventual, eventually, in_time};
