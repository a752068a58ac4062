//! The calls of `include/usher_mac.h` about processes.

use std::ffi::{c_char, c_int};

use super::mac::{Mac, fill, label_of};
use super::service::{Failure, invalid, status_for_c};
use super::text_of;
use crate::mac::{call_module, label_of_process, set_at_exec, set_own};

/// See mac_get_proc(3).
///
/// # Safety
/// `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_get_proc(mac: *mut Mac) -> c_int {
    let label = label_of_process(None).map_err(Failure::from);
    // SAFETY: this function's contract.
    unsafe { fill(mac, label) }
}

/// See mac_get_proc(3).
///
/// # Safety
/// `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_get_pid(process: libc::pid_t, mac: *mut Mac) -> c_int {
    let label = label_of_process(Some(process)).map_err(Failure::from);
    // SAFETY: this function's contract.
    unsafe { fill(mac, label) }
}

/// See mac_set_proc(3).
///
/// # Safety
/// `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_set_proc(mac: *const Mac) -> c_int {
    // SAFETY: this function's contract.
    let label = unsafe { label_of(mac) };
    status_for_c(label.and_then(|label| {
        set_own(label)?;
        Ok(0)
    }))
}

/// See mac_execve(3).
///
/// # Safety
/// As execve(2): `path` is null or a string, `arguments` and `environment` are null or lists of strings that end
/// in a null pointer. `mac` is null or a label of these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    mac: *const Mac,
) -> c_int {
    // SAFETY: this function's contract.
    let label = unsafe { label_of(mac) };
    status_for_c(label.and_then(|label| {
        set_at_exec(Some(label))?;
        // SAFETY: the kernel checks these pointers, and refuses bad ones with EFAULT.
        unsafe { libc::execve(path, arguments, environment) };
        let error = std::io::Error::last_os_error();
        // The process must not get the label with another program.
        set_at_exec(None)?;
        Err(error.into())
    }))
}

/// See mac_syscall(3).
///
/// # Safety
/// `module` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_mac_syscall(
    module: *const c_char,
    call: c_int,
    argument: u64,
) -> c_int {
    // SAFETY: this function's contract.
    let module = unsafe { text_of(module) };
    status_for_c(module.and_then(|module| {
        let module = module.parse().map_err(invalid)?;
        let call = u32::try_from(call).map_err(|_| invalid("the number of a call is negative"))?;
        call_module(&module, call, argument)?;
        Ok(0)
    }))
}
