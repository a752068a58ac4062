//! The abilities of this kernel. `usherd probe` tries them: the command line loads no programs.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use usher_daemon::probe::Probe;

use crate::failure::Failure;

/// Tests the features of these names, or all features if no name is given.
pub fn probe(names: &[&str]) -> Result<Vec<Probe>, Failure> {
    let output = Command::new(usherd()?)
        .arg("probe")
        .args(names)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(not_started)?;
    if !output.status.success() {
        return Err(Failure::Refused(format!(
            "`usherd probe`: {}",
            output.status
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        Failure::Refused(format!("cannot read what `usherd probe` found: {error}"))
    })
}

/// The reason why this kernel lacks the ability of this name; none if it has it.
pub fn lacks(name: &str) -> Option<String> {
    match probe(&[name]) {
        Ok(found) => found
            .into_iter()
            .find(|found| !found.works)
            .map(|found| found.detail),
        Err(error) => Some(error.to_string()),
    }
}

/// The path of usherd: `bin/usher` stands beside `sbin/usherd`, or both are in one folder.
fn usherd() -> Result<PathBuf, Failure> {
    let missing = "usherd is neither beside this program nor in ../sbin, so nothing could be tried";
    let own = std::env::current_exe().map_err(not_started)?;
    [
        own.with_file_name("usherd"),
        own.with_file_name("../sbin/usherd"),
    ]
    .into_iter()
    .find(|path| path.exists())
    .ok_or_else(|| Failure::refused(missing))
}

fn not_started(error: io::Error) -> Failure {
    Failure::Refused(format!("cannot start usherd: {error}"))
}
