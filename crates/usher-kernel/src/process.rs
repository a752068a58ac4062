//! Processes by a descriptor, whose number may pass to others.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Whether the process of a pidfd has ended, reaped or not.
///
/// # Errors
/// As poll(2).
pub fn has_ended(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut ended = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    Ok(rustix::event::poll(&mut ended, Some(&Timespec::default()))? > 0)
}
