//! Warnings of `policy check` and `policy apply` about `application` blocks that name scripts, on a host
//! that does not tell the scripts of one interpreter apart.

use std::collections::BTreeSet;

use usher_daemon::control::ask;
use usher_local::{requests, roles};
use usher_policy::Policy;
use usher_policy::protection::{ProgramName, SYSTEM_FOLDERS};

use super::listed_programs::interpreter;
use super::warning::Warning;

/// The LSMs that run, and with them `bpf` where LSM programs do.
const RUNNING: &str = "/sys/kernel/security/lsm";

/// The scripts that the policy names and that are governed by no block.
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
    if let Ok(view) = ask(roles::Protector, &requests::Protection {})
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
