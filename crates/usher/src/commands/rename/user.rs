//! `usher user rename`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use usher_base::UserName;
use usher_local::paths;

use crate::accounts;
use crate::commands::configuration::{self, OnRefusal};
use crate::commands::mentions::mentions;
use crate::commands::removal::{admitted_by_certificate, references, signing_keys_in};
use crate::failure::{At, Failure};
use crate::output::{Output, warn};

/// Gives a user's keys, and the mark of a disabled user, to another name. In force at once: the sessions
/// under the former name end. The policy does not change; the places that name the user are printed.
/// Completes a rename that was interrupted between two steps.
///
/// # Errors
/// When the former name is not known, or the new one is; when the user is disabled and certificates would
/// admit the former name. When the change cannot be put in force; nothing has changed then.
pub fn user(output: &Output, former: &UserName, fresh: &UserName) -> Result<(), Failure> {
    let lock = configuration::lock()?;
    let mut applied = configuration::in_force()?;
    let is_known = |user| applied.users.contains_key(user);
    let (is_former_known, is_fresh_known) = (is_known(former), is_known(fresh));
    let users = Path::new(paths::USERS_DIRECTORY);
    let steps = Steps::find(
        users,
        Path::new(paths::PRIVATE_KEYS_DIRECTORY),
        former,
        fresh,
    )?;
    // A key without a user's folder does not make the user known.
    if !steps.has_folder || !steps.moves_folder() && !is_former_known {
        return Err(Failure::UnknownUser(former.clone()));
    }
    match accounts::look_up(fresh.as_ref())? {
        Some(account) if account.uid.is_root() => {
            return Err(Failure::Refused(format!(
                "{fresh} has user id 0; root cannot be a user of Usher"
            )));
        }
        Some(_) => {}
        None => warn(&format!(
            "there is no account {fresh} on this host yet; create it first"
        )),
    }
    if steps.is_taken || is_former_known && is_fresh_known {
        return Err(Failure::Refused(format!(
            "this host knows a user {fresh} already; `usher user remove {fresh}` first, if that is meant"
        )));
    }
    let disabled = [former, fresh]
        .into_iter()
        .find_map(|user| applied.users.get(user)?.disabled.clone());
    let is_disabled = disabled.is_some()
        || [former, fresh].map(|user| users.join(user.as_ref()).join("disabled").exists())
            != [false; 2];
    let mut entry = applied.users.remove(former);
    if is_fresh_known || !steps.moves_folder() {
        // An earlier call was interrupted: the written files decide, as for any other command.
        let mut written = configuration::collect_users()?;
        entry = written.remove(former).or_else(|| written.remove(fresh));
        if let Some(entry) = &mut entry {
            entry.disabled = entry.disabled.take().or(disabled);
        }
    }
    applied
        .users
        .extend(entry.map(|entry| (fresh.clone(), entry)));
    if is_disabled && let Some(services) = admitted_by_certificate(&applied, former)? {
        return Err(Failure::Refused(format!(
            "{former} is disabled, and the mark would go to {fresh}, while {services}. Remove {former} from \
             the policy first"
        )));
    }
    let Steps { moves, done, .. } = steps;
    let generation = applied.generation;
    move_all(&moves)?;
    let outcome = match configuration::put_in_force(&lock, applied, OnRefusal::RollBack) {
        Ok(outcome) => outcome,
        Err(failure) => {
            // The change may be in force despite the failure.
            let is_stored = matches!(failure, Failure::KeeperUnreached(now, _) if now > generation);
            if !is_stored {
                let back: Vec<_> = moves
                    .into_iter()
                    .rev()
                    .map(|(from, to)| (to, from))
                    .collect();
                move_all(&back)?;
            }
            return Err(failure);
        }
    };
    let mut remains = references(former);
    remains.extend(mentions(former, &remains));
    let renamed = moves.iter().map(|(_, to)| to).chain(&done);
    // JSON of `usher user rename`: [`Outcome`], and
    //   renamed: List of texts: the folders and files under their new names.
    //   remains: List of [`Remains`]: the places that have the former name.
    let mut view = json!(outcome);
    view["renamed"] = json!(renamed.collect::<Vec<_>>());
    view["remains"] = json!(remains);
    output.print(&view, || {
        let renamed = moves.iter();
        let renamed = renamed.map(|(from, to)| format!("{} is now {}\n", from.display(), to.display()));
        let mut text = renamed.collect::<String>();
        for to in &done {
            text += &format!("{} has its new name already\n", to.display());
        }
        text += &configuration::describe(&outcome);
        for left in &remains {
            text += &left.line();
        }
        if !remains.is_empty() {
            text += &format!(
                "the policy has not changed: write {fresh} in these places, then `usher policy apply`\n"
            );
        }
        text
    });
    Ok(())
}

/// The folder and the keys of a user who gets another name.
#[derive(Debug)]
struct Steps {
    /// The moves from the former name, each with its target. The folder is last: any command that puts users
    /// in force then completes the rename, and does so only when no key is left behind.
    moves: Vec<(PathBuf, PathBuf)>,
    /// Files that have the new name already.
    done: Vec<PathBuf>,
    /// Whether there is something under both names.
    is_taken: bool,
    /// Whether there is a folder, under either name.
    has_folder: bool,
}

impl Steps {
    /// Finds the steps, in the folders of users and of keys.
    fn find(
        users: &Path,
        keys: &Path,
        former: &UserName,
        fresh: &UserName,
    ) -> Result<Self, Failure> {
        let mut purposes = BTreeSet::new();
        for user in [former, fresh] {
            for key in signing_keys_in(keys, user)? {
                let name = key.file_name().unwrap_or_default().to_string_lossy();
                let purpose = name.strip_prefix(user.as_ref()).unwrap_or_default();
                purposes.insert(purpose.to_owned());
            }
        }
        let key = |user: &UserName, purpose: &String| keys.join(format!("{user}{purpose}"));
        let mut pairs: Vec<_> = purposes
            .iter()
            .map(|purpose| (key(former, purpose), key(fresh, purpose)))
            .collect();
        pairs.push((users.join(former.as_ref()), users.join(fresh.as_ref())));
        let mut steps = Self {
            moves: Vec::new(),
            done: Vec::new(),
            is_taken: false,
            has_folder: false,
        };
        for (from, to) in pairs {
            let exists = |path: &PathBuf| path.symlink_metadata().is_ok();
            let found = (exists(&from), exists(&to));
            steps.has_folder = found != (false, false);
            match found {
                (true, true) => steps.is_taken = true,
                (true, false) => steps.moves.push((from, to)),
                (false, true) => steps.done.push(to),
                (false, false) => {}
            }
        }
        Ok(steps)
    }

    /// Whether the folder has the former name.
    fn moves_folder(&self) -> bool {
        self.moves.last().is_some_and(|(from, _)| from.is_dir())
    }
}

/// Renames all of these, or none.
fn move_all(moves: &[(PathBuf, PathBuf)]) -> Result<(), Failure> {
    for (done, (from, to)) in moves.iter().enumerate() {
        if let Err(failure) = std::fs::rename(from, to).at(from) {
            for (from, to) in moves[..done].iter().rev() {
                std::fs::rename(to, from).at(to)?;
            }
            return Err(failure);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries each state in which a rename may have been ended, before and after it came in force.
    #[test]
    fn a_rename_that_was_ended_goes_on_where_it_was() {
        let (former, fresh): (UserName, UserName) =
            ("alice".parse().unwrap(), "alina".parse().unwrap());
        for done in 0..=3 {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            std::fs::create_dir_all(path("users/alice")).unwrap();
            std::fs::create_dir(path("keys")).unwrap();
            for key in ["alice", "alice@mail", "alice2", "bob"] {
                std::fs::write(path("keys").join(key), key).unwrap();
            }
            let find = || Steps::find(&path("users"), &path("keys"), &former, &fresh).unwrap();
            let all = find().moves;
            assert_eq!(all.len(), 3, "{all:?}");
            assert_eq!(all[2].0, path("users/alice"), "the folder is last");
            move_all(&all[..done]).unwrap();

            let steps = find();
            assert_eq!(steps.moves, all[done..]);
            assert!(steps.has_folder && !steps.is_taken);
            assert_eq!(steps.moves_folder(), done < 3);
            assert_eq!(steps.done.len(), done);
            move_all(&steps.moves).unwrap();
            for there in [
                "users/alina",
                "keys/alina",
                "keys/alina@mail",
                "keys/alice2",
                "keys/bob",
            ] {
                assert!(path(there).exists(), "{done}: {there}");
            }
            for gone in ["users/alice", "keys/alice", "keys/alice@mail"] {
                assert!(!path(gone).exists(), "{done}: {gone}");
            }
            // Two users are not made one.
            std::fs::write(path("keys/alice"), "another").unwrap();
            assert!(find().is_taken);
        }
    }

    #[test]
    fn several_files_move_or_none_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "a").unwrap();
        let moves = [(path("a"), path("b")), (path("missing"), path("c"))];
        assert!(move_all(&moves).is_err());
        assert!(path("a").exists() && !path("b").exists());
        move_all(&moves[..1]).unwrap();
        assert!(path("b").exists() && !path("a").exists());
    }
}
