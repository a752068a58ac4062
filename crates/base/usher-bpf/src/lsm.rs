//! The hooks for LSM programs.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

use crate::KernelError;

/// The hooks of this kernel.
#[derive(Debug)]
pub struct Hooks(Btf<'static>);

impl Hooks {
    /// Reads the kernel's types, several megabytes: once for many programs.
    ///
    /// # Errors
    /// When the kernel does not describe its types (`/sys/kernel/btf/vmlinux`).
    pub fn of_kernel() -> Result<Self, KernelError> {
        let types = Btf::from_vmlinux().map_err(KernelError::bpf(
            "reading the kernel's types (/sys/kernel/btf/vmlinux)",
        ))?;
        Ok(Self(types))
    }

    /// Whether LSM programs can be attached to this hook.
    #[must_use]
    pub fn has(&self, hook: &str) -> bool {
        let function = format!("bpf_lsm_{hook}");
        self.0.type_by_name::<Func<'_>>(&function).is_some()
    }
}
