//! Putting a configuration in force: checked whole, stored atomically, taken by every daemon that
//! runs, or by none.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use usher_local::applied::{Applied, Checked, ConfigurationError};
use usher_local::control::{Answer, ControlError, Request, SessionView, ask};
use usher_local::paths;
use usher_policy::Source;

use crate::failure::{At, Failure};

/// Daemons that read the configuration, in the order in which they take it: the verifier before
/// the keeper, which ends what is no longer permitted, so that nothing is opened afterwards that
/// the verifier has checked against the former one.
const ROLES: [&str; 4] = ["verifier", "keeper", "signer", "proxy"];

/// What came of it.
#[derive(Debug, serde::Serialize)]
pub struct Outcome {
    /// Number of the configuration now in force.
    pub generation: u64,
    /// Daemons that have taken it.
    pub daemons: Vec<String>,
    /// Sessions that ended by it.
    pub ended: Vec<SessionView>,
}

/// Held while the configuration is changed: two administrators at once take turns.
pub struct Lock(#[allow(dead_code, reason = "held, not read")] File);

/// Takes the lock, waiting for another administrator.
///
/// # Errors
/// When the state folder is missing (run `usher init`) or not writable.
pub fn lock() -> Result<Lock, Failure> {
    let path = Path::new(paths::STATE_DIRECTORY).join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::Host("this host is not prepared for Usher; run `usher init`".into())
            }
            _ => Failure::File {
                path: path.clone(),
                error,
            },
        })?;
    file.lock().at(path)?;
    Ok(Lock(file))
}

/// Reads what is written below /etc/usher.
///
/// # Errors
/// When a file cannot be read.
pub fn collect() -> Result<Applied, Failure> {
    Ok(Applied::collect(
        Path::new(paths::POLICY_DIRECTORY),
        Path::new(paths::USERS_DIRECTORY),
        Path::new(paths::REVOKED_KEYS),
    )?)
}

/// The configuration in force, or an empty one.
///
/// # Errors
/// When it cannot be read.
pub fn in_force() -> Result<Applied, Failure> {
    Ok(Applied::load(Path::new(paths::APPLIED))?.unwrap_or_default())
}

/// Checks a configuration; a policy's errors come with the texts they point into.
///
/// # Errors
/// What is wrong with it.
pub fn check(applied: &Applied) -> Result<Checked, Failure> {
    applied.check().map_err(|error| match error {
        ConfigurationError::Policy(errors) => Failure::Policy {
            errors,
            sources: applied
                .sources
                .iter()
                .map(|file| Source {
                    name: file.name.clone(),
                    text: file.text.clone(),
                })
                .collect(),
        },
        other => other.into(),
    })
}

/// Puts a configuration in force.
///
/// # Errors
/// When it does not pass its check, cannot be stored, or a daemon refuses it: the former one is
/// then in force. [`Failure::KeeperUnreached`] when it is in force and what it forbids could not
/// be ended.
pub fn put_in_force(_lock: &Lock, mut fresh: Applied) -> Result<Outcome, Failure> {
    check(&fresh)?;
    let former = in_force()?;
    fresh.generation = former.generation + 1;
    let (path, previous) = (
        Path::new(paths::APPLIED),
        Path::new(paths::APPLIED_PREVIOUS),
    );
    fresh.store(path, previous)?;
    let mut outcome = Outcome {
        generation: fresh.generation,
        daemons: Vec::new(),
        ended: Vec::new(),
    };
    let mut unreached = None;
    for role in ROLES {
        match ask(role, &Request::Reload) {
            Ok(Answer::Reloaded { ended, .. }) => {
                outcome.daemons.push(role.into());
                outcome.ended.extend(ended);
            }
            Ok(_) => {}
            // What an earlier keeper admitted lives on without it, and nothing can end it.
            Err(error @ ControlError::NotRunning { .. })
                if role == "keeper" && Path::new(paths::PIN_DIRECTORY).exists() =>
            {
                unreached = Some(error);
            }
            // It will read the file when it starts.
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => return Err(roll_back(&former, error)),
        }
    }
    match unreached {
        Some(error) => Err(Failure::KeeperUnreached(outcome.generation, error)),
        None => Ok(outcome),
    }
}

fn roll_back(former: &Applied, cause: ControlError) -> Failure {
    let (path, previous) = (
        Path::new(paths::APPLIED),
        Path::new(paths::APPLIED_PREVIOUS),
    );
    if let Err(error) = former.store(path, previous) {
        return Failure::NotRolledBack(cause, error.to_string());
    }
    let failed: BTreeMap<&str, String> = ROLES
        .iter()
        .filter_map(|role| match ask(role, &Request::Reload) {
            Ok(_) | Err(ControlError::NotRunning { .. }) => None,
            Err(error) => Some((*role, error.to_string())),
        })
        .collect();
    if failed.is_empty() {
        Failure::RolledBack(cause)
    } else {
        Failure::NotRolledBack(cause, failed.into_values().collect::<Vec<_>>().join("; "))
    }
}

/// What to tell of an outcome.
pub fn describe(outcome: &Outcome) -> String {
    let mut text = match outcome.daemons.as_slice() {
        [] => format!(
            "configuration {} stored; no daemon runs on this host, they read it when they start\n",
            outcome.generation
        ),
        daemons => {
            format!(
                "configuration {} in force ({})\n",
                outcome.generation,
                daemons.join(", ")
            )
        }
    };
    for session in &outcome.ended {
        text += &format!(
            "ended: {} from {} at {}, {} connection(s)\n",
            session.user,
            session.host,
            session.service,
            session.connections.len()
        );
    }
    text
}
