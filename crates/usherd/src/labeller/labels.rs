//! Brings labels from the policy to the kernel and to the threads that label new files: the multilabel file
//! systems, the labels of network interfaces, and the families of sockets that processes with a level may
//! make.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_label::Label;
use usher_local::paths;
use usher_local::requests::{InterfaceView, MultilabelView};
use usher_mac::Framework;
use usher_policy::Policy;
use usher_policy::mac::{FrameworkSettings, MacBlock, ModuleSettings};
use usher_system_label::process::SHOWN;

use super::error::MacError;
use super::file_systems::FileSystems;
use super::filing::Filing;
use super::new_files::DEEPEST;
use super::new_files::{LabelWriters, Multilabel};
use super::resolving;

/// The trouble that a file system of the policy is not mounted.
pub(super) const TROUBLE: &str = "multilabel";

/// The trouble that a file system of a rule is not mounted.
pub(super) const WAITING: &str = "filesys";

/// The trouble that file systems are not followed when they are unmounted.
pub(super) const FOLLOWED: &str = "file systems";

/// The trouble that the specification of the policy is not in force.
pub(super) const UNSPECIFIED: &str = "specification";

/// The trouble that a program has lost the type by which a domain is entered.
pub(super) const ENTRY_POINTS: &str = "entry points";

/// The trouble that one file system is not watched.
pub(super) const UNWATCHED: &str = "new files";

/// The trouble that this kernel labels no new files.
pub(super) const MULTILABEL: &str = "multilabel file systems";

/// The trouble that interfaces have other labels than the policy says.
pub(super) const INTERFACES: &str = "network interfaces";

/// The trouble that other families of sockets are permitted than the policy says.
pub(super) const FAMILIES: &str = "families of sockets";

/// The trouble that modules are not asked about the packets of an interface.
pub(super) const UNASKED: &str = "packets of interfaces";

/// The trouble that the search for forgotten labels does not work.
pub(super) const FORGOTTEN: &str = "forgotten labels";

/// Any user can cause refusals. So refusals cause the next walk over all files only after `REST` times the
/// duration of the last walk, within the bounds of `LOOKING`.
const REST: u32 = 10;
const LOOKING: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(60));

/// The trouble that labels are not shown, or that new files get labels on no file system.
pub(super) const UNWRITTEN: &str = "labels of new files";

/// The file systems that the policy calls multilabel and that are mounted; and as an error, the first one
/// that is not mounted.
pub(super) fn mounted(
    policy: Option<&Policy>,
    file_systems: &FileSystems,
) -> (Vec<Multilabel>, Result<(), MacError>) {
    let (mut found, mut all) = (Vec::new(), Ok(()));
    for (block, settings) in settings(policy) {
        for path in &settings.multilabel {
            match Multilabel::at(path, file_systems) {
                Ok(file_system) => found.push(file_system),
                Err(error) => {
                    all = all.and(Err(MacError::NotMounted {
                        place: block.origin.place.to_string(),
                        statement: "multilabel",
                        path: path.clone(),
                        error,
                    }));
                }
            }
        }
    }
    (found, all)
}

/// Checks that the file systems which a policy calls multilabel, and the former one did not, are mounted:
/// otherwise the path is probably mistaken.
///
/// # Errors
/// The first one that is not mounted.
pub(super) fn require_mounted(
    policy: &Policy,
    former: Option<&Policy>,
    file_systems: &FileSystems,
) -> Result<(), MacError> {
    let (found, all) = mounted(Some(policy), file_systems);
    let is_found = |path: &String| found.iter().any(|one| one.path == *path);
    let paths = settings(Some(policy)).flat_map(|(_, settings)| &settings.multilabel);
    let mut missing = paths.filter(|path| !is_found(path));
    if missing.all(|path| is_named(former, path)) {
        Ok(())
    } else {
        all
    }
}

/// The paths of the policy whose file systems are followed: those of rules, and the multilabel ones.
pub(super) fn followed(policy: Option<&Policy>) -> BTreeSet<String> {
    let multilabel = settings(policy).flat_map(|(_, settings)| settings.multilabel.iter());
    let of_rules = resolving::named_file_systems(policy);
    multilabel.chain(of_rules).cloned().collect()
}

/// The devices of multilabel file systems that are no longer mounted at their paths, but in use: their files
/// keep labels.
pub(super) fn elsewhere(
    policy: Option<&Policy>,
    file_systems: &FileSystems,
) -> BTreeSet<(u32, u32)> {
    let paths = settings(policy).flat_map(|(_, settings)| &settings.multilabel);
    paths
        .filter_map(|path| file_systems.elsewhere(path))
        .collect()
}

/// Whether the policy calls the file system at this path multilabel.
pub(super) fn is_named(policy: Option<&Policy>, path: &str) -> bool {
    settings(policy).any(|(_, settings)| settings.multilabel.contains(path))
}

/// The families of sockets that processes with a level may make, by the kernel's numbers.
pub(super) fn families(policy: Option<&Policy>) -> BTreeSet<u32> {
    let families = settings(policy).flat_map(|(_, settings)| settings.family_numbers());
    families.collect()
}

/// The file with the labels of files, and the place where the policy names it.
pub(super) fn specification(policy: Option<&Policy>) -> Option<(String, &str)> {
    let mut named = settings(policy).filter_map(|(_, settings)| settings.specification.as_ref());
    let (path, origin) = named.next()?;
    Some((origin.place.to_string(), path))
}

/// The labels of network interfaces.
pub(super) fn interfaces(policy: Option<&Policy>) -> BTreeMap<String, Label> {
    let labels = settings(policy).flat_map(|(_, settings)| &settings.interfaces);
    labels
        .map(|(name, label)| (name.clone(), label.clone()))
        .collect()
}

/// The settings of the framework; the policy has at most one block of them.
fn settings(policy: Option<&Policy>) -> impl Iterator<Item = (&MacBlock, &FrameworkSettings)> {
    let blocks = policy.into_iter().flat_map(|policy| &policy.mac);
    blocks.filter_map(|block| match &block.settings {
        ModuleSettings::Framework(settings) => Some((block, settings)),
        _ => None,
    })
}

/// The devices of file systems: major and minor numbers.
fn devices(of: &[Multilabel]) -> BTreeSet<(u32, u32)> {
    of.iter().map(|one| one.device).collect()
}

/// Makes the framework. No module decides before the kernel knows which files and interfaces have labels, and
/// which families of sockets are permitted.
///
/// # Errors
/// The kernel's error; then there is no framework.
pub(super) fn framework(
    policy: Option<&Policy>,
    file_systems: &FileSystems,
) -> Result<Framework, MacError> {
    let mut framework = Framework::open(Path::new(paths::LABELLER_PIN_DIRECTORY))?;
    // `Force::watch` reports a file system that is not mounted.
    let (found, _) = mounted(policy, file_systems);
    let set = framework.set_multilabel(&devices(&found));
    let set = set.and_then(|()| framework.permit_families(&families(policy)));
    if let Err(error) = set.and_then(|()| framework.set_interfaces(&interfaces(policy))) {
        if let Err(error) = framework.close() {
            tracing::error!(%error, "cannot remove the framework: it stays in the kernel without a \
                module");
        }
        return Err(error.into());
    }
    Ok(framework)
}

/// Sets the file systems whose files have labels of their own, and shows the labels of processes to every
/// process. New files get labels on the mounted file systems only (`wanted`).
///
/// # Errors
/// The kernel's error; some of this may be in force then.
pub(super) fn put_in_force(
    framework: Option<&Framework>,
    writers: &LabelWriters,
    (wanted, elsewhere): (&[Multilabel], &BTreeSet<(u32, u32)>),
    filing: Option<&Arc<Filing>>,
) -> Result<(), MacError> {
    let set = match framework {
        Some(framework) => {
            framework.set_multilabel(&(&devices(wanted) | elsewhere))?;
            framework.show_labels(Path::new(SHOWN))?;
            writers.set(
                Some(framework.new_file_labels()?),
                wanted.to_vec(),
                filing.cloned(),
            )
        }
        None => {
            hide()?;
            writers.set(None, Vec::new(), None)
        }
    };
    set.map_err(MacError::NotPersistent)
}

/// The state of the kernel at the last walk over all files.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// The modules with labels ([`Framework::label_order`]).
    order: u64,
    /// How many accesses were refused because a label was not known.
    refusals: u64,
    at: Option<Instant>,
}

impl Looked {
    /// Starts a walk over all files when the modules with labels have changed, or when accesses were refused because
    /// a label was not known: the kernel may have forgotten a directory, and the walk makes it known.
    ///
    /// # Errors
    /// The kernel's, or that the thread cannot be woken.
    pub(super) fn look(
        &mut self,
        framework: &Framework,
        writers: &LabelWriters,
    ) -> Result<(), MacError> {
        let now = Self {
            order: framework.label_order()?,
            refusals: framework.unknown_refusals()?,
            at: Some(Instant::now()),
        };
        if self.is_outdated(&now, writers.walked()) {
            writers.look_again().map_err(MacError::NotPersistent)?;
            *self = now;
        }
        Ok(())
    }

    /// Whether a walk would help. `walked` is how long the last one took.
    fn is_outdated(&self, now: &Self, walked: Duration) -> bool {
        let age = now.at.zip(self.at).map(|(now, at)| now - at);
        let rest = walked.saturating_mul(REST).clamp(LOOKING.0, LOOKING.1);
        let is_old = age.is_none_or(|age| age >= rest);
        // An order of 0 means no modules with labels: then no file is refused for lack of a label.
        let has_changed = now.order != 0 && now.order != self.order;
        has_changed || (now.refusals != self.refusals && is_old)
    }
}

/// Stops showing the labels of processes.
///
/// # Errors
/// The kernel's.
pub(super) fn hide() -> Result<(), usher_mac::Error> {
    Ok(usher_bpf::hide(Path::new(SHOWN))?)
}

/// The interfaces that the policy names, for an administrator.
///
/// # Errors
/// The kernel's.
pub(super) fn interface_views(
    policy: Option<&Policy>,
    framework: Option<&Framework>,
) -> Result<Vec<InterfaceView>, usher_mac::Error> {
    let mut in_force = framework.map_or_else(|| Ok(BTreeMap::new()), Framework::interfaces)?;
    let views = interfaces(policy)
        .into_iter()
        .map(|(name, label)| InterfaceView {
            label: label.to_string(),
            in_force: in_force.remove(&name).map(|label| label.to_string()),
            name,
        });
    Ok(views.collect())
}

/// The file systems at work, for an administrator.
pub(super) fn views(writers: &LabelWriters) -> Vec<MultilabelView> {
    let watched = writers.watched().into_iter();
    let views = watched.map(|(path, state)| MultilabelView {
        path,
        persisted: state.counts.persisted,
        unlabelled: state.counts.unlabelled,
        failed: state.counts.failed,
        overflows: state.counts.overflows,
        is_walking: state.is_walking,
        trouble: state
            .unwatched
            .or(state.counts.failure)
            .or_else(|| too_deep(state.counts.too_deep)),
    });
    views.collect()
}

/// The trouble that directories are not looked at, because they lie too deep.
fn too_deep(directories: u64) -> Option<String> {
    (directories > 0).then(|| {
        format!(
            "{directories} directories lie deeper than {DEEPEST} below the root: files below them are left alone; label \
             them with setfsmac, or move them up"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Threat model: M97
    #[test]
    fn files_are_looked_at_when_modules_change_or_labels_lack() {
        let begin = Instant::now();
        let at = |order, refusals, seconds| Looked {
            order,
            refusals,
            at: Some(begin + Duration::from_secs(seconds)),
        };
        let second = Duration::from_secs(1);
        let (looked, new) = (at(1, 5, 0), Looked::default());
        assert!(looked.is_outdated(&at(2, 5, 1), second));
        assert!(looked.is_outdated(&at(1, 6, 10), second));
        assert!(!looked.is_outdated(&at(1, 6, 9), second));
        assert!(looked.is_outdated(&at(1, 6, 4), Duration::ZERO));
        assert!(!looked.is_outdated(&at(1, 6, 3), Duration::ZERO));
        assert!(looked.is_outdated(&at(1, 6, 60), Duration::MAX));
        assert!(!looked.is_outdated(&at(1, 6, 59), Duration::MAX));
        assert!(!looked.is_outdated(&at(1, 5, 600), second));
        assert!(!looked.is_outdated(&at(0, 5, 1), second));
        // Nothing has happened in a new framework.
        assert!(!new.is_outdated(&at(0, 0, 0), second));
        assert!(new.is_outdated(&at(1, 0, 0), second));
    }
}
