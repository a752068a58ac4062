//! What this kernel can do. `usherd probe` tries it: the command line loads no programs.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use usher_daemon::probe::Probe;

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no usherd beside this program.
    #[error("usherd is neither beside this program nor in ../sbin, so nothing could be tried")]
    NotInstalled,
    /// It cannot be started.
    #[error("cannot start usherd: {0}")]
    Start(#[from] io::Error),
    /// It did not come to its end.
    #[error("`usherd probe`: {0}")]
    Failed(std::process::ExitStatus),
    /// It is of another version.
    #[error("cannot read what `usherd probe` found: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// Tries what has one of these names, or everything where none is given.
///
/// # Errors
/// [`ProbeError`].
pub fn probe(names: &[&str]) -> Result<Vec<Probe>, ProbeError> {
    let output = Command::new(usherd()?)
        .arg("probe")
        .args(names)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(ProbeError::Failed(output.status));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Why this kernel lacks what has this name; none: it has it.
pub fn lacks(name: &str) -> Option<String> {
    match probe(&[name]) {
        Ok(found) => found
            .into_iter()
            .find(|found| !found.works)
            .map(|found| found.detail),
        Err(error) => Some(error.to_string()),
    }
}

/// Where it is installed: `bin/usher` beside `sbin/usherd`, or one folder for both.
fn usherd() -> Result<PathBuf, ProbeError> {
    let own = std::env::current_exe()?;
    [
        own.with_file_name("usherd"),
        own.with_file_name("../sbin/usherd"),
    ]
    .into_iter()
    .find(|path| path.exists())
    .ok_or(ProbeError::NotInstalled)
}
