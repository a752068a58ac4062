//! Puts a configuration in force: checks it as a whole, asks every running daemon to check it, stores it
//! atomically, and has every running daemon take it, or none.
//!
//! A daemon that ends between its check and the change reads the stored configuration when it starts. The
//! former configuration is put back if the ended daemon is needed: the protector where something is
//! protected, because traffic would leave in the clear until it runs again, and the labeller where the policy
//! has `mac` blocks, because their modules would decide by the former settings.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;

use usher_base::{HostName, UserName};
use usher_daemon::control::{ControlError, ask_each};
use usher_daemon::lock_file;
use usher_daemon::role::HasRole;
use usher_local::applied::{Applied, UserEntry};
use usher_local::checked::Checked;
use usher_local::error::ConfigurationError;
use usher_local::paths;
use usher_local::requests::{EndingView, Prepare, Reload};
use usher_local::roles::{self, ROLES};
use usher_policy::mac::UBNS;
use usher_policy::{Policy, PolicyWarning};
use usher_proto::HostPublicKey;

use super::{groups, kept};
use crate::ending;
use crate::failure::{At, Failure};
use crate::output::tell;

/// The daemon that ends what is no longer permitted.
pub const KEEPER: &str = roles::Keeper::ROLE.name;

/// A host without a host key, or without the folders.
pub const NOT_PREPARED: &str = "this host is not prepared for Usher; run `usher init`";

/// The policy has no `host` block for this host.
pub const NO_HOST: &str = "no `host` block of the policy has this host's key \
                           (/etc/usher/host_key.pub): add it with `usher host add`";

/// The daemon without which nothing is protected.
const PROTECTOR: &str = roles::Protector::ROLE.name;

/// The daemon without which settings of modules do not come into force.
const LABELLER: &str = roles::Labeller::ROLE.name;

/// The result of putting a configuration in force.
#[derive(Debug, Default, serde::Serialize)]
pub struct Outcome {
    /// Generation of the configuration now in force.
    pub generation: u64,
    /// Daemons that have taken it.
    pub daemons: Vec<String>,
    /// Sessions that it ended, with the connections that were cut.
    pub ended: Vec<EndingView>,
    /// Sessions and connections that it forbids and has not ended yet, for people.
    pub unfinished: Vec<String>,
}

/// The reaction when a daemon refuses a configuration or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRefusal {
    /// All or nothing: ask all daemons first whether they take it, and put the former configuration in
    /// force again if one fails nevertheless.
    RollBack,
    /// Continue with the other daemons, for changes that take rights away.
    GoOn,
}

/// Held while the configuration changes, so that two administrators take turns.
pub struct Lock(#[allow(dead_code, reason = "held, not read")] File);

/// Takes the lock, waiting for another administrator.
///
/// # Errors
/// When the state folder is missing (run `usher init`) or not writable.
pub fn lock() -> Result<Lock, Failure> {
    let path = Path::new(paths::STATE_DIRECTORY).join("lock");
    let file = lock_file::open_lock_file(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::refused(NOT_PREPARED),
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
    let mut applied = read_applied()?;
    groups::look_up(&mut applied);
    Ok(applied)
}

/// Reads /etc/usher without asking the name service, for callers that need no groups.
pub fn read_applied() -> Result<Applied, Failure> {
    let folder = Path::new(paths::CONFIGURATION_DIRECTORY);
    Ok(Applied::collect(folder, None)?)
}

/// Reads /etc/usher/users only.
pub fn collect_users() -> Result<BTreeMap<UserName, UserEntry>, Failure> {
    Ok(Applied::users_in(Path::new(paths::USERS_DIRECTORY), None)?)
}

/// Whether `usher init` has been run on this host. True if that cannot be found out.
pub fn is_prepared() -> bool {
    !matches!(Path::new(paths::HOST_PUBLIC_KEY).try_exists(), Ok(false))
}

/// This host's public key.
///
/// # Errors
/// When its file cannot be read, or has no valid key.
pub fn host_key() -> Result<HostPublicKey, Failure> {
    let path = Path::new(paths::HOST_PUBLIC_KEY);
    let text = std::fs::read_to_string(path).at(path)?;
    HostPublicKey::from_openssh(text.trim()).map_err(|error| Failure::of_file(path, error))
}

/// The configuration in force, or an empty one.
pub fn in_force() -> Result<Applied, Failure> {
    Ok(Applied::load(Path::new(paths::APPLIED))?.unwrap_or_default())
}

/// The configuration that a new one replaces.
#[derive(Debug, Default)]
pub struct Former {
    /// The configuration in force. Where its file is damaged, one that permits nothing, with the highest
    /// number that is still known.
    pub applied: Applied,
    /// The damage to the file of the configuration in force.
    pub damage: Option<ConfigurationError>,
}

/// The configuration that the next one replaces. A damaged file is no error, because the next configuration
/// replaces it.
pub fn former() -> Result<Former, Failure> {
    match Applied::load(Path::new(paths::APPLIED)) {
        Ok(applied) => Ok(Former {
            applied: applied.unwrap_or_default(),
            damage: None,
        }),
        Err(damage @ ConfigurationError::Damaged(..)) => {
            // The previous configuration was kept when the damaged one was stored.
            let before = Applied::load(Path::new(paths::APPLIED_PREVIOUS));
            let before = before.ok().flatten().unwrap_or_default().generation;
            let generation = kept::newest().max(before + 1);
            Ok(Former {
                applied: Applied {
                    generation,
                    ..Applied::default()
                },
                damage: Some(damage),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks a configuration; a policy's errors come with the texts they point into.
pub fn check_applied(applied: &Applied) -> Result<Checked, Failure> {
    applied.check().map_err(|error| match error {
        ConfigurationError::Policy(errors) => Failure::Policy {
            errors,
            sources: applied.sources.clone(),
        },
        other => other.into(),
    })
}

/// Looks up the names in the policy's `network` statements. Returns a warning for each name without an
/// address, so that a host without a resolver can check a policy.
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
/// The former configuration stays in force if the new one does not pass its check, has something that this
/// version cannot enforce, or cannot be stored. Unless [`OnRefusal::GoOn`], it also stays if the policy
/// protects something and no protector runs, or has a `mac` block and no labeller runs. If a daemon refuses
/// the new one: [`Failure::NotTaken`] with [`OnRefusal::GoOn`]; otherwise [`Failure::NotPrepared`] before a
/// change, or [`Failure::RolledBack`], or [`Failure::NotRolledBack`] if the former configuration could not be
/// put back or its file was damaged. [`Failure::KeeperUnreached`] if the new one is in force and sessions
/// that it forbids could not be ended.
pub fn put_in_force(
    _lock: &Lock,
    mut fresh: Applied,
    on_refusal: OnRefusal,
) -> Result<Outcome, Failure> {
    let checked = check_applied(&fresh)?.enforceable()?;
    let Former {
        applied: mut former,
        damage,
    } = former()?;
    fresh.generation = former.generation + 1;
    fresh.continue_hosts(&checked.policy.hosts, &former);
    let needed = match on_refusal {
        OnRefusal::RollBack => needed(&checked.policy),
        OnRefusal::GoOn => Vec::new(),
    };
    if on_refusal == OnRefusal::RollBack {
        prepare(&fresh, &needed)?;
    }
    store(&fresh).map_err(|error| match on_refusal {
        OnRefusal::RollBack => Failure::Unstored(error),
        OnRefusal::GoOn => error.into(),
    })?;
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
            // The daemon reads the stored configuration when it starts.
            Err(ControlError::NotRunning { .. }) if !needed.contains(&role.name) => {}
            Err(error) if on_refusal == OnRefusal::GoOn => not_taken.push(error.to_string()),
            Err(error) if damage.is_some() => {
                let reason = format!("{} was damaged", paths::APPLIED);
                return Err(Failure::NotRolledBack(error, reason, outcome.ended));
            }
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

/// The reason that an apply of this configuration would be refused now; none if all daemons that run would
/// take it, and all daemons that it needs run.
pub fn refusal(fresh: &Applied, policy: &Policy) -> Option<Failure> {
    prepare(fresh, &needed(policy)).err()
}

/// Asks each running daemon whether it would take a configuration. Nothing changes.
///
/// # Errors
/// [`Failure::NotPrepared`] when a daemon would not take it, or does not answer; [`Failure::Control`] when a
/// daemon of `needed` does not run.
fn prepare(fresh: &Applied, needed: &[&str]) -> Result<(), Failure> {
    let request = Prepare::new(fresh).map_err(Failure::refused)?;
    for (role, answer) in ask_each(ROLES, &request) {
        match answer {
            Ok(_) => {}
            Err(error @ ControlError::NotRunning { .. }) if needed.contains(&role.name) => {
                return Err(error.into());
            }
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => return Err(Failure::NotPrepared(error)),
        }
    }
    Ok(())
}

/// The daemons without which a policy would not be enforced.
fn needed(policy: &Policy) -> Vec<&'static str> {
    let protector = policy.has_protection().then_some(PROTECTOR);
    let has_settings = !policy.mac.is_empty() || services_are_settings();
    let labeller = has_settings.then_some(LABELLER);
    protector.into_iter().chain(labeller).collect()
}

/// Whether the module `ubns` is in force, whose settings are the services. The list of modules stays while no
/// labeller runs. True if the list cannot be read.
pub fn services_are_settings() -> bool {
    match std::fs::read_to_string(paths::SHOWN_MODULES) {
        Ok(names) => names.lines().any(|name| name == UBNS),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn store(applied: &Applied) -> Result<(), ConfigurationError> {
    let previous = Path::new(paths::APPLIED_PREVIOUS);
    applied.store(Path::new(paths::APPLIED), previous)
}

/// Whether a keeper has run on this host since it was booted. Connections that it
/// admitted live on without it, and cannot be ended until a keeper runs again.
pub fn keeper_has_run() -> bool {
    Path::new(paths::PIN_DIRECTORY).exists()
}

/// Goes back to the former configuration, as a generation of its own. Sessions that the refused configuration
/// has ended stay ended.
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

/// The text for an outcome.
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
    text += &ending::ending_lines("ended", &outcome.ended);
    for unfinished in &outcome.unfinished {
        text += &format!("NOT ended: {unfinished}\n");
    }
    text
}
