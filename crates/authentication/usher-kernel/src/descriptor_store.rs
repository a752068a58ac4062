//! Descriptors that the service manager keeps for a daemon (systemd's file descriptor store,
//! sd_pid_notify_with_fds(3)), so that they outlive it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The descriptors kept from an earlier run, with their names, close-on-exec. Call it once, before
/// anything else opens or takes descriptors.
///
/// # Errors
/// When LISTEN_PID or LISTEN_FDS are malformed.
pub fn take_descriptors() -> io::Result<Vec<(String, OwnedFd)>> {
    Ok(sd_notify::listen_fds_with_names()?
        .map(|(number, name)| {
            // SAFETY: the service manager has left this descriptor open for this process
            // (LISTEN_PID is ours), and nothing else has taken it: see this function's contract.
            (name, unsafe { OwnedFd::from_raw_fd(number) })
        })
        .collect())
}
