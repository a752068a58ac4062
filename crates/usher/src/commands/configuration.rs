//! Puts a configuration in force: it is checked whole, stored atomically, and taken by every running
//! daemon or by none.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;

use usher_base::{HostName, UserName};
use usher_daemon::control::{ControlError, Status, ask, ask_each};
use usher_daemon::lock_file;
use usher_daemon::role::HasRole;
use usher_local::applied::{Applied, UserEntry};
use usher_local::checked::Checked;
use usher_local::error::ConfigurationError;
use usher_local::paths;
use usher_local::requests::{EndingView, Reload};
use usher_local::roles::{self, ROLES};
use usher_policy::{Policy, PolicyWarning};

use super::{ending, groups};
use crate::failure::{At, Failure};
use crate::output::tell;

/// The daemon that ends what is no longer permitted.
pub const KEEPER: &str = roles::Keeper::ROLE.name;

/// The result of putting a configuration in force.
#[derive(Debug, Default, serde::Serialize)]
pub struct Outcome {
    /// Generation of the configuration now in force.
    pub generation: u64,
    /// Daemons that have taken it.
    pub daemons: Vec<String>,
    /// Sessions that it ended, with the connections that were cut.
    pub ended: Vec<EndingView>,
    /// What it forbids and has not ended yet, for people.
    pub unfinished: Vec<String>,
}

/// The reaction when a daemon refuses a configuration or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRefusal {
    /// All or nothing: put the former configuration in force again.
    RollBack,
    /// Continue with the other daemons, for changes that take rights away.
    GoOn,
}

/// Held while the configuration changes: two administrators take turns.
pub struct Lock(#[allow(dead_code, reason = "held, not read")] File);

/// Takes the lock, waiting for another administrator.
///
/// # Errors
/// When the state folder is missing (run `usher init`) or not writable.
pub fn lock() -> Result<Lock, Failure> {
    let path = Path::new(paths::STATE_DIRECTORY).join("lock");
    let file = lock_file::open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::refused("this host is not prepared for Usher; run `usher init`")
        }
        _ => Failure::File {
            path: path.clone(),
            error,
        },
    })?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        tell("usher: waiting for another `usher` that changes the configuration\n");
    }
    file.lock().at(path)?;
    Ok(Lock(file))
}

/// Reads /etc/usher, and looks up the groups that the policy names.
pub fn collect() -> Result<Applied, Failure> {
    let mut applied = read()?;
    groups::look_up(&mut applied);
    Ok(applied)
}

/// Reads /etc/usher without asking the name service, for callers that need no groups.
pub fn read() -> Result<Applied, Failure> {
    let folder = Path::new(paths::CONFIGURATION_DIRECTORY);
    Ok(Applied::collect(folder, None)?)
}

/// Reads /etc/usher/users only.
pub fn collect_users() -> Result<BTreeMap<UserName, UserEntry>, Failure> {
    Ok(Applied::users_in(Path::new(paths::USERS_DIRECTORY), None)?)
}

/// The configuration in force, or an empty one.
pub fn in_force() -> Result<Applied, Failure> {
    Ok(Applied::load(Path::new(paths::APPLIED))?.unwrap_or_default())
}

/// Checks a configuration; a policy's errors come with the texts they point into.
pub fn check(applied: &Applied) -> Result<Checked, Failure> {
    applied.check().map_err(|error| match error {
        ConfigurationError::Policy(errors) => Failure::Policy {
            errors,
            sources: applied.sources.clone(),
        },
        other => other.into(),
    })
}

/// Has the names looked up that the policy's `network` statements have. Returns a warning for each
/// without an address: a host without a resolver can check a policy.
pub fn look_up_names(policy: &mut Policy) -> Vec<PolicyWarning> {
    let look_up = |name: &HostName| {
        let found = (name.as_ref(), 0).to_socket_addrs()?;
        Ok::<_, io::Error>(found.map(|address| address.ip()).collect())
    };
    policy.look_up_names(look_up)
}

/// Puts a configuration in force.
///
/// # Errors
/// When it does not pass its check, has what this version cannot enforce, or cannot be stored: the
/// former one stays in force, as it does when the policy has `application` blocks and no protector runs,
/// unless [`OnRefusal::GoOn`]. When a daemon refuses it: see [`OnRefusal`]; with
/// [`OnRefusal::GoOn`] that is [`Failure::NotTaken`]. [`Failure::KeeperUnreached`] when it is in
/// force and what it forbids could not be ended.
pub fn put_in_force(
    _lock: &Lock,
    mut fresh: Applied,
    on_refusal: OnRefusal,
) -> Result<Outcome, Failure> {
    let checked = check(&fresh)?.enforceable()?;
    if on_refusal == OnRefusal::RollBack && !checked.policy.applications.is_empty() {
        // Until it ran, traffic that the policy protects would leave in the clear.
        ask(roles::Protector, &Status {})?;
    }
    let mut former = in_force()?;
    fresh.generation = former.generation + 1;
    store(&fresh)?;
    let mut outcome = Outcome {
        generation: fresh.generation,
        ..Outcome::default()
    };
    let (mut unreached, mut not_taken) = (None, Vec::new());
    for (role, answer) in ask_each(ROLES, &Reload {}) {
        match answer {
            Ok(view) => {
                outcome.daemons.push(role.name.into());
                outcome.ended.extend(view.ended);
                outcome.unfinished.extend(view.unfinished);
            }
            Err(error @ ControlError::NotRunning { .. })
                if role.name == KEEPER && keeper_has_run() =>
            {
                unreached = Some(error);
            }
            // It will read the file when it starts.
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) if on_refusal == OnRefusal::GoOn => not_taken.push(error.to_string()),
            Err(error) => {
                former.generation = fresh.generation + 1;
                return Err(roll_back(&former, error, outcome.ended));
            }
        }
    }
    if !not_taken.is_empty() {
        not_taken.extend(unreached.map(|error| error.to_string()));
        let (generation, reasons) = (outcome.generation, not_taken.join("; "));
        return Err(Failure::NotTaken(generation, reasons, outcome.ended));
    }
    match unreached {
        Some(error) => Err(Failure::KeeperUnreached(outcome.generation, error)),
        None => Ok(outcome),
    }
}

fn store(applied: &Applied) -> Result<(), ConfigurationError> {
    let previous = Path::new(paths::APPLIED_PREVIOUS);
    applied.store(Path::new(paths::APPLIED), previous)
}

/// Whether a keeper has run on this host since it was booted. What it admitted lives on without it,
/// and nothing can end it until a keeper runs again.
pub fn keeper_has_run() -> bool {
    Path::new(paths::PIN_DIRECTORY).exists()
}

/// Goes back to the former configuration, under a number of its own. What the refused one has ended
/// stays ended.
fn roll_back(former: &Applied, cause: ControlError, mut ended: Vec<EndingView>) -> Failure {
    if let Err(error) = store(former) {
        return Failure::NotRolledBack(cause, error.to_string(), ended);
    }
    let mut failed: Vec<String> = Vec::new();
    for (_, answer) in ask_each(ROLES, &Reload {}) {
        match answer {
            // Sessions that only the refused configuration permitted.
            Ok(view) => ended.extend(view.ended),
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() {
        Failure::RolledBack(cause, ended)
    } else {
        Failure::NotRolledBack(cause, failed.join("; "), ended)
    }
}

/// What to tell of an outcome.
pub fn describe(outcome: &Outcome) -> String {
    let mut text = match outcome.daemons.as_slice() {
        [] => format!(
            "configuration {} stored; no daemon runs on this host, they read it when they start\n",
            outcome.generation
        ),
        daemons => format!(
            "configuration {} in force ({})\n",
            outcome.generation,
            daemons.join(", ")
        ),
    };
    text += &ending::lines("ended", &outcome.ended);
    for unfinished in &outcome.unfinished {
        text += &format!("NOT ended: {unfinished}\n");
    }
    text
}
