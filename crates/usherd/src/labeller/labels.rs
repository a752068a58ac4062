//! Which file systems have files with labels of their own: from the policy to the kernel and to the thread
//! that keeps labels of new files.

use std::path::Path;

use usher_kernel_label::SHOWN;
use usher_local::requests::MultilabelView;
use usher_mac::Framework;
use usher_policy::Policy;
use usher_policy::mac::ModuleSettings;

use super::error::MacError;
use super::persisting::{Multilabel, Persisting, Watched};
use super::resolving::FileSystems;

/// The trouble that a file system of the policy is not mounted.
pub(super) const TROUBLE: &str = "multilabel";

/// The trouble that one file system is not watched.
pub(super) const UNWATCHED: &str = "new files";

/// The trouble that labels are not shown, or new files nowhere labelled.
pub(super) const UNWRITTEN: &str = "labels of new files";

/// The file systems that the policy calls multilabel.
///
/// # Errors
/// The first one that is not mounted, and beside it all that are.
pub(super) fn mounted(
    policy: Option<&Policy>,
    file_systems: &FileSystems,
) -> Result<Vec<Multilabel>, (Vec<Multilabel>, MacError)> {
    let (mut found, mut fault) = (Vec::new(), None);
    for block in policy.into_iter().flat_map(|policy| &policy.mac) {
        let ModuleSettings::Framework(settings) = &block.settings else {
            continue;
        };
        for path in &settings.multilabel {
            match Multilabel::at(path, |path| file_systems.device(path)) {
                Ok(file_system) => found.push(file_system),
                Err(error) => {
                    let (place, path) = (block.origin.place.to_string(), path.clone());
                    fault.get_or_insert(MacError::NotMounted { place, path, error });
                }
            }
        }
    }
    match fault {
        None => Ok(found),
        Some(fault) => Err((found, fault)),
    }
}

/// Whether the policy calls the file system at this path multilabel.
pub(super) fn is_named(policy: Option<&Policy>, path: &str) -> bool {
    let mut blocks = policy.into_iter().flat_map(|policy| &policy.mac);
    blocks.any(|block| match &block.settings {
        ModuleSettings::Framework(settings) => settings.multilabel.contains(path),
        _ => false,
    })
}

/// Has files of these file systems have labels of their own, and no others, and shows every process the labels of
/// processes.
///
/// # Errors
/// The kernel's: some may have them then.
pub(super) fn put_in_force(
    framework: Option<&mut Framework>,
    persisting: &Persisting,
    wanted: &[Multilabel],
) -> Result<(), MacError> {
    let labels = match framework {
        Some(framework) => {
            let devices = wanted.iter().map(|one| one.device).collect();
            framework.set_multilabel(&devices)?;
            framework.show_labels(Path::new(SHOWN))?;
            Some(framework.new_file_labels()?)
        }
        None => {
            hide()?;
            None
        }
    };
    let set = persisting.set(labels, wanted.to_vec());
    set.map_err(MacError::NotPersistent)
}

/// Shows the labels of processes no longer.
///
/// # Errors
/// The kernel's.
pub(super) fn hide() -> Result<(), usher_mac::Error> {
    Ok(usher_bpf::hide(Path::new(SHOWN))?)
}

/// The file systems at work, for an administrator.
pub(super) fn views(persisting: &Persisting) -> Vec<MultilabelView> {
    let watched = persisting.watched().into_iter();
    watched.map(|(path, state)| view(path, state)).collect()
}

fn view(path: String, state: Watched) -> MultilabelView {
    let counts = state.counts;
    MultilabelView {
        path,
        persisted: counts.persisted,
        unlabelled: counts.unlabelled,
        failed: counts.failed,
        overflows: counts.overflows,
        is_walking: state.is_walking,
        trouble: state.unwatched.or(counts.failure),
    }
}
