//! `usher policy history` and `revert`: the policies that were in force, and a way back to one. The history
//! lacks revocations and the files of users (keys, the mark of a disabled user), so a user who is disabled
//! stays so. Hosts, host keys and users that have left the policy since come back only by an option: they may
//! have been removed for cause.

use serde_json::json;
use usher_policy::Source;

use super::configuration::{self, OnRefusal, Outcome};
use super::connected_sockets::{self, Connected};
use super::kept::{Entry, entries, find, keep};
use super::log::utc;
use super::{groups, policy, readmission};
use crate::failure::Failure;
use crate::output::{Output, first, row, table, warn};

/// Limit of returning hosts, host keys and users that a refusal names.
const MOST_SHOWN: usize = 32;

/// The option of `usher policy revert` that permits hosts, host keys and users to come back.
const READMIT: &str = "--readmit";

/// Lists the policies that were in force, the newest first.
///
/// # Errors
/// When the history cannot be read.
pub fn list_history(output: &Output) -> Result<(), Failure> {
    let in_force = configuration::in_force()?;
    let entries = entries()?;
    // The same policy may have been in force before.
    let present = entries
        .last()
        .filter(|entry| entry.sources == in_force.sources)
        .map(|entry| entry.generation);
    let files = |entry: &Entry| -> Vec<String> {
        let names = entry.sources.iter();
        names.map(|source| source.name.clone()).collect()
    };
    let views = entries.iter().rev().map(|entry| {
        // JSON object [`applied_policy`]:
        //   generation: The number of the configuration by which it came in force.
        //   applied: When, or null: before the history began.
        //   by: The account that did it, or null: before the history began.
        //   files: List of texts: the names of its files.
        //   in_force: True if it is in force now.
        json!({
            "generation": entry.generation, "applied": entry.applied, "by": entry.by,
            "files": files(entry), "in_force": Some(entry.generation) == present,
        })
    });
    // JSON of `usher policy history`: a list of [`applied_policy`].
    output.print(&views.collect::<Vec<_>>(), || {
        let rows = entries.iter().rev().map(|entry| {
            let is_present = Some(entry.generation) == present;
            row![
                entry.generation,
                entry.applied.map_or_else(|| "-".to_owned(), utc),
                entry.by.as_deref().unwrap_or("-"),
                entry.sources.len(),
                if is_present { "in force" } else { "" },
            ]
        });
        if entries.is_empty() {
            "no history: `usher policy apply` begins it\n".to_owned()
        } else {
            table(["GENERATION", "APPLIED", "BY", "FILES", ""], rows)
        }
    });
    Ok(())
}

/// Prints the files of a policy that was in force, as they were applied.
///
/// # Errors
/// When the history does not have it.
pub fn show(output: &Output, generation: u64) -> Result<(), Failure> {
    let entry = find(entries()?, generation)?;
    // JSON of `usher policy history GENERATION`: [`Entry`].
    output.print(&entry, || {
        let files = entry.sources.iter();
        let text = files.map(|file| format!("# from {}\n{}\n", file.name, file.text.trim_end()));
        text.collect()
    });
    Ok(())
}

/// Puts an earlier policy in force, by default the last one that differs from the present one. Users and
/// their keys stay as they are, and so do the files below /etc/usher. `readmit`: also if hosts, host keys or
/// users come back.
///
/// # Errors
/// When there is no such policy; as an apply.
pub fn revert(
    output: &Output,
    generation: Option<u64>,
    take_ssh_port: bool,
    readmit: bool,
) -> Result<(), Failure> {
    let lock = configuration::lock()?;
    let former = configuration::in_force()?;
    let mut history = entries()?;
    let entry = match generation {
        Some(generation) => find(history, generation)?,
        None => {
            history.retain(|entry| entry.sources != former.sources);
            history.pop().ok_or_else(|| {
                Failure::refused("the history has no other policy than the one in force")
            })?
        }
    };
    let mut fresh = former.clone();
    fresh.sources.clone_from(&entry.sources);
    groups::look_up(&mut fresh);
    let (fresh, checked) = policy::checked(fresh)?;
    if !take_ssh_port {
        policy::spare_ssh(&checked)?;
    }
    let returning = readmission::returning(&former, &fresh, &checked);
    if !readmit && !returning.is_empty() {
        let generation = entry.generation;
        return Err(Failure::Refused(format!(
            "the policy of generation {generation} would bring back what the one in force does not have: \
             {}. Change the files and `usher policy apply`, or, if all of that is meant: `usher policy \
             revert {generation} {READMIT}`",
            first(&returning, MOST_SHOWN)
        )));
    }
    let connected = Connected::of_former(&former);
    let outcome = configuration::put_in_force(&lock, fresh, OnRefusal::RollBack)?;
    keep(&former, &entry.sources, outcome.generation);
    // Users choose how long the rest takes, and others may change the configuration meanwhile.
    drop(lock);
    connected_sockets::mark(&checked.policy, connected);
    tell(output, &entry, &outcome, &returning);
    for trouble in policy::troubles_of_protection(&checked.policy) {
        warn(&trouble);
    }
    Ok(())
}

/// Prints what is in force now, what came back, and which files say otherwise.
fn tell(output: &Output, entry: &Entry, outcome: &Outcome, returning: &[String]) {
    let written = configuration::read_applied().map(|written| written.sources);
    let written = written.unwrap_or_default();
    let differs = |name: &String| {
        let text = |files: &[Source]| {
            let file = files.iter().find(|file| file.name == *name);
            file.map(|file| file.text.clone())
        };
        text(&written) != text(&entry.sources)
    };
    let names = written.iter().chain(&entry.sources);
    let mut names: Vec<String> = names.map(|file| file.name.clone()).collect();
    names.sort();
    names.dedup();
    names.retain(differs);
    // JSON of `usher policy revert`: [`Outcome`], and
    //   policy_of: The generation of the policy that is in force again.
    //   readmitted: List of texts: the hosts, host keys and users that came back.
    //   differs: List of texts: the files that differ from it.
    let mut view = json!(outcome);
    view["policy_of"] = json!(entry.generation);
    view["readmitted"] = json!(returning);
    view["differs"] = json!(names);
    output.print(&view, || {
        let mut text = format!("the policy of generation {}\n", entry.generation);
        text += &configuration::describe(outcome);
        for back in returning {
            text += &format!("readmitted: {back}\n");
        }
        for name in &names {
            text += &format!("differs from the configuration in force: {name}\n");
        }
        if !names.is_empty() {
            text += "the files have not changed, and the next `usher policy apply` puts them in force\n";
        }
        text
    });
}
