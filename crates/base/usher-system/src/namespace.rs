//! Network namespaces: that of a socket (kernel 5.14), and new ones.

use std::os::fd::AsFd;

use nix::sched::{CloneFlags, unshare};
use rustix::net::{AddressFamily, SocketType};

use crate::SystemError;

/// The cookie of a socket's network namespace. No other namespace has it while this host runs.
///
/// # Errors
/// When the kernel cannot say.
pub fn network_of(socket: impl AsFd) -> Result<u64, SystemError> {
    let cookie = usher_system_ffi::network_cookie(socket.as_fd());
    cookie.map_err(SystemError::call("ask for the network namespace"))
}

/// The cookie of the caller's network namespace.
///
/// # Errors
/// When the kernel cannot say.
pub fn own_network() -> Result<u64, SystemError> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).map_err(
        SystemError::call("make a socket to ask for the network namespace"),
    )?;
    network_of(&socket)
}

/// Runs a task in a thread of its own, in a new network namespace that ends with the thread.
///
/// # Errors
/// When the kernel makes no namespace; the task is not run then.
pub fn in_new_network<T: Send>(task: impl FnOnce() -> T + Send) -> Result<T, SystemError> {
    let run = move || unshare(CloneFlags::CLONE_NEWNET).map(|()| task());
    let outcome = std::thread::scope(|scope| scope.spawn(run).join());
    outcome
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        .map_err(SystemError::call("make a network namespace"))
}
