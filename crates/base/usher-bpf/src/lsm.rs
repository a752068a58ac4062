//! The hooks for LSM programs.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

use crate::KernelError;

/// Whether this kernel has an LSM hook that programs can be attached to.
///
/// # Errors
/// When the kernel does not describe its types (`/sys/kernel/btf/vmlinux`).
pub fn has_hook(hook: &str) -> Result<bool, KernelError> {
    let kernel = Btf::from_vmlinux().map_err(KernelError::bpf(
        "reading the kernel's types (/sys/kernel/btf/vmlinux)",
    ))?;
    let function = format!("bpf_lsm_{hook}");
    Ok(kernel.type_by_name::<Func<'_>>(&function).is_some())
}
