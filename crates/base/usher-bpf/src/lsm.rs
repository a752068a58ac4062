//! The hooks for LSM programs.

use std::collections::HashSet;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;

use crate::KernelError;

/// An LSM program is attached to a function whose name is this prefix and the name of the hook.
const PREFIX: &str = "bpf_lsm_";

/// The hooks of this kernel.
#[derive(Debug)]
pub struct Hooks(HashSet<String>);

impl Hooks {
    /// Reads the kernel's types, several megabytes, in one pass. Looking each hook up by its name would take
    /// a pass for each.
    ///
    /// # Errors
    /// When the kernel does not describe its types (`/sys/kernel/btf/vmlinux`).
    pub fn of_kernel() -> Result<Self, KernelError> {
        let types = Btf::from_vmlinux().map_err(KernelError::bpf(
            "read the kernel's types (/sys/kernel/btf/vmlinux)",
        ))?;
        let numbers = 1..u32::try_from(types.len()).unwrap_or(u32::MAX);
        let functions = numbers.filter_map(|number| types.type_by_id::<Func<'_>>(number.into()));
        let names = functions.filter_map(|function| function.name()?.to_str());
        let hooks = names.filter_map(|name| name.strip_prefix(PREFIX));
        Ok(Self(hooks.map(str::to_owned).collect()))
    }

    /// Whether LSM programs can be attached to this hook.
    #[must_use]
    pub fn has(&self, hook: &str) -> bool {
        self.0.contains(hook)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hooks_are_those_that_are_found_by_name() {
        let Ok(types) = Btf::from_vmlinux() else {
            println!("skipped: this kernel does not describe its types");
            return;
        };
        let hooks = Hooks::of_kernel().unwrap();
        assert!(hooks.has("file_open") && !hooks.has("no_such_hook"));
        for hook in &hooks.0 {
            let found = types.type_by_name::<Func<'_>>(&format!("{PREFIX}{hook}"));
            assert!(found.is_some(), "{hook}");
        }
    }
}
