//! Which network namespace a socket is in. Kernel 5.14.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketType};

use crate::SystemError;

/// The cookie of a socket's network namespace: no other has it while this host runs.
///
/// # Errors
/// When the kernel cannot say.
pub fn network_of(socket: impl AsFd) -> Result<u64, SystemError> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut size: libc::socklen_t = 8;
    // SAFETY: the number and its size live until the call returns, and the size is the number's.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &mut size,
        )
    };
    if code == 0 {
        Ok(cookie)
    } else {
        Err(SystemError::call("asking for the network namespace")(
            std::io::Error::last_os_error(),
        ))
    }
}

/// The cookie of the caller's network namespace.
///
/// # Errors
/// When the kernel cannot say.
pub fn own_network() -> Result<u64, SystemError> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).map_err(
        SystemError::call("making a socket to ask for the network namespace"),
    )?;
    network_of(&socket)
}
