//! The labels of processes that the kernel holds, and changes of a process's own.
//!
//! The framework of mandatory access control (`bpf/mac`) shows the labels of processes by iterators that every
//! process may read ([`label_of_process`]). A process changes its own label by lsm_set_self_attr(2)
//! ([`set_own`]), which every module in force that labels processes may refuse.

mod error;
mod layout;
mod own;
mod shown;

pub use error::ProcessLabelError;
pub use own::{call_module, labels_processes, set_at_exec, set_own};
pub use shown::{OWN, PROCESSES, SHOWN, label_of_process, labels_of_processes};
