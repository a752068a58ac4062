//! The dispatchers, and the loading of them and of modules in their slots.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use usher_bpf::{Code, Hooks, InterfacePlace, KernelError, Object, Opened, code};

use crate::declaration::CHECK;
use crate::shared::MAC_NONE;
use crate::{EntryPoint, Error, Module, Unsupported};
use crate::{events, followed, in_force, labels};

/// The object with the dispatchers and their tables.
pub(crate) static CODE: Code = code!("usher_mac", "framework");
/// Prefix of the dispatchers' names.
const DISPATCH: &str = "dispatch_";
/// The tables that outlive the process, beside those of labels.
const TABLES: [&str; 4] = ["layout", "modules", in_force::TABLE, "refusals"];
/// The place of the dispatcher at the root of control groups, which is no hook of an LSM.
pub(crate) const EGRESS: &str = "cgroup_egress";
/// The place of the dispatcher at the kernel's tracepoint of a fork, which is no hook of an LSM either.
pub(crate) const FORKED: &str = "sched_process_fork";
/// The places of the dispatchers at interfaces, which are no hooks of an LSM either.
pub(crate) const AT_INTERFACES: [(&str, InterfacePlace); 2] = [
    ("tc_ingress", InterfacePlace::Ingress),
    ("tc_egress", InterfacePlace::Egress),
];
/// The LSMs in force, by commas.
const LSMS: &str = "/sys/kernel/security/lsm";
/// The LSMs that write attributes of new files. Without one the kernel does not call inode_init_security.
const ATTRIBUTE_LSMS: [&str; 3] = ["evm", "selinux", "smack"];

pub(crate) fn not_supported(reason: impl fmt::Display) -> Unsupported {
    Unsupported(reason.to_string())
}

/// The place at network interfaces where the dispatcher of a hook runs; none for hooks elsewhere.
pub(crate) fn at_interfaces(hook: &str) -> Option<InterfacePlace> {
    let place = AT_INTERFACES.iter().find(|(name, _)| *name == hook);
    place.map(|(_, place)| *place)
}

/// The name of a hook's dispatcher.
pub(crate) fn dispatcher(hook: &str) -> String {
    format!("{DISPATCH}{hook}")
}

/// The tables that outlive the process. All are pinned: dispatchers that are loaded later would get a second
/// copy of a table that is missing here.
pub(crate) fn tables() -> Vec<&'static str> {
    let tables = TABLES.into_iter().chain(events::TABLES);
    tables.chain(labels::TABLES).collect()
}

/// The hooks with a dispatcher.
pub(crate) fn hooks() -> BTreeSet<&'static str> {
    let of_points = EntryPoint::all().map(EntryPoint::hook);
    let of_points = of_points.chain(labels::HOOKS);
    of_points.chain([followed::HOOK]).collect()
}

/// The LSMs in force, by commas.
fn lsms() -> Result<String, Unsupported> {
    match fs::read_to_string(LSMS) {
        Ok(lsms) => Ok(lsms.trim().to_owned()),
        Err(error) => Err(not_supported(format!("{LSMS} cannot be read: {error}"))),
    }
}

/// Whether one of the wanted LSMs is among these.
fn has(lsms: &str, wanted: &[&str]) -> bool {
    lsms.split(',').any(|lsm| wanted.contains(&lsm))
}

/// Requires that the kernel asks LSM programs about the labels of new files.
pub(crate) fn require_new_files() -> Result<(), Error> {
    let lsms = lsms()?;
    if has(&lsms, &ATTRIBUTE_LSMS) {
        Ok(())
    } else {
        Err(Error::NewFilesUnlabelled(lsms))
    }
}

/// Requires that LSM programs are asked, and that the hooks are there.
pub(crate) fn require_hooks() -> Result<(), Unsupported> {
    let lsms = lsms()?;
    if !has(&lsms, &["bpf"]) {
        return Err(not_supported(format!(
            "bpf is not among the LSMs in force ({lsms}); boot with lsm=...,bpf"
        )));
    }
    let offered = Hooks::of_kernel().map_err(not_supported)?;
    let mut hooks = hooks();
    hooks.retain(|hook| ![EGRESS, FORKED].contains(hook) && at_interfaces(hook).is_none());
    if let Some(lacking) = hooks.iter().find(|hook| !offered.has(hook)) {
        return Err(not_supported(format!("it has no hook {lacking}")));
    }
    Ok(())
}

/// The hooks whose dispatchers a module needs.
pub(crate) fn hooks_of(module: &Module) -> Result<BTreeSet<&'static str>, Error> {
    let declared = module.declaration()?;
    let points = declared.entry_points.into_iter().map(EntryPoint::hook);
    let mut hooks: BTreeSet<_> = points.collect();
    if declared.label != MAC_NONE {
        hooks.extend(labels::HOOKS);
    }
    Ok(hooks)
}

/// Loads the dispatchers of these hooks.
pub(crate) fn load_dispatchers(
    opened: Opened,
    hooks: &BTreeSet<&'static str>,
) -> Result<Object, Unsupported> {
    let wanted = |program: &str, _: &str| {
        let hook = program.strip_prefix(DISPATCH);
        Ok::<_, KernelError>(hook.is_some_and(|hook| hooks.contains(hook)))
    };
    let loaded = opened.choose(wanted).and_then(Opened::load);
    loaded.map_err(|error| not_supported(format!("it refuses the dispatchers: {error}")))
}

/// The dispatchers of these hooks, which have just been loaded.
pub(crate) fn programs(
    object: &Object,
    hooks: &BTreeSet<&'static str>,
) -> Result<BTreeMap<&'static str, OwnedFd>, Error> {
    let programs = hooks
        .iter()
        .map(|hook| Ok((*hook, object.program_named(&dispatcher(hook))?)));
    programs.collect()
}

/// A module whose checks replace the slots of this number, and the entry points that it declares.
pub(crate) fn replacing(
    module: &Module,
    slot: u32,
    dispatchers: &BTreeMap<&'static str, OwnedFd>,
) -> Result<(Opened, Vec<EntryPoint>), Error> {
    let declared = module.declaration()?;
    let mut points = Vec::new();
    let opened = module.open()?.replace(|check| {
        let point = check.strip_prefix(CHECK).and_then(EntryPoint::named);
        let point = point.ok_or(KernelError::MissingPart(
            "a check of a declared entry point",
        ))?;
        points.push(point);
        let slots = dispatchers.get(point.hook());
        let of = slots.ok_or(KernelError::MissingPart("a dispatcher"))?;
        Ok::<_, Error>((of.as_fd(), format!("mac_slot_{point}_{slot}")))
    })?;
    points.sort_unstable();
    // libbpf must find the same in the object file as the reader of declarations.
    if points != declared.entry_points || module.name() != declared.name {
        return Err(KernelError::MissingPart("the declared checks").into());
    }
    Ok((opened, points))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Threat model: M104
    #[test]
    fn new_files_have_labels_where_an_lsm_has_attributes() {
        for lsms in ["lockdown,yama,bpf,ima,evm", "capability,selinux,bpf"] {
            assert!(has(lsms, &ATTRIBUTE_LSMS), "{lsms}");
        }
        for lsms in ["", "lockdown,capability,landlock,apparmor,bpf", "notevm"] {
            assert!(!has(lsms, &ATTRIBUTE_LSMS), "{lsms}");
        }
    }
}
