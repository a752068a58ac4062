//! System calls and calls of the C library that no safe crate has.
//!
//! All of `usher-system`'s unsafe code is here, one block a call. The types of arguments make each
//! function safe for every caller. All errors are the kernel's.
//!
//! Room: descriptors and files by handles that the caller names, attributes of the calling process,
//! and the name service's list of accounts. Only `usher-system` uses it.

mod attributes;
mod files;

pub use attributes::{LONGEST_ATTRIBUTE, set_self_attribute};
pub use files::{LONGEST_HANDLE, group_of_new_files, open_handle, watch_file_system};

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use rustix::ioctl::{Getter, Opcode, ioctl};

// linux/sockios.h
const SIOCATMARK: Opcode = 0x8905;
const SIOCOUTQ: Opcode = 0x5411;

/// getpwent(3) has one position in the list for the whole process.
static LIST: Mutex<()> = Mutex::new(());

/// The version of this kernel's Landlock; 0 or less: it has none, or it is not enabled.
#[must_use]
pub fn landlock_version() -> i64 {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: the call only returns the version.
    unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    }
}

/// SO_NETNS_COOKIE of a socket (kernel 5.14).
///
/// # Errors
/// As getsockopt(2).
pub fn network_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut size: libc::socklen_t = 8;
    // SAFETY: the number and its size live until the call returns, and the size is the number's.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &mut size,
        )
    };
    if code == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// SIOCATMARK (tcp(7)): whether the next byte to read is urgent: `recv(MSG_OOB)` returns it once it has
/// come; read(2) and splice(2) do not.
///
/// # Errors
/// When this is not a TCP connection.
pub fn is_at_urgent_byte(connection: impl AsFd) -> io::Result<bool> {
    // SAFETY: SIOCATMARK writes one int to the address that it is given, and reads nothing.
    let answer = unsafe { ioctl(connection, Getter::<SIOCATMARK, libc::c_int>::new()) };
    Ok(answer? != 0)
}

/// SIOCOUTQ (tcp(7)): the number of bytes that the peer's kernel has not acknowledged yet.
///
/// # Errors
/// When this is not a TCP connection, or it listens.
pub fn unacknowledged(connection: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQ writes one int to the address that it is given, and reads nothing.
    let answer = unsafe { ioctl(connection, Getter::<SIOCOUTQ, libc::c_int>::new()) };
    Ok(usize::try_from(answer?).unwrap_or(0))
}

/// Calls `take` with the name and the primary group of each account that the name service lists. `take` must
/// not call this function.
///
/// # Errors
/// As getpwent(3); some accounts have been taken then.
pub fn for_each_account(mut take: impl FnMut(&CStr, u32)) -> io::Result<()> {
    let _held = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: it takes nothing, and no other thread of this process reads the list meanwhile.
    unsafe { libc::setpwent() };
    let end = loop {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: under the lock; what it returns is good until the next call.
        let entry = unsafe { libc::getpwent() };
        if entry.is_null() {
            break io::Error::last_os_error();
        }
        // SAFETY: not null, so it points to an entry that is good until the next call.
        let entry = unsafe { &*entry };
        // SAFETY: the name of an entry is a string that ends with zero.
        take(unsafe { CStr::from_ptr(entry.pw_name) }, entry.pw_gid);
    };
    // SAFETY: as for setpwent.
    unsafe { libc::endpwent() };
    match end.raw_os_error() {
        // glibc returns either of these at the end of the list.
        Some(0 | libc::ENOENT) => Ok(()),
        _ => Err(end),
    }
}
