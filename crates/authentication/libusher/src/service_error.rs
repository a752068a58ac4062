//! Failures of the calls for services.

use std::io;

use usher_proto::refusal::Refusal;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The descriptor is no socket, or a socket of another kind.
    #[error("the socket is not a {0}: {1}")]
    WrongSocket(&'static str, io::Error),
    /// The keeper refused.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The keeper of this host does not run.
    #[error("the keeper of this host does not answer ({0}); is usher-keeper.service running?")]
    NoKeeper(io::Error),
    /// The keeper's answer makes no sense.
    #[error(
        "cannot understand the keeper's answer; are the library and the daemon of one version?"
    )]
    Protocol,
    /// Another thread was inside a call of this library when this process was forked.
    #[error(
        "cannot use the library in this process: it was forked while another thread was inside a \
         call; fork while no thread is"
    )]
    ForkedInside,
    /// A signal came while the call waited.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The process shares its memory, files or working directory with another one. Nothing has changed,
    /// but the reservation is used up.
    #[error(
        "cannot become the user: this process shares its memory, files or working directory with \
         another one"
    )]
    Shared,
    /// Another process could act inside this one or read its memory: it has a seccomp listener, a
    /// performance event, an io_uring, or pinned pages. Of these, a forked process keeps only the listener.
    #[error(
        "another process could reach into this one (a seccomp listener, a performance event, \
         an io_uring or pinned pages): the keeper's journal says which"
    )]
    Prepared,
    /// The kernel refused the change of user. Nothing has changed.
    #[error("the kernel refused to change this process's groups: {0}")]
    Change(io::Error),
    /// The process has changed in part and has not become the user.
    #[error("this process has changed in part and must end: cannot {what}: {error}")]
    ChangedInPart {
        /// The step that failed.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

impl ServiceError {
    /// The errno(3) value of the C interface.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => match refusal {
                Refusal::NoFence => libc::EOPNOTSUPP,
                Refusal::ReservationLapsed => libc::ESTALE,
                Refusal::ProcessShared => libc::EBUSY,
                Refusal::AlreadySettled | Refusal::LacksCapabilities => libc::EPERM,
                Refusal::TooManyGroups => libc::EOVERFLOW,
                Refusal::NoConnection => libc::ENOENT,
                Refusal::Overloaded => libc::EAGAIN,
                Refusal::KeeperUnavailable => libc::ENETDOWN,
                Refusal::Malformed | Refusal::UnknownVersion => libc::EPROTO,
                _ => libc::EACCES,
            },
            Self::WrongSocket(_, error) | Self::Change(error) => {
                error.raw_os_error().unwrap_or(libc::EINVAL)
            }
            Self::NoKeeper(_) => libc::ENETDOWN,
            Self::Protocol => libc::EPROTO,
            Self::Interrupted => libc::EINTR,
            Self::ForkedInside => libc::EDEADLK,
            Self::Shared | Self::Prepared => libc::EBUSY,
            Self::ChangedInPart { .. } => libc::ENOTRECOVERABLE,
        }
    }
}
