//! `usher mac if`: the network interfaces of this host with their labels.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use usher_local::requests::InterfaceView;

use crate::failure::{At, Failure};
use crate::output::{Output, or_dash, row, table};

/// The interfaces of this network namespace, a folder each.
const FOLDER: &str = "/sys/class/net";

/// An interface that is there, or that the policy names.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Interface {
    /// Its name.
    name: String,
    /// Whether it is there.
    is_present: bool,
    /// In force. Null: no element.
    label: Option<String>,
    /// In the policy, with elements of modules that are not in force. Null: none.
    policy: Option<String>,
}

/// Prints the interfaces that are there, and those that the policy names.
///
/// # Errors
/// When the kernel's list cannot be read.
pub(super) fn run(output: &Output, labelled: Vec<InterfaceView>) -> Result<(), Failure> {
    let folder = Path::new(FOLDER);
    let interfaces = joined(present(folder).at(folder)?, labelled);
    // JSON of `usher mac if`: a list of [`Interface`].
    output.print(&interfaces, || interfaces_text(&interfaces));
    Ok(())
}

/// The names of the interfaces in the kernel's list. Other entries of the folder have no interface number.
fn present(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join("ifindex").exists() {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn joined(present: BTreeSet<String>, labelled: Vec<InterfaceView>) -> Vec<Interface> {
    let labelled = labelled.into_iter().map(|view| (view.name.clone(), view));
    let mut labelled: BTreeMap<String, InterfaceView> = labelled.collect();
    let names: BTreeSet<String> = present.iter().chain(labelled.keys()).cloned().collect();
    let interfaces = names.into_iter().map(|name| {
        let view = labelled.remove(&name);
        let (label, policy) = view.map_or((None, None), |view| (view.in_force, Some(view.label)));
        Interface {
            is_present: present.contains(&name),
            name,
            label,
            policy,
        }
    });
    interfaces.collect()
}

fn interfaces_text(interfaces: &[Interface]) -> String {
    let rows = interfaces.iter().map(|interface| {
        let is_present = if interface.is_present { "yes" } else { "no" };
        let (label, policy) = (interface.label.as_ref(), interface.policy.as_ref());
        row![interface.name, is_present, or_dash(label), or_dash(policy)]
    });
    table(["INTERFACE", "PRESENT", "LABEL", "POLICY"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_there_and_in_the_policy_are_listed_by_name() {
        let view = |name: &str, in_force: Option<&str>| InterfaceView {
            name: name.to_owned(),
            label: "biba/high,mls/low".to_owned(),
            in_force: in_force.map(str::to_owned),
        };
        let labelled = vec![view("eth0", Some("mls/low")), view("tun9", None)];
        let present = ["lo".to_owned(), "eth0".to_owned()].into();
        let interfaces = joined(present, labelled);
        let expected = "INTERFACE  PRESENT  LABEL    POLICY\n\
                        eth0       yes      mls/low  biba/high,mls/low\n\
                        lo         yes      -        -\n\
                        tun9       no       -        biba/high,mls/low\n";
        assert_eq!(interfaces_text(&interfaces), expected);
    }

    #[test]
    fn the_kernel_lists_the_loopback_interface() {
        assert!(present(Path::new(FOLDER)).unwrap().contains("lo"));
    }
}
