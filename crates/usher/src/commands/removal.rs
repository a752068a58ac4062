//! `usher user remove`: removes a user, or keys of a user, at once. Like all of `usher user` it concerns
//! that user only: mistakes in a policy or in another user's list do not prevent it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;
use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::files::write_atomically;
use usher_local::checked::Checked;
use usher_local::error::ConfigurationError;
use usher_local::keys::{Fingerprint, LIST, fingerprint};
use usher_local::paths;
use usher_local::reading::{optional, read_bounded};
use usher_policy::{Name, Place, parse_with_places};

use super::configuration::{self, OnRefusal, Outcome};
use super::user::{private_key_path, user_folder};
use super::{key_list, this_host};
use crate::failure::{At, Failure};
use crate::output::Output;

/// Options of `usher user remove`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what")
    .multiple(true)
    .args(["public_key", "fingerprint", "signing_key"])))]
pub struct Request {
    /// The user
    name: UserName,
    /// Remove only the public keys in this file
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,
    /// Remove only the public key with this fingerprint, as `usher who` shows it
    #[arg(long, value_name = "SHA256:...", value_parser = read_fingerprint)]
    fingerprint: Option<Fingerprint>,
    /// Remove only the user's key in the signer's store
    #[arg(long)]
    signing_key: bool,
    /// Only keys of this purpose: a name that `keys` or `key` of the policy uses
    #[arg(long, value_name = "NAME", requires = "what")]
    key: Option<Name>,
}

/// The parts of the configuration that still name or admit a removed user.
#[derive(Debug, Serialize)]
pub(super) struct Remains {
    /// Its place, if it is in a policy file.
    pub(super) place: Option<Place>,
    /// What it is, for people.
    pub(super) text: String,
}

impl Remains {
    /// A line for people.
    pub(super) fn line(&self) -> String {
        match &self.place {
            Some(place) => format!("remains: {place}: {}\n", self.text),
            None => format!("remains: {}\n", self.text),
        }
    }
}

/// Reads a fingerprint as `usher who` and `ssh-keygen -l` show it.
fn read_fingerprint(text: &str) -> Result<Fingerprint, Failure> {
    let form = "not a fingerprint in the form of `usher who` and `ssh-keygen -l`: SHA256:...";
    match text.parse() {
        Ok(ssh_key::Fingerprint::Sha256(bytes)) => Ok(bytes),
        _ => Err(Failure::refused(form)),
    }
}

/// Removes a user, or only some of the user's keys.
pub fn remove(output: &Output, request: &Request) -> Result<(), Failure> {
    let names_public_keys = request.public_key.is_some() || request.fingerprint.is_some();
    if names_public_keys || request.signing_key {
        keys(output, request)
    } else {
        whole(output, &request.name)
    }
}

/// Removes a user: the folder with the public keys and the mark of a disabled user, and the user's keys
/// in the signer's store. Reports what still names or admits the user.
///
/// # Errors
/// When the user is not known, or is disabled and certificates would admit the user again. When the
/// change cannot be put in force or stored. Nothing changes then.
fn whole(output: &Output, user: &UserName) -> Result<(), Failure> {
    let lock = configuration::lock()?;
    let mut fresh = configuration::in_force()?;
    let folder = user_folder(user);
    let mut paths = signing_keys(user)?;
    if folder.is_dir() {
        paths.push(folder.clone());
    }
    let in_force = fresh.users.remove(user);
    if in_force.is_none() && paths.is_empty() {
        return Err(Failure::UnknownUser(user.clone()));
    }
    let is_disabled =
        in_force.is_some_and(|entry| entry.disabled.is_some()) || folder.join("disabled").exists();
    let certified = admitted_by_certificate(&fresh, user)?;
    if let Some(services) = certified.as_ref().filter(|_| is_disabled) {
        return Err(Failure::Refused(format!(
            "{user} is disabled, and removing the user would undo that: {services}. Leave the user \
             disabled, or remove the user from the policy first"
        )));
    }
    let aside = Aside::take(&paths)?;
    let outcome = put_in_force(&lock, fresh, aside)?;
    let mut remains = references(user);
    remains.extend(certified.map(|services| Remains {
        place: None,
        text: format!("{services}; `usher user disable {user}` refuses them"),
    }));
    let removed = paths.iter().map(|path| path.display().to_string());
    tell_removed(output, &removed.collect::<Vec<_>>(), &outcome, &remains);
    Ok(())
}

/// Removes keys of a user, who stays known.
///
/// # Errors
/// When one of the keys does not exist; nothing changes then. Otherwise as [`whole`].
fn keys(output: &Output, request: &Request) -> Result<(), Failure> {
    let (user, purpose) = (&request.name, request.key.as_ref());
    let lock = configuration::lock()?;
    let mut fresh = configuration::in_force()?;
    let folder = user_folder(user);
    if !folder.is_dir() && !fresh.users.contains_key(user) && signing_keys(user)?.is_empty() {
        return Err(Failure::UnknownUser(user.clone()));
    }
    let wanted = wanted(request)?;
    let mut found = BTreeSet::new();
    let mut take_out = |list: &str| {
        let (rest, taken) = key_list::without(user, list, &wanted);
        found.extend(&taken);
        (rest, taken)
    };
    // From the written lists and from those in force, only the key is removed.
    let mut rewritten = Vec::new();
    let mut removed = Vec::new();
    for path in lists(&folder, purpose)? {
        let list = read_bounded(&path)?;
        let (rest, taken) = take_out(&list);
        removed.extend(taken.iter().map(|key| said(key, &path)));
        if !taken.is_empty() {
            rewritten.push((path, list, rest));
        }
    }
    if let Some(entry) = fresh.users.get_mut(user) {
        if purpose.is_none() {
            entry.authorized_keys = take_out(&entry.authorized_keys).0;
        }
        for (name, list) in &mut entry.authorized_keys_for {
            if purpose.is_none_or(|wanted| wanted.as_ref() == name) {
                *list = take_out(list).0;
            }
        }
    }
    if let Some(missing) = wanted.difference(&found).next() {
        return Err(Failure::Refused(format!(
            "{user} has no key {} here{}; `usher --json user list` shows the user's keys",
            shown(missing),
            for_purpose(purpose)
        )));
    }
    let signing = private_key_path(user, purpose);
    let mut paths = Vec::new();
    if request.signing_key {
        if !signing.try_exists().at(&signing)? {
            return Err(Failure::Refused(format!(
                "the signer has no key of {user} here{}",
                for_purpose(purpose)
            )));
        }
        removed.push(signing.display().to_string());
        paths.push(signing);
    }
    let mut aside = Aside::take(&paths)?;
    aside.rewrite(rewritten)?;
    let outcome = put_in_force(&lock, fresh, aside)?;
    tell_removed(output, &removed, &outcome, &[]);
    Ok(())
}

/// The fingerprints of the public keys to remove.
fn wanted(request: &Request) -> Result<BTreeSet<Fingerprint>, Failure> {
    let mut wanted: BTreeSet<Fingerprint> = request.fingerprint.into_iter().collect();
    if let Some(path) = &request.public_key {
        let found = key_list::parse_file(&request.name, &read_bounded(path)?);
        let found = found.map_err(|error| Failure::of_file(path, error))?;
        wanted.extend(found.iter().map(|key| fingerprint(&key.key)));
    }
    Ok(wanted)
}

/// The lists of public keys of a user: all, or the one of a purpose.
fn lists(folder: &Path, purpose: Option<&Name>) -> Result<Vec<PathBuf>, Failure> {
    let names = names_in(folder)?;
    let wanted = purpose.map(|purpose| format!("{LIST}.{purpose}"));
    let lists = names.into_iter().filter(|name| match &wanted {
        Some(wanted) => name == wanted,
        None => name == LIST || name.starts_with(&format!("{LIST}.")),
    });
    Ok(lists.map(|name| folder.join(name)).collect())
}

/// The files with a user's signing keys, of all purposes.
pub(super) fn signing_keys(user: &UserName) -> Result<Vec<PathBuf>, Failure> {
    signing_keys_in(Path::new(paths::PRIVATE_KEYS_DIRECTORY), user)
}

/// As [`signing_keys`], of a folder of keys.
pub(super) fn signing_keys_in(folder: &Path, user: &UserName) -> Result<Vec<PathBuf>, Failure> {
    let names = names_in(folder)?.into_iter();
    // No user's name has an `@`.
    let of_user = |name: &String| name.split('@').next() == Some(user.as_ref());
    Ok(names
        .filter(of_user)
        .map(|name| folder.join(name))
        .collect())
}

/// The sorted names in a folder; none if there is no such folder.
fn names_in(folder: &Path) -> Result<Vec<String>, Failure> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at(folder)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.at(folder)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// The services that certificates open to a user without a list, as a sentence.
pub(super) fn admitted_by_certificate(
    fresh: &usher_local::applied::Applied,
    user: &UserName,
) -> Result<Option<String>, Failure> {
    Ok(by_certificate(&configuration::check_applied(fresh)?, user))
}

/// As [`admitted_by_certificate`], by a checked configuration.
pub(super) fn by_certificate(checked: &Checked, user: &UserName) -> Option<String> {
    if !checked.has_authority() {
        return None;
    }
    let now = unix_time();
    let services = this_host::named(&checked.policy, |service| {
        let users = &service.users;
        service.keys.is_none() && (users.has(user, now) || !users.principals().is_empty())
    });
    services.map(|services| {
        format!(
            "certificates by the authorities in {} may open sessions as {user} with {services}",
            paths::USER_AUTHORITIES
        )
    })
}

/// The places where the policy names the user: the written policy, or the one in force if the written
/// one has mistakes.
pub(super) fn references(user: &UserName) -> Vec<Remains> {
    let written = configuration::collect();
    let of = |applied: Result<usher_local::applied::Applied, Failure>| {
        let applied = applied.ok()?;
        let (policy, places) = parse_with_places(&applied.sources, &applied.known_groups()).ok()?;
        let clauses = policy.users.values().flat_map(|set| set.clauses_of(user));
        let clauses = clauses.map(|clause| Remains {
            place: places.place(&clause),
            text: format!("the policy names {user}: {clause}"),
        });
        let expected = policy.expectations.iter();
        let expected = expected.filter(|expectation| expectation.user == *user);
        let expected = expected.map(|expectation| Remains {
            place: Some(expectation.origin.place.clone()),
            text: format!(
                "an expectation names {user}: {}",
                expectation.to_text().trim()
            ),
        });
        Some(clauses.chain(expected).collect())
    };
    let found = of(written).or_else(|| of(configuration::in_force()));
    found.unwrap_or_default()
}

/// Puts a configuration in force and discards what was put aside, or puts that back on failure.
fn put_in_force(
    lock: &configuration::Lock,
    fresh: usher_local::applied::Applied,
    aside: Aside,
) -> Result<Outcome, Failure> {
    let former = fresh.generation;
    let outcome = configuration::put_in_force(lock, fresh, OnRefusal::GoOn);
    let is_stored = configuration::in_force().is_ok_and(|now| now.generation != former);
    match outcome {
        Err(failure) if !is_stored => Err(aside.undo(failure)),
        outcome => {
            aside.discard()?;
            outcome
        }
    }
}

/// Files that have been moved aside and can be put back.
#[derive(Default)]
struct Aside {
    /// Each with its temporary name.
    moved: Vec<(PathBuf, PathBuf)>,
    /// Changed files, and their former text.
    rewritten: Vec<(PathBuf, String)>,
}

impl Aside {
    /// Moves all of these, or none.
    fn take(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut aside = Self::default();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // A user's folder leaves the folder of users, where every name counts as a user.
            let folder = match path.parent() {
                Some(parent) if parent == Path::new(paths::USERS_DIRECTORY) => {
                    Path::new(paths::CONFIGURATION_DIRECTORY)
                }
                Some(parent) => parent,
                None => path,
            };
            let away = folder.join(format!(".removed-{name}"));
            // A `usher user remove` that was killed may have left something under this name.
            let moved = delete(&away).and_then(|()| std::fs::rename(path, &away).at(path));
            if let Err(error) = moved {
                return Err(aside.undo(error));
            }
            aside.moved.push((path.clone(), away));
        }
        Ok(aside)
    }

    /// Rewrites files, given with the former and the new text: all, or none.
    fn rewrite(&mut self, files: Vec<(PathBuf, String, String)>) -> Result<(), Failure> {
        for (path, former, text) in files {
            let written = write_atomically(&path, text.as_bytes(), 0o644).at(&path);
            if let Err(error) = written {
                return Err(std::mem::take(self).undo(error));
            }
            self.rewritten.push((path, former));
        }
        Ok(())
    }

    /// Puts everything back, and returns `failure`. If something could not be put back, the failure names it
    /// and the remedy.
    fn undo(self, failure: Failure) -> Failure {
        let mut left = Vec::new();
        for (path, away) in self.moved {
            if let Err(error) = std::fs::rename(&away, &path) {
                let (away, path) = (away.display(), path.display());
                left.push(format!("{path} is at {away} ({error}): mv {away} {path}"));
            }
        }
        for (path, text) in self.rewritten {
            if let Err(error) = write_atomically(&path, text.as_bytes(), 0o644) {
                left.push(format!(
                    "{} lacks keys that are in force ({error})",
                    path.display()
                ));
            }
        }
        if left.is_empty() {
            failure
        } else {
            Failure::Refused(format!(
                "{failure}; not everything is as it was: {}",
                left.join("; ")
            ))
        }
    }

    fn discard(self) -> Result<(), Failure> {
        self.moved.iter().try_for_each(|(_, away)| delete(away))
    }
}

/// Removes a file, or a folder with its contents, if it exists.
fn delete(path: &Path) -> Result<(), Failure> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    optional(removed.map_err(|error| ConfigurationError::File(path.into(), error)))?;
    Ok(())
}

fn shown(key: &Fingerprint) -> String {
    ssh_key::Fingerprint::Sha256(*key).to_string()
}

fn said(key: &Fingerprint, list: &Path) -> String {
    format!("{} from {}", shown(key), list.display())
}

fn for_purpose(purpose: Option<&Name>) -> String {
    purpose.map_or_else(String::new, |purpose| format!(" for {purpose}"))
}

/// Prints the folders, files and keys that were removed, keys with the list that had them.
fn tell_removed(output: &Output, removed: &[String], outcome: &Outcome, remains: &[Remains]) {
    // JSON of `usher user remove`: [`Outcome`], and
    //   removed: List of texts: the folders, files and keys that were removed.
    //   remains: List of [`Remains`]: the places where the user is still named or admitted.
    let mut view = json!(outcome);
    view["removed"] = json!(removed);
    view["remains"] = json!(remains);
    output.print(&view, || {
        let removed = removed.iter().map(|what| format!("removed: {what}\n"));
        let mut text = removed.collect::<String>() + &configuration::describe(outcome);
        text.extend(remains.iter().map(Remains::line));
        if remains.iter().any(|left| left.place.is_some()) {
            text += "the policy has not changed: remove these places, then `usher policy apply`\n";
        }
        text
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_aside_comes_back_whole_or_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = || names_in(folder.path()).unwrap();
        let put = || {
            std::fs::create_dir_all(path("alice")).unwrap();
            std::fs::write(path("alice/list"), "key").unwrap();
            std::fs::write(path("bob"), "former").unwrap();
        };
        put();
        // The second of two is missing: the first one is as it was.
        assert!(Aside::take(&[path("alice"), path("missing")]).is_err());
        assert_eq!(names(), ["alice", "bob"]);

        // A folder in the way of one does not keep the others from coming back, and does not hide the first reason.
        let aside = Aside::take(&[path("alice"), path("bob")]).unwrap();
        std::fs::create_dir(path("alice")).unwrap();
        std::fs::write(path("alice/other"), "").unwrap();
        let told = aside
            .undo(Failure::refused("the keeper refuses"))
            .to_string();
        assert!(
            told.starts_with("the keeper refuses; not everything is as it was"),
            "{told}"
        );
        assert!(told.contains("/.removed-alice "), "{told}");
        assert_eq!(names(), [".removed-alice", "alice", "bob"]);
        std::fs::remove_dir_all(path("alice")).unwrap();
        std::fs::rename(path(".removed-alice"), path("alice")).unwrap();

        let mut aside = Aside::take(&[path("alice")]).unwrap();
        let rewritten = |name: &str| (path(name), "former".to_owned(), "new".to_owned());
        assert!(
            aside
                .rewrite(vec![rewritten("bob"), rewritten("no/such")])
                .is_err()
        );
        assert_eq!(names(), ["alice", "bob"]);
        assert_eq!(std::fs::read_to_string(path("alice/list")).unwrap(), "key");
        assert_eq!(std::fs::read_to_string(path("bob")).unwrap(), "former");

        // A removal that was killed has left something behind.
        std::fs::create_dir_all(path(".removed-alice/list")).unwrap();
        let mut aside = Aside::take(&[path("alice")]).unwrap();
        aside.rewrite(vec![rewritten("bob")]).unwrap();
        aside.discard().unwrap();
        assert_eq!(names(), ["bob"]);
        assert_eq!(std::fs::read_to_string(path("bob")).unwrap(), "new");
    }

    #[test]
    fn a_fingerprint_is_one_by_sha256() {
        let shown = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
        let read = read_fingerprint(shown).unwrap();
        assert_eq!(super::shown(&read), shown);
        for wrong in ["", "SHA256:", "MD5:00", &shown[..40], &shown[7..]] {
            read_fingerprint(wrong).unwrap_err();
        }
    }
}
