//! `usher user disable` and `enable`. Disabling cuts first and stores afterwards, so that it works
//! despite a full disk, a faulty file, another administrator's lock, a daemon that hangs and a name
//! service that does not answer.

use std::path::Path;

use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::control::{ControlError, ask_each};
use usher_daemon::files::{remove_if_there, write_atomically};
use usher_daemon::role::Role;
use usher_local::applied::Applied;
use usher_local::requests::{Disable, Enable, EndingView};
use usher_local::roles::ROLES;

use super::configuration::{self, KEEPER, Lock, OnRefusal, Outcome};
use super::user::{known, put_users_in_force, user_folder};
use crate::failure::{At, Failure};
use crate::output::{Output, warn};

/// The daemons' answers before anything is stored.
#[derive(Default)]
struct Cut {
    daemons: Vec<String>,
    ended: Vec<EndingView>,
    unfinished: Vec<String>,
    /// The keeper's error, when it has not cut.
    failed: Option<ControlError>,
}

/// Refuses a user from now on. The rest of the configuration in force stays, whatever is written below
/// /etc/usher, so that faulty files do not prevent it.
///
/// # Errors
/// When the user is not known; nothing changes then. [`Failure::NotStored`],
/// [`Failure::Unfinished`], [`Failure::NotCut`], [`Failure::NotTaken`] and
/// [`Failure::KeeperUnreached`] when only a part is done.
pub fn disable(output: &Output, user: &UserName, reason: &str) -> Result<(), Failure> {
    let cut = cut(user);
    let mut outcome = match store(user, reason) {
        Ok(outcome) => outcome,
        Err(failure @ Failure::UnknownUser(_)) => {
            take_back(user, 0, ROLES)?;
            return Err(failure);
        }
        Err(Failure::NotTaken(generation, reasons, mut ended)) => {
            forget(user, generation, &cut.daemons);
            ended.splice(0..0, cut.ended);
            return Err(match cut.failed {
                Some(error) => Failure::NotCut {
                    user: user.clone(),
                    generation,
                    error,
                },
                None => Failure::NotTaken(generation, reasons, ended),
            });
        }
        // The refusal of the user is stored, and no keeper runs that could cut sessions.
        Err(Failure::KeeperUnreached(generation, error)) => {
            forget(user, generation, &cut.daemons);
            return Err(Failure::KeeperUnreached(generation, error));
        }
        // No daemon has done anything.
        Err(failure) if cut.daemons.is_empty() => return Err(failure),
        Err(failure) => {
            return Err(Failure::NotStored {
                user: user.clone(),
                daemons: cut.daemons,
                error: failure.to_string(),
                ended: cut.ended,
            });
        }
    };
    // The stored configuration refuses the user from here on.
    warn_of(user, take_back(user, outcome.generation, ROLES));
    outcome.ended.splice(0..0, cut.ended);
    // The keeper has reloaded since the cut, so its later answer counts.
    if cut.failed.is_some() || outcome.daemons.iter().all(|daemon| daemon != KEEPER) {
        outcome.unfinished.extend(cut.unfinished);
    }
    if !outcome.unfinished.is_empty() {
        return Err(Failure::Unfinished {
            user: user.clone(),
            left: outcome.unfinished,
            ended: outcome.ended,
        });
    }
    // JSON of `usher user disable`: [`Outcome`].
    output.print(&outcome, || configuration::describe(&outcome));
    Ok(())
}

/// Makes the daemons refuse the user. Needs no disk.
fn cut(user: &UserName) -> Cut {
    let mut cut = Cut::default();
    let request = Disable {
        user: user.clone(),
        given: unix_time(),
    };
    for (role, answer) in ask_each(ROLES, &request) {
        match answer {
            Ok(view) => {
                cut.daemons.push(role.name.into());
                cut.ended.extend(view.ended);
                cut.unfinished.extend(view.unfinished);
            }
            // Storing, the next step, asks these daemons again and reports the error.
            Err(ControlError::NotRunning { .. } | ControlError::NotPermitted { .. }) => {}
            Err(error) if role.name == KEEPER => cut.failed = Some(error),
            Err(_) => {}
        }
    }
    cut
}

/// Takes [`cut`] back in the daemons that have carried it out, where they have the stored configuration in
/// force. A daemon that did not answer is not asked again: it finds that its order was stored meanwhile.
fn forget(user: &UserName, generation: u64, daemons: &[String]) {
    let has_cut = |role: &&&'static Role| daemons.iter().any(|cut| cut == role.name);
    for role in ROLES.iter().filter(has_cut) {
        let taken_back = take_back(user, generation, std::slice::from_ref(role));
        warn_of(user, taken_back);
    }
}

fn warn_of(user: &UserName, taken_back: Result<(), Failure>) {
    if let Err(failure) = taken_back {
        warn(&format!(
            "{user} stays disabled until `usher user enable {user}`, whatever is applied ({failure})"
        ));
    }
}

/// Takes [`cut`] back in these daemons, if they have a generation in force, or a later one.
fn take_back(user: &UserName, since: u64, roles: &'static [&'static Role]) -> Result<(), Failure> {
    let request = Enable {
        user: user.clone(),
        since,
    };
    for (_, answer) in ask_each(roles, &request) {
        match answer {
            Ok(_) | Err(ControlError::NotRunning { .. } | ControlError::NotPermitted { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Stores that the user is disabled, and makes the daemons read it.
fn store(user: &UserName, reason: &str) -> Result<Outcome, Failure> {
    let lock = configuration::lock()?;
    let fresh = configuration::in_force()?;
    // A name service that does not answer must not prevent disabling.
    let may_have_account = || match nix::unistd::User::from_name(user.as_ref()) {
        Ok(found) => found.is_some(),
        Err(error) => {
            warn(&format!(
                "cannot look up the account {user} ({error}): check the name"
            ));
            true
        }
    };
    let folder = match known(user) {
        // A user whom an authority certifies has no folder.
        Err(_) if fresh.users.contains_key(user) || may_have_account() => user_folder(user),
        known => known?,
    };
    // The mark and the configuration may be on different disks, so one may be written where the other fails.
    let marked = mark(&folder, reason);
    let outcome = in_force(&lock, fresh, user, reason);
    marked.and(outcome)
}

/// Writes the mark that the next apply reads.
fn mark(folder: &Path, reason: &str) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).at(folder)?;
    let path = folder.join("disabled");
    write_atomically(&path, format!("{reason}\n").as_bytes(), 0o644).at(&path)
}

fn in_force(
    lock: &Lock,
    mut fresh: Applied,
    user: &UserName,
    reason: &str,
) -> Result<Outcome, Failure> {
    fresh.users.entry(user.clone()).or_default().disabled = Some(reason.trim().to_owned());
    configuration::put_in_force(lock, fresh, OnRefusal::GoOn)
}

/// Admits a disabled user again.
///
/// # Errors
/// When the user is not known, the file cannot be removed, or a daemon does not answer.
pub fn enable(output: &Output, user: &UserName) -> Result<(), Failure> {
    // First the daemons forget the user. The stored configuration refuses the user until it changes too.
    take_back(user, 0, ROLES)?;
    let lock = configuration::lock()?;
    let path = known(user)?.join("disabled");
    remove_if_there(&path).at(&path)?;
    put_users_in_force(output, &lock)
}
