//! Warnings of `policy check` and `policy apply` about programs of `application` blocks: those that this host
//! does not have, and scripts, if the host does not tell the scripts of one interpreter apart.

use std::collections::BTreeSet;

use usher_daemon::control::ask_daemon;
use usher_local::{requests, roles};
use usher_policy::protection::{ProgramName, SYSTEM_FOLDERS};
use usher_policy::{Policy, joined};

use super::listed_programs::interpreter;
use super::warning::Warning;

/// The list of running LSMs. It has `bpf` where LSM programs run.
const RUNNING: &str = "/sys/kernel/security/lsm";

/// Warnings about scripts that blocks name without effect, because this host does not tell scripts of one
/// interpreter apart.
pub fn that_count_for_nothing(policy: &Policy) -> Vec<Warning> {
    let blocks = policy.applications.iter();
    let scripts = blocks.flat_map(|block| {
        let files = block.programs.iter().flat_map(files);
        files.filter_map(|path| Some((&block.origin.place, interpreter(&path)?, path)))
    });
    let mut scripts = scripts.peekable();
    // Asked only where there is a script.
    let Some(reason) = scripts.peek().and_then(|_| reason()) else {
        return Vec::new();
    };
    let warnings = scripts.map(|(place, interpreter, path)| {
        let text = format!(
            "{place}: {path} is a script of `{interpreter}`, and no LSM programs tell scripts of one \
             interpreter apart here ({reason}): this block does not govern it; give the script an \
             interpreter of its own (a copy, named in its first line), and name that"
        );
        Warning::from(text)
    });
    warnings.collect()
}

/// Programs that this host does not have, whose blocks govern nothing on it.
pub fn that_are_missing(policy: &Policy) -> Vec<Warning> {
    let blocks = policy.applications.iter();
    let missing = blocks.flat_map(|block| {
        let programs = block.programs.iter();
        programs.filter_map(|program| Some((&block.origin.place, why_missing(program)?)))
    });
    let warnings = missing.map(|(place, why)| {
        let text = format!(
            "{place}: {why}, so the block does not govern it here; correct the name, or install the \
             program and apply the policy again"
        );
        Warning::from(text)
    });
    warnings.collect()
}

fn why_missing(program: &ProgramName) -> Option<String> {
    let is_there = files(program)
        .iter()
        .any(|path| std::fs::metadata(path).is_ok_and(|found| found.is_file()));
    (!is_there).then(|| match program {
        ProgramName::Path(path) => format!("this host has no file {path}"),
        ProgramName::Name(name) => format!(
            "this host has no program {name} in {}",
            joined(SYSTEM_FOLDERS, ", ")
        ),
    })
}

/// The files that a block's program may be.
pub(super) fn files(program: &ProgramName) -> Vec<String> {
    match program {
        ProgramName::Path(path) => vec![path.clone()],
        ProgramName::Name(name) => {
            let paths = SYSTEM_FOLDERS
                .iter()
                .map(|folder| format!("{folder}/{name}"));
            // One folder may be a link to another.
            let mut seen = BTreeSet::new();
            let is_new = |path: &String| {
                let file = std::fs::canonicalize(path).ok();
                file.is_some_and(|file| seen.insert(file))
            };
            paths.filter(is_new).collect()
        }
    }
}

/// The reason that scripts are not told apart: the protector's, or the kernel's where none runs.
fn reason() -> Option<String> {
    if let Ok(view) = ask_daemon(roles::Protector, &requests::Protection {})
        && view.unseen_scripts.is_some()
    {
        return view.unseen_scripts;
    }
    match std::fs::read_to_string(RUNNING) {
        Ok(running) if running.trim().split(',').any(|lsm| lsm == "bpf") => None,
        Ok(_) => Some(format!("{RUNNING} does not list bpf")),
        Err(error) => Some(format!("{RUNNING} cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named_with_the_place_looked_in() {
        let (name, path) = (
            |name: &str| ProgramName::Name(name.to_owned()),
            |path: &str| ProgramName::Path(path.to_owned()),
        );
        for there in [name("env"), path("/usr/bin/env")] {
            assert_eq!(why_missing(&there), None, "{there:?}");
        }
        let why = why_missing(&name("curll")).unwrap();
        assert!(why.contains("curll in /usr/"), "{why}");
        let why = why_missing(&path("/usr/bin")).unwrap();
        assert!(why.ends_with("no file /usr/bin"), "{why}");
    }
}
