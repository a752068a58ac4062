//! Reaping children, and the signals that they inherit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A child's exit status or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The child's exit status.
    pub code: Option<i32>,
    /// The signal that killed the child.
    pub signal: Option<i32>,
}

/// Reaps all children of this process. The process must have one thread, and no children that other
/// code waits for.
#[derive(Debug)]
pub struct Ends(SignalFd);

impl Ends {
    /// Begins to reap: SIGCHLD is blocked from now on. A child made by [`super::Starter`] unblocks
    /// it.
    ///
    /// # Errors
    /// When the process or the system has no descriptor left.
    pub fn hear() -> io::Result<Self> {
        let ends = SigSet::from(Signal::SIGCHLD);
        ends.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&ends, flags)?))
    }

    /// The next child that has ended; none if there is no other. After none, the descriptor becomes
    /// readable when another child ends.
    ///
    /// # Errors
    /// Like waitpid(2).
    pub fn next(&self) -> io::Result<Option<(u32, Ended)>> {
        if let Some(ended) = reap_any()? {
            return Ok(Some(ended));
        }
        // One signal may stand for several children. A signal that comes after this read stands for
        // a later one.
        match self.0.read_signal() {
            Ok(Some(_)) => reap_any(),
            Ok(None) | Err(Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks SIGTERM: the calling process ends after its children, even if all are asked to end. A
/// child made by [`super::Starter`] unblocks it.
///
/// # Errors
/// Like pthread_sigmask(3).
pub fn block_requests_to_end() -> io::Result<()> {
    Ok(SigSet::from(Signal::SIGTERM).thread_block()?)
}

/// Any child that has ended; none if no child has.
fn reap_any() -> io::Result<Option<(u32, Ended)>> {
    let mut status = 0;
    // SAFETY: writes a local number. rustix does not return the process id, and nix fails for a
    // child killed by a real-time signal.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    if pid < 0 {
        return match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            error => Err(error),
        };
    }
    Ok((pid > 0).then(|| {
        let ended = Ended {
            code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        };
        (pid.unsigned_abs(), ended)
    }))
}

/// Gives every signal its default action, for children to inherit, except SIGPIPE, which is
/// ignored: a child writes to its starter and must not end because the starter has.
/// CLONE_CLEAR_SIGHAND leaves ignored signals ignored, including those that the keeper's own parent
/// ignored. Raw calls, because the C library protects its own two signals; SIGKILL and SIGSTOP
/// refuse.
pub(super) fn default_signals() {
    // The kernel's struct sigaction: handler (0: default), flags, restorer, 64 bits of mask.
    let default = [0_u64; 4];
    for signal in (1..=64).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: a pointer to a local array of the structure's size or more. No code of this
        // process relies on a handler: it has one thread and has just begun.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                0_usize,
                8_usize,
            );
        }
    }
    // SAFETY: sets an action, for the whole process, that runs no code.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
