//! Which network namespace a socket is in. Kernel 5.14.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketType};

use crate::KernelError;

/// The cookie of a socket's network namespace: no other has it while this host runs.
///
/// # Errors
/// When the kernel cannot say.
pub fn network_of(socket: impl AsFd) -> Result<u64, KernelError> {
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
        Err(KernelError::system("asking for the network namespace")(
            std::io::Error::last_os_error(),
        ))
    }
}

/// The cookie of the caller's network namespace.
///
/// # Errors
/// When the kernel cannot say.
pub fn own_network() -> Result<u64, KernelError> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).map_err(
        KernelError::errno("making a socket to ask for the network namespace"),
    )?;
    network_of(&socket)
}

/// Sets `own_network`, the only constant of a program that holds for one network namespace, to the
/// caller's.
///
/// # Errors
/// When the kernel cannot say which that is, or the program has no such constant.
pub(crate) fn set_own_network(open: &mut libbpf_rs::OpenObject) -> Result<(), KernelError> {
    const MISSING: KernelError = KernelError::MissingPart("own_network");
    let own = own_network()?.to_ne_bytes();
    let mut constants = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or(MISSING)?;
    let constants = constants.initial_value_mut().ok_or(MISSING)?;
    if constants.len() != own.len() {
        return Err(MISSING);
    }
    constants.copy_from_slice(&own);
    Ok(())
}
