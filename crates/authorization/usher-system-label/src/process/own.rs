//! Changes of the calling process's own label, by lsm_set_self_attr(2).

use std::io;

use rustix::io::Errno;
use usher_label::{ElementName, Label};
use usher_system::process::set_self_attribute;

use super::ProcessLabelError;
use super::layout::{ATTRIBUTE_CALL, CALL_ARGUMENT, CALL_NUMBER, CALL_SIZE, DONE, LSM_ID};

/// LSM_ATTR_CURRENT and LSM_ATTR_EXEC of linux/lsm.h.
const CURRENT: u32 = 100;
const EXEC: u32 = 101;

/// Sets these elements of the process's label; the others stay. All threads of the process have one label.
///
/// # Errors
///
/// A module refuses, or there is none that labels processes. The label is as before then.
pub fn set_own(elements: &Label) -> Result<(), ProcessLabelError> {
    if elements.is_empty() {
        return Err(ProcessLabelError::Empty);
    }
    set_own_label(CURRENT, elements.to_string().as_bytes())
}

/// Has the process get these elements when it next executes a program; `None` takes the request back, which
/// the caller does when execve(2) fails. Children do not inherit the request.
///
/// # Errors
///
/// As [`set_own`].
pub fn set_at_exec(elements: Option<&Label>) -> Result<(), ProcessLabelError> {
    match elements {
        Some(elements) if elements.is_empty() => Err(ProcessLabelError::Empty),
        Some(elements) => set_own_label(EXEC, elements.to_string().as_bytes()),
        None => set_own_label(EXEC, b""),
    }
}

/// Whether a module in force labels processes; [`set_own`] then asks modules. Also takes back a request of
/// [`set_at_exec`].
///
/// # Errors
///
/// Those of [`set_at_exec`], except `NotSupported`.
pub fn labels_processes() -> Result<bool, ProcessLabelError> {
    match set_at_exec(None) {
        Ok(()) => Ok(true),
        Err(ProcessLabelError::NotSupported) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Calls a module: mac_syscall(3). The number of the call and the argument mean what the module says.
///
/// # Errors
///
/// [`ProcessLabelError::NoCall`], or the module's error.
pub fn call_module(
    module: &ElementName,
    call: u32,
    argument: u64,
) -> Result<(), ProcessLabelError> {
    let mut request = [0; CALL_SIZE];
    let name = module.as_ref().as_bytes();
    request[..name.len()].copy_from_slice(name);
    request[CALL_NUMBER].copy_from_slice(&call.to_ne_bytes());
    request[CALL_ARGUMENT].copy_from_slice(&argument.to_ne_bytes());
    match done(set_self_attribute(LSM_ID, ATTRIBUTE_CALL, &request)) {
        Ok(()) => Ok(()),
        Err(error) => Err(match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::NOSYS) => ProcessLabelError::NoCall(module.clone()),
            errno => ProcessLabelError::Kernel(errno.unwrap_or(Errno::IO)),
        }),
    }
}

fn set_own_label(attribute: u32, text: &[u8]) -> Result<(), ProcessLabelError> {
    let set = done(set_self_attribute(LSM_ID, attribute, text));
    set.map_err(|error| ProcessLabelError::of(&error))
}

fn done(answer: io::Result<()>) -> io::Result<()> {
    match answer {
        Err(error) if error.raw_os_error() == Some(DONE) => Ok(()),
        other => other,
    }
}
