//! Shows an administrator what the labeller has in force.

use std::collections::{BTreeMap, BTreeSet};

use usher_local::configuration::Configuration;
use usher_local::requests::{MacView, ModuleView, UNREADABLE_NOTES};
use usher_mac::te::Denial;
use usher_mac::{Module, NAMES};
use usher_policy::mac::te::{self, AllowedWhat};

use super::error::MacError;
use super::force::Force;
use super::labels;

/// The statement that permits what `te` has refused.
fn statement(denial: &Denial) -> Option<String> {
    let is_own = denial.domain == denial.object;
    let object: &str = if is_own { te::SELF } else { &denial.object };
    let what = AllowedWhat {
        domain: denial.domain.parse().ok()?,
        object: object.parse().ok()?,
        class: denial.class,
    };
    let permissions: BTreeSet<&str> = denial.permissions.iter().copied().collect();
    Some(what.statement(permissions))
}

impl Force {
    /// The state in force. Files of modules are not read.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) fn in_force(&self) -> Result<MacView, MacError> {
        Ok(self.in_force_with_digests()?.0)
    }

    /// The state in force, and the modules that can be loaded.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) fn view(&self) -> Result<MacView, MacError> {
        // Files are read after the lock is released.
        let (mut view, digests) = self.in_force_with_digests()?;
        for module in &mut view.modules {
            let Some(digest) = digests.get(&module.name) else {
                continue;
            };
            module.file = Some(self.files.path(&module.name).display().to_string());
            let now = self.files.read(&module.name).ok().flatten();
            module.has_changed = now.is_none_or(|file| file.digest != *digest);
        }
        let from_files = match self.files.names() {
            Ok((names, others)) => {
                if others > 0 {
                    let others = MacError::NotListed { files: others };
                    view.troubles.push(others.to_string());
                }
                names
            }
            Err(error) => {
                view.troubles.push(error.to_string());
                Vec::new()
            }
        };
        let from_files = from_files.into_iter();
        let from_files = from_files.filter(|name| Module::named(name).is_none());
        for name in NAMES.map(str::to_owned).into_iter().chain(from_files) {
            if view.modules.iter().any(|module| module.name == name) {
                continue;
            }
            match self.find(&name) {
                Ok(_) => view.available.push(name),
                Err(error) => {
                    view.unusable.insert(name, error.to_string());
                }
            }
        }
        Ok(view)
    }

    /// The state in force, and the digests of the files of modules.
    fn in_force_with_digests(&self) -> Result<(MacView, BTreeMap<String, String>), MacError> {
        let state = self.state.lock();
        let mut view = MacView {
            generation: state
                .configuration
                .as_ref()
                .map_or(0, Configuration::generation),
            is_guarded: state.is_guarded,
            unsupported: self
                .require_support(&state)
                .err()
                .map(|lacks| lacks.to_string()),
            specification: state
                .filing
                .as_ref()
                .map(|filing| filing.digest().to_owned()),
            troubles: state.troubles.values().cloned().collect(),
            ..MacView::default()
        };
        if let Some(framework) = &state.framework {
            view.unknown_refusals = framework.unknown_refusals()?;
            view.lost_events = framework.lost_events()?;
            view.hooks = framework
                .attached()?
                .iter()
                .map(ToString::to_string)
                .collect();
            let modules = framework.modules()?.into_iter().map(|module| ModuleView {
                settings: state.lines(&module.name),
                name: module.name,
                slot: module.slot,
                hooks: module
                    .entry_points
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                lowered: module.lowered,
                refusals: module
                    .refusals
                    .iter()
                    .map(|(hook, count)| (hook.to_string(), *count))
                    .collect(),
                ..ModuleView::default()
            });
            view.modules = modules.collect();
            let te = view.modules.iter_mut();
            for module in te.filter(|module| module.name == te::MODULE) {
                match framework.type_denials() {
                    Ok(denials) => {
                        module.unlearned = denials.lost + denials.undeclared as u64;
                        module.lacking = denials.denials.iter().filter_map(statement).collect();
                    }
                    // The module goes on deciding.
                    Err(error) => view
                        .troubles
                        .push(format!("{UNREADABLE_NOTES}: {error}; `usher policy apply` of changed settings begins new notes")),
                }
            }
        }
        let blocks = state.policy().map_or(&[][..], |policy| &policy.mac);
        let waiting = blocks.iter().filter(|block| block.is_of_module());
        let waiting = waiting.map(|block| block.module.to_string());
        let is_loaded = |name: &String| view.modules.iter().any(|module| module.name == *name);
        view.waiting = waiting.filter(|name| !is_loaded(name)).collect();
        view.multilabel = labels::views(&self.writers);
        view.interfaces = labels::interface_views(state.policy(), state.framework.as_ref())?;
        Ok((view, state.digests.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each permission of each class, the printed statement is one that the policy language takes.
    #[test]
    fn what_te_has_refused_is_a_statement_of_the_policy() {
        let denials = te::Class::ALL.iter().map(|class| Denial {
            domain: "imapd".into(),
            object: match class {
                te::Class::Capability => "imapd",
                te::Class::Process | te::Class::Ipc => "web",
                _ => "mail",
            }
            .into(),
            class: *class,
            permissions: class.permissions().iter().rev().copied().collect(),
        });
        let statements: Vec<String> = denials.map(|denial| statement(&denial).unwrap()).collect();
        let declared = "domain imapd; domain web; type mail;";
        let text = format!("mac te {{ {declared} {}; }}", statements.join("; "));
        let name = "a.policy".into();
        let policy = usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap();
        let mut lines = policy.mac[0].settings.lines();
        lines.retain(|line| line.starts_with("allow"));
        let mut sorted = statements;
        sorted.sort();
        lines.sort();
        assert_eq!(lines, sorted);
        assert!(
            sorted[0].starts_with("allow imapd mail device "),
            "{sorted:?}"
        );
        assert!(
            sorted
                .iter()
                .any(|line| line.contains("imapd self capability audit_control "))
        );
    }
}
