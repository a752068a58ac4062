//! `usher policy history` and `revert`: the policies that were in force, and a way back to one. Users, their
//! keys and revocations are not part of it, so a user who is disabled stays so. What the policy has lost since
//! comes back only if that is said: hosts, their keys, and users, of whom one may have been disabled and removed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use usher_daemon::clock::unix_time;
use usher_daemon::files::write_atomically;
use usher_local::applied::Applied;
use usher_local::paths;
use usher_local::reading::read_bounded;
use usher_policy::Source;

use super::configuration::{self, OnRefusal, Outcome};
use super::log::utc;
use super::{groups, policy, readmission};
use crate::failure::{At, Failure};
use crate::output::{Output, first, row, table, warn};

/// The number of policies that are kept. Older ones are removed.
const KEPT: usize = 100;

/// Limit of what comes back that a refusal names.
const MOST_SHOWN: usize = 32;

/// The option of `usher policy revert` that permits hosts, host keys and users to come back.
const READMIT: &str = "--readmit";

/// A policy that was put in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    /// Of the configuration by which it came in force.
    generation: u64,
    /// When, in seconds since 1970; none: before the history began.
    applied: Option<u64>,
    /// The account that did it; none: before the history began.
    by: Option<String>,
    /// Its files.
    sources: Vec<Source>,
}

/// Keeps the policy of a configuration that has just come in force instead of `former`, if it is another
/// one. A history that cannot be written is a warning: the policy is in force all the same.
pub fn keep(former: &Applied, sources: &[Source], generation: u64) {
    if let Err(failure) = append(former, sources, generation) {
        warn(&format!(
            "the policy is in force, and not in the history: {failure}"
        ));
    }
}

fn append(former: &Applied, sources: &[Source], generation: u64) -> Result<(), Failure> {
    let mut entries = entries()?;
    let folder = Path::new(paths::HISTORY_DIRECTORY);
    std::fs::create_dir_all(folder).at(folder)?;
    if entries.is_empty() && !former.sources.is_empty() {
        let begun = Entry {
            generation: former.generation,
            applied: None,
            by: None,
            sources: former.sources.clone(),
        };
        write(&begun)?;
        entries.push(begun);
    }
    if entries.last().is_none_or(|last| last.sources != sources) {
        let fresh = Entry {
            generation,
            applied: Some(unix_time()),
            by: Some(caller()),
            sources: sources.to_vec(),
        };
        write(&fresh)?;
        entries.push(fresh);
    }
    let surplus = entries.len().saturating_sub(KEPT);
    for old in &entries[..surplus] {
        let path = file_of(old.generation);
        std::fs::remove_file(&path).at(&path)?;
    }
    Ok(())
}

fn write(entry: &Entry) -> Result<(), Failure> {
    let path = file_of(entry.generation);
    let text = serde_json::to_vec_pretty(entry);
    let text = text.map_err(|error| Failure::of_file(&path, error))?;
    write_atomically(&path, &text, 0o644).at(path)
}

fn file_of(generation: u64) -> PathBuf {
    Path::new(paths::HISTORY_DIRECTORY).join(format!("{generation}.json"))
}

/// The account of the caller: the one that logged in, also behind sudo(8).
fn caller() -> String {
    let logged_in = std::fs::read_to_string("/proc/self/loginuid").ok();
    let logged_in = logged_in.and_then(|text| text.trim().parse().ok());
    let uid = match logged_in {
        // No login: a service, or a kernel without audit.
        None | Some(u32::MAX) => rustix::process::getuid().as_raw(),
        Some(uid) => uid,
    };
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid))
        .ok()
        .flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The history, oldest first.
fn entries() -> Result<Vec<Entry>, Failure> {
    let folder = Path::new(paths::HISTORY_DIRECTORY);
    let files = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.at(folder)?,
    };
    let mut entries: Vec<Entry> = Vec::new();
    for file in files {
        let path = file.at(folder)?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let text = read_bounded(&path)?;
            let entry = serde_json::from_str(&text);
            entries.push(entry.map_err(|error| {
                Failure::of_file(&path, format_args!("damaged ({error}); remove it"))
            })?);
        }
    }
    entries.sort_by_key(|entry| entry.generation);
    Ok(entries)
}

/// The highest number in the history, as far as it can be read; 0 without one.
pub fn newest() -> u64 {
    let entries = entries().unwrap_or_default();
    entries.last().map_or(0, |entry| entry.generation)
}

/// Lists the policies that were in force, the newest first.
///
/// # Errors
/// When the history cannot be read.
pub fn list(output: &Output) -> Result<(), Failure> {
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
        match entries.is_empty() {
            true => "no history: `usher policy apply` begins it\n".to_owned(),
            false => table(["GENERATION", "APPLIED", "BY", "FILES", ""], rows),
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

fn find(entries: Vec<Entry>, generation: u64) -> Result<Entry, Failure> {
    let mut entries = entries.into_iter();
    let found = entries.find(|entry| entry.generation == generation);
    found.ok_or_else(|| {
        Failure::Refused(format!(
            "the history has no policy of generation {generation}; `usher policy history` lists them"
        ))
    })
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
    let outcome = configuration::put_in_force(&lock, fresh, OnRefusal::RollBack)?;
    keep(&former, &entry.sources, outcome.generation);
    tell(output, &entry, &outcome, &returning);
    for trouble in policy::troubles_of_protection(&checked.policy) {
        warn(&trouble);
    }
    Ok(())
}

/// Prints what is in force now, what came back, and which files say otherwise.
fn tell(output: &Output, entry: &Entry, outcome: &Outcome, returning: &[String]) {
    let written = configuration::read().map(|written| written.sources);
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
