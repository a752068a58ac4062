//! The C interface of `include/usher.h` and `include/usher_mac.h`. All of this crate's unsafe code.

mod mac;
mod mac_process;
mod service;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::IntoRawFd;
use std::str::FromStr;

use crate::connect_by_user;
use service::{Failure, invalid};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// See connect_by_user(3).
///
/// # Safety
/// `host` and `service` are null or point to strings that end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_connect_by_user(
    host: *const c_char,
    service: *const c_char,
) -> c_int {
    // SAFETY: what this function's contract asks of its caller.
    let (Some(host), Some(service)) = (unsafe { name_from_c(host) }, unsafe {
        name_from_c(service)
    }) else {
        return fail("not a host or service name", libc::EINVAL);
    };
    match connect_by_user(&host, &service) {
        Ok(connection) => connection.into_raw_fd(),
        Err(error) => fail(&error.to_string(), error.errno()),
    }
}

/// See connect_by_user(3): the error of this thread's last failed call.
#[unsafe(no_mangle)]
pub extern "C" fn usher_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Parses a name given by C.
///
/// # Safety
/// As [`text_of`].
unsafe fn name_from_c<T: FromStr>(text: *const c_char) -> Option<T> {
    // SAFETY: this function's contract.
    unsafe { text_of(text) }.ok()?.parse().ok()
}

/// The text of a string of C.
///
/// # Safety
/// `text` is null or points to a string that ends in a zero byte and outlives what is returned.
unsafe fn text_of<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(invalid("the text is a null pointer"));
    }
    // SAFETY: not null, and a string by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid("the text is not UTF-8"))
}

fn fail(text: &str, errno: c_int) -> c_int {
    LAST_ERROR.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
    // SAFETY: __errno_location returns this thread's errno, valid for the thread's life.
    unsafe { *libc::__errno_location() = errno };
    -1
}
