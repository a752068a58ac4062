//! Processes by a descriptor, whose number may pass to others; and how this one ends when asked.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::SystemError;

/// Whether the process of a pidfd has ended, reaped or not.
///
/// # Errors
/// As poll(2).
pub fn has_ended(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut ended = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    Ok(rustix::event::poll(&mut ended, Some(&Timespec::default()))? > 0)
}

/// Has SIGTERM end this process at once with status 0, as a service manager expects of a daemon
/// that it stops. Nothing is run on the way: what has to outlive the process has to outlive its
/// sudden death as well. Programs that it executes have the default action again.
///
/// # Errors
/// When the kernel refuses.
pub fn end_when_asked() -> Result<(), SystemError> {
    extern "C" fn end(_: libc::c_int) {
        // SAFETY: ends the process without running anything; async-signal-safe (signal-safety(7)).
        unsafe { libc::_exit(0) }
    }
    // SAFETY: plain numbers, for which all zeros is a value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = end as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a pointer to a local structure; the handler calls nothing but _exit(2).
    let outcome =
        unsafe { libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut()) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(SystemError::call("taking SIGTERM")(
            io::Error::last_os_error(),
        ))
    }
}
