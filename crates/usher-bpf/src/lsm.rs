//! What LSM programs need besides: the kernel's list of hooks, and a way to ask them.

use std::io;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::libbpf_sys;

use crate::KernelError;

/// The programs' yes to a question: EUCLEAN, which the kernel itself never says to it.
const ANSWER: i32 = 117;

/// Whether this kernel has an LSM hook that programs can be attached to.
///
/// # Errors
/// When it does not describe its types (`/sys/kernel/btf/vmlinux`).
pub fn has_hook(hook: &str) -> Result<bool, KernelError> {
    let kernel = Btf::from_vmlinux().map_err(KernelError::bpf(
        "reading the kernel's types (/sys/kernel/btf/vmlinux)",
    ))?;
    let function = format!("bpf_lsm_{hook}");
    Ok(kernel.type_by_name::<Func<'_>>(&function).is_some())
}

/// Asks LSM programs at the hook of bpf(2) something, in the place of a link's id. Where there are
/// none, or bpf is not among the LSMs in force, the answer is no.
///
/// # Errors
/// What else the kernel says.
pub fn ask(question: u32) -> Result<bool, KernelError> {
    // SAFETY: takes a number and no pointer.
    let code = unsafe { libbpf_sys::bpf_link_get_fd_by_id(question) };
    match -code {
        ANSWER => Ok(true),
        libc::ENOENT => Ok(false),
        errno => Err(KernelError::system("asking the programs for an answer")(
            io::Error::from_raw_os_error(errno),
        )),
    }
}
