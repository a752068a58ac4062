//! Attributes of the calling process, for its security modules: lsm_set_self_attr(2).

use std::io;

// Kernel 6.8, on all architectures.
const SYS_LSM_SET_SELF_ATTR: libc::c_long = 460;

/// The longest value, so that it and the head of struct lsm_ctx fit into a page.
pub const LONGEST_ATTRIBUTE: usize = 4000;

/// The head of struct lsm_ctx, and the value.
#[repr(C)]
struct Context {
    id: u64,
    flags: u64,
    length: u64,
    value_length: u64,
    value: [u8; LONGEST_ATTRIBUTE],
}

/// Sets an attribute of the calling thread's process for one security module.
///
/// # Errors
/// As lsm_set_self_attr(2), with every error of the module; E2BIG for a value that is too long.
pub fn set_self_attribute(module: u64, attribute: u32, value: &[u8]) -> io::Result<()> {
    let head = size_of::<Context>() - LONGEST_ATTRIBUTE;
    let mut context = Context {
        id: module,
        flags: 0,
        length: (head + value.len()) as u64,
        value_length: value.len() as u64,
        value: [0; LONGEST_ATTRIBUTE],
    };
    let Some(place) = context.value.get_mut(..value.len()) else {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    };
    place.copy_from_slice(value);
    // SAFETY: the kernel reads as many bytes as the size says, all of which are the structure's.
    let code = unsafe {
        libc::syscall(
            SYS_LSM_SET_SELF_ATTR,
            attribute,
            std::ptr::from_ref(&context),
            (head + value.len()) as u32,
            0_u32,
        )
    };
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
