//! The policies that were in force, as files.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use usher_daemon::clock::unix_time;
use usher_daemon::files::write_atomically;
use usher_local::applied::Applied;
use usher_local::paths;
use usher_local::reading::read_bounded;
use usher_policy::Source;

use crate::failure::{At, Failure};
use crate::output::warn;

/// The number of policies that are kept. Older ones are removed.
const KEPT: usize = 100;

/// A policy that was put in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// The generation of the configuration by which it came in force.
    pub generation: u64,
    /// When, in seconds since 1970; none: before the history began.
    pub applied: Option<u64>,
    /// The account that did it; none: before the history began.
    pub by: Option<String>,
    /// Its files.
    pub sources: Vec<Source>,
}

/// Keeps the policy of a configuration that has just come in force instead of `former`, unless the policy is
/// the same. A history that cannot be written is a warning: the policy is in force all the same.
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
        write_entry(&begun)?;
        entries.push(begun);
    }
    if entries.last().is_none_or(|last| last.sources != sources) {
        let fresh = Entry {
            generation,
            applied: Some(unix_time()),
            by: Some(caller()),
            sources: sources.to_vec(),
        };
        write_entry(&fresh)?;
        entries.push(fresh);
    }
    let surplus = entries.len().saturating_sub(KEPT);
    for old in &entries[..surplus] {
        let path = file_of(old.generation);
        std::fs::remove_file(&path).at(&path)?;
    }
    Ok(())
}

fn write_entry(entry: &Entry) -> Result<(), Failure> {
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
pub fn entries() -> Result<Vec<Entry>, Failure> {
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

pub fn find(entries: Vec<Entry>, generation: u64) -> Result<Entry, Failure> {
    let mut entries = entries.into_iter();
    let found = entries.find(|entry| entry.generation == generation);
    found.ok_or_else(|| {
        Failure::Refused(format!(
            "the history has no policy of generation {generation}; `usher policy history` lists them"
        ))
    })
}
