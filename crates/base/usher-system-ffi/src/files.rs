//! New files: fanotify(7), and files by their handles.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The longest handle, MAX_HANDLE_SZ of name_to_handle_at(2).
pub const LONGEST_HANDLE: usize = 128;

/// struct file_handle with the most room.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: c_int,
    handle: [u8; LONGEST_HANDLE],
}

fn descriptor(code: c_int) -> io::Result<OwnedFd> {
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(code) })
}

/// Makes a group of fanotify(7) whose events name new files by handles and open nothing. Reading the group
/// does not wait. Needs CAP_SYS_ADMIN for marks on file systems.
///
/// # Errors
/// As fanotify_init(2).
pub fn group_of_new_files() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_REPORT_DFID_NAME
        | libc::FAN_REPORT_FID
        | libc::FAN_REPORT_TARGET_FID;
    // SAFETY: the call takes two numbers.
    descriptor(unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) })
}

/// Has a group of [`group_of_new_files`] report every new name on the file system of an open file, that of a
/// moved file included.
///
/// # Errors
/// As fanotify_mark(2); EOPNOTSUPP where the file system has no handles.
pub fn watch_file_system(group: BorrowedFd<'_>, on: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a null path means the descriptor itself; the other arguments are numbers.
    let code = unsafe {
        libc::fanotify_mark(
            group.as_raw_fd(),
            libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM,
            libc::FAN_CREATE | libc::FAN_MOVED_TO | libc::FAN_ONDIR,
            on.as_raw_fd(),
            std::ptr::null(),
        )
    };
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the file of a handle as O_PATH does, a symbolic link itself. Needs CAP_DAC_READ_SEARCH. `mount` is
/// an open file of the same file system, not opened with O_PATH.
///
/// # Errors
/// As open_by_handle_at(2): ESTALE when the file is gone; EINVAL for a handle that is too long.
pub fn open_handle(mount: BorrowedFd<'_>, kind: i32, handle: &[u8]) -> io::Result<OwnedFd> {
    let mut whole = Handle {
        bytes: 0,
        kind,
        handle: [0; LONGEST_HANDLE],
    };
    let Some(place) = whole.handle.get_mut(..handle.len()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    place.copy_from_slice(handle);
    whole.bytes = handle.len() as u32;
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the handle has the kernel's layout, room for as many bytes as it says, and lives until the call
    // returns, which only reads it.
    descriptor(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            std::ptr::from_mut(&mut whole),
            flags,
        ) as c_int
    })
}
