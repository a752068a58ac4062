//! Changes of a process to itself that no safe interface offers.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;

/// Closes a descriptor of which a fork has left this process a duplicate. The descriptor's owner is a thread
/// that this process does not have.
pub(crate) fn close(descriptor: RawFd) {
    // SAFETY: nothing in this process owns the descriptor, by this function's contract; closing one
    // that is not open does nothing.
    unsafe { libc::close(descriptor) };
}

/// The inode of what a descriptor stands for; none when it is not open.
pub(crate) fn inode(descriptor: RawFd) -> Option<u64> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: not -1, and used for this call only; the kernel says EBADF when it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Some(rustix::fs::fstat(borrowed).ok()?.st_ino)
}

/// Leaves the session keyring, which all processes of the service share, for a new one
/// (keyctl_join_session_keyring(3)). Kernels without keyrings have nothing to leave.
pub(crate) fn join_new_keyring() -> Result<(), Errno> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a system call with a number and no name.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0) };
    if joined >= 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS) => Ok(()),
        code => Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO))),
    }
}

/// setsockopt(2) with an option that rustix does not know.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the value is initialised and as long as said, and the kernel only reads it.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            length,
        )
    };
    if code == 0 {
        return Ok(());
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)))
}
