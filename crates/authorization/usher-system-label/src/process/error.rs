//! Labels of processes that cannot be read or set.

use rustix::io::Errno;
use usher_label::ElementName;

/// A label of a process that cannot be read or set, or a call that a module refuses. Displays as an
/// explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessLabelError {
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(i32),
    /// The label to set has no element.
    #[error("a label without an element cannot be set")]
    Empty,
    /// No module in force labels processes, or the kernel has no framework.
    #[error("no module in force labels processes here; `usher mac list` shows the modules")]
    NotSupported,
    /// A module refuses, or has no such element or call.
    #[error("a module refuses the label for this process, or permits no change of it")]
    NotPermitted,
    /// A module refuses by the labels.
    #[error("a module refuses: the process's label does not permit this one")]
    Refused,
    /// No module in force has such an element, or does not take the value.
    #[error(
        "no module in force has such an element, or the module does not take its value (names of `te` are \
         declared, and put in force by `usher policy apply`); `usher mac list` shows the modules"
    )]
    Invalid,
    /// Another thread has changed the label while modules were asked.
    #[error("another thread has changed the label meanwhile; try again")]
    Contended,
    /// There is no room for a new element.
    #[error(
        "the module has as many elements as the kernel keeps: use a label that others have already; unloading \
         the module and loading it again makes room, and takes its elements from all processes"
    )]
    TableFull,
    /// The module has no such call, or is not in force.
    #[error("the module {0} is not in force, or has no such call")]
    NoCall(ElementName),
    /// Kernel and library are not of the same version.
    #[error(
        "{0}: the labels in the kernel have another layout; install one version of Usher, and restart usher-labeller"
    )]
    OtherLayout(&'static str),
    /// The kernel refused otherwise.
    #[error("{0}")]
    Kernel(Errno),
}

impl ProcessLabelError {
    /// The errno that the calls of mac(3) return for this error.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoProcess(_) => Errno::SRCH,
            Self::Empty | Self::Invalid => Errno::INVAL,
            Self::NotSupported => Errno::OPNOTSUPP,
            Self::NotPermitted => Errno::PERM,
            Self::Refused => Errno::ACCESS,
            Self::Contended => Errno::AGAIN,
            Self::TableFull => Errno::NOSPC,
            Self::NoCall(_) => Errno::NOSYS,
            Self::OtherLayout(_) => Errno::PROTO,
            Self::Kernel(errno) => *errno,
        }
    }

    pub(crate) fn of(error: &std::io::Error) -> Self {
        match Errno::from_io_error(error).unwrap_or(Errno::IO) {
            Errno::OPNOTSUPP | Errno::NOSYS => Self::NotSupported,
            Errno::PERM => Self::NotPermitted,
            Errno::ACCESS => Self::Refused,
            Errno::INVAL => Self::Invalid,
            Errno::AGAIN => Self::Contended,
            Errno::NOSPC => Self::TableFull,
            errno => Self::Kernel(errno),
        }
    }
}
