//! The ends of children, and the signals that they inherit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// How a child has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status.
    pub code: Option<i32>,
    /// The signal that has killed it.
    pub signal: Option<i32>,
}

/// The ends of all children of this process, for one that has no others than those that it follows,
/// and one thread.
#[derive(Debug)]
pub struct Ends(OwnedFd);

impl Ends {
    /// Begins to hear of them: SIGCHLD is blocked from now on. A child that is made by
    /// [`super::Starter`] unblocks it.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn hear() -> io::Result<Self> {
        // SAFETY: a local set of signals; blocking one runs no code. The descriptor is new and nobody
        // else's.
        unsafe {
            let mut ends: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut ends);
            libc::sigaddset(&raw mut ends, libc::SIGCHLD);
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const ends, std::ptr::null_mut()) < 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, &raw const ends, flags) {
                descriptor if descriptor >= 0 => Ok(Self(OwnedFd::from_raw_fd(descriptor))),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// The next child that has ended; none: no other has. After none, the descriptor is readable when
    /// another ends.
    ///
    /// # Errors
    /// As waitpid(2).
    pub fn next(&self) -> io::Result<Option<(u32, Ended)>> {
        if let Some(ended) = reap_any()? {
            return Ok(Some(ended));
        }
        // One signal may stand for many, and one that comes after this stands for a later end.
        let mut signal = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut signal) {
            Ok(_) => reap_any(),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks SIGTERM: the calling process ends after its children, also when all are asked to end. A
/// child that is made by [`super::Starter`] unblocks it.
///
/// # Errors
/// As sigprocmask(2).
pub fn outlast_requests_to_end() -> io::Result<()> {
    // SAFETY: a local set of signals; blocking one runs no code.
    unsafe {
        let mut asked: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut asked);
        libc::sigaddset(&raw mut asked, libc::SIGTERM);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const asked, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Any child that has ended; none: no child has.
fn reap_any() -> io::Result<Option<(u32, Ended)>> {
    let mut status = 0;
    // SAFETY: writes a local number. Not by rustix or nix, which do not say who it was, or not of a
    // child that a real-time signal has killed.
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

/// Gives every signal its default action, for children to inherit, but SIGPIPE, which is ignored: a
/// child must not end because its starter has, to which it writes. CLONE_CLEAR_SIGHAND leaves ignored
/// ones ignored: whatever the keeper's own parent ignored, too. Raw calls, because the C library does
/// not let its own two be changed; SIGKILL and SIGSTOP refuse.
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
