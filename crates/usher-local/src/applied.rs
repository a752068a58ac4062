//! The configuration in force: policy text, the users' public keys and who is disabled, in one
//! file that is replaced atomically. The daemons read this file only, so an administrator's
//! half-finished edit below `/etc/usher` never takes effect, and all daemons see one state.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use usher_policy::{Name, Policy, PolicyError, Source};
use usher_proto::name::UserName;
use usher_proto::refusal::Refusal;
use usher_proto::{DecodeError, RevokedKeys, RevokedKeysError};

use crate::key_options::in_utc;
use crate::keys::{self, Fingerprint, KeyProblem, UserKey, keys_of};
use crate::paths;

/// Largest policy file or key list read.
pub const MAX_FILE: u64 = 1 << 20;

/// The configuration in force.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Applied {
    /// Counts up by one with each apply.
    pub generation: u64,
    /// The policy files in the order of their names.
    pub sources: Vec<PolicyFile>,
    /// Users known on this host.
    pub users: BTreeMap<UserName, UserEntry>,
    /// The list of revoked keys as it was read, in Base64; absent where there is none.
    #[serde(default)]
    pub revoked_keys: Option<String>,
}

/// One policy file.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct PolicyFile {
    /// Path it was read from, for messages.
    pub name: String,
    /// Its whole text.
    pub text: String,
}

/// What is known of one user besides the policy.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct UserEntry {
    /// Public keys in authorized_keys style: one OpenSSH public key a line, `#` comments. All times
    /// are in UTC.
    pub authorized_keys: String,
    /// The lists of keys for one thing only, by its name.
    #[serde(default)]
    pub authorized_keys_for: BTreeMap<String, String>,
    /// Why the user is disabled; absent for a user who is not.
    pub disabled: Option<String>,
}

impl UserEntry {
    /// Reads a user's folder.
    fn read(folder: &Path) -> Result<Self, ConfigurationError> {
        let mut entry = Self {
            disabled: optional(read_bounded(&folder.join("disabled")))?
                .map(|reason| reason.trim().to_owned()),
            ..Self::default()
        };
        for path in sorted(folder)? {
            let name = path.file_name().and_then(|name| name.to_str());
            match name.and_then(|name| name.strip_prefix(keys::LIST)) {
                Some("") => entry.authorized_keys = in_utc(&read_bounded(&path)?),
                Some(purpose) if purpose.starts_with('.') => {
                    let list = in_utc(&read_bounded(&path)?);
                    let purpose = purpose[1..].to_owned();
                    entry.authorized_keys_for.insert(purpose, list);
                }
                _ => {}
            }
        }
        Ok(entry)
    }
}

/// Why the configuration cannot be read, checked or written.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file is larger than [`MAX_FILE`].
    #[error("{path}: larger than {MAX_FILE} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file of the applied configuration is damaged.
    #[error(
        "{path}: not an applied configuration ({error}); run `usher policy apply` to write it anew"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// A folder's name below the users' directory is not a user name.
    #[error("{path}: not a user name; remove or rename the folder")]
    NotAUser {
        /// The folder.
        path: PathBuf,
    },
    /// A list of keys is for something that cannot be named in a policy.
    #[error(
        "{user}: authorized_keys.{found}: {found:?} is not what keys can be for: {}; rename the \
         file",
        usher_policy::InvalidName
    )]
    KeysFor {
        /// Whose list.
        user: UserName,
        /// What it would be for.
        found: String,
    },
    /// A line of a user's key list is no public key that Usher takes.
    #[error("{user}: {list} line {line}: {reason}")]
    Key {
        /// Whose list.
        user: UserName,
        /// The name of its file.
        list: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: KeyProblem,
    },
    /// The list of revoked keys is not one.
    #[error("{path}: {0}", path = paths::REVOKED_KEYS)]
    RevokedKeys(#[from] RevokedKeysError),
    /// The policy has errors.
    #[error("the policy has {} error(s)", .0.len())]
    Policy(Vec<PolicyError>),
}

impl Applied {
    /// Reads the configuration in force; `None` when nothing has been applied yet.
    ///
    /// # Errors
    /// When the file is there and cannot be read or is damaged.
    pub fn load(path: &Path) -> Result<Option<Self>, ConfigurationError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file_error(path, error)),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| ConfigurationError::Damaged {
                path: path.into(),
                error,
            })
    }

    /// Reads what an administrator has written: policy files (`*.policy`, by name), users, revoked
    /// keys.
    ///
    /// # Errors
    /// Names the first file that cannot be read. The text is not checked here: see
    /// [`Applied::check`].
    pub fn collect(
        policy: &Path,
        users: &Path,
        revoked_keys: &Path,
    ) -> Result<Self, ConfigurationError> {
        let mut applied = Self {
            revoked_keys: optional(read_bytes(revoked_keys))?
                .map(|bytes| Base64::encode_string(&bytes)),
            ..Self::default()
        };
        for path in sorted(policy)? {
            if path
                .extension()
                .is_some_and(|extension| extension == "policy")
            {
                applied.sources.push(PolicyFile {
                    name: path.display().to_string(),
                    text: read_bounded(&path)?,
                });
            }
        }
        for path in sorted(users)? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let name: UserName = name
                .parse()
                .map_err(|_| ConfigurationError::NotAUser { path: path.clone() })?;
            applied.users.insert(name, UserEntry::read(&path)?);
        }
        Ok(applied)
    }

    /// Checks the whole: policy text and every user's keys.
    ///
    /// # Errors
    /// All errors of the policy, or the first of the key lists.
    pub fn check(&self) -> Result<Checked, ConfigurationError> {
        let sources: Vec<Source> = self
            .sources
            .iter()
            .map(|file| Source {
                name: file.name.clone(),
                text: file.text.clone(),
            })
            .collect();
        let policy = usher_policy::parse(&sources).map_err(ConfigurationError::Policy)?;
        let keys = self
            .users
            .iter()
            .map(|(user, entry)| Ok((user.clone(), keys_of(user, entry)?)))
            .collect::<Result<_, ConfigurationError>>()?;
        let revoked = match &self.revoked_keys {
            None => RevokedKeys::default(),
            Some(base64) => {
                let bytes = Base64::decode_vec(base64).map_err(|_| {
                    RevokedKeysError::Damaged(DecodeError::Malformed { field: "Base64" })
                })?;
                RevokedKeys::parse(&bytes)?
            }
        };
        Ok(Checked {
            policy,
            keys,
            revoked,
        })
    }

    /// Puts this configuration in force for the daemons' next reload: the present one becomes
    /// the previous one, then the file is replaced. Durable when it returns.
    ///
    /// # Errors
    /// When a file cannot be written; the configuration in force is then unchanged.
    pub fn store(&self, path: &Path, previous: &Path) -> Result<(), ConfigurationError> {
        match std::fs::read(path) {
            Ok(present) => write_atomically(previous, &present, 0o644)
                .map_err(|error| file_error(previous, error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(file_error(path, error)),
        }
        let text =
            serde_json::to_vec_pretty(self).map_err(|error| ConfigurationError::Damaged {
                path: path.into(),
                error,
            })?;
        write_atomically(path, &text, 0o644).map_err(|error| file_error(path, error))
    }

    /// Whether the user is disabled on this host.
    #[must_use]
    pub fn is_disabled(&self, user: &UserName) -> bool {
        self.users
            .get(user)
            .is_some_and(|entry| entry.disabled.is_some())
    }
}

/// A configuration that has passed all checks.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The policy.
    pub policy: Policy,
    /// Each user's public keys.
    pub keys: BTreeMap<UserName, Vec<UserKey>>,
    /// Keys that are no longer anybody's.
    pub revoked: RevokedKeys,
}

impl Checked {
    /// The user's key that has this fingerprint, and is for this. Of several lines with one key that
    /// counts which lasts longest, as for sshd.
    ///
    /// # Errors
    /// [`Refusal::UnknownUser`] for one without any key, [`Refusal::UnknownKey`],
    /// [`Refusal::RevokedKey`], [`Refusal::ExpiredKey`] when it has expired at `now`, in seconds since 1970.
    pub fn user_key(
        &self,
        user: &UserName,
        fingerprint: &Fingerprint,
        purpose: Option<&Name>,
        now: u64,
    ) -> Result<&UserKey, Refusal> {
        let keys = self.keys.get(user).filter(|keys| !keys.is_empty());
        let key = keys
            .ok_or(Refusal::UnknownUser)?
            .iter()
            .filter(|key| key.fingerprint == *fingerprint && key.purpose.as_ref() == purpose)
            .max_by_key(|key| key.options.expires.unwrap_or(u64::MAX))
            .ok_or(Refusal::UnknownKey)?;
        if self.revoked.has_key(&key.key) {
            return Err(Refusal::RevokedKey);
        }
        if key.has_expired(now) {
            return Err(Refusal::ExpiredKey);
        }
        Ok(key)
    }
}

/// Loads and checks the configuration in force; a host without one has an empty policy, which
/// permits nothing.
///
/// # Errors
/// When the file is there and cannot be read, is damaged, or fails its check.
pub fn load_checked() -> Result<(Applied, Checked), ConfigurationError> {
    let applied = Applied::load(Path::new(paths::APPLIED))?.unwrap_or_default();
    let checked = applied.check()?;
    Ok((applied, checked))
}

/// Replaces a file by rename, so that a reader sees the old or the new text and nothing between,
/// also after a power cut.
///
/// # Errors
/// As the system says; the old file is then untouched.
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.new-{}", std::process::id()));
    let write = || {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        std::fs::File::open(parent)?.sync_all()
    };
    let result = write();
    if result.is_err() {
        // The first error is the one to report; a temporary file left behind harms nobody.
        drop(std::fs::remove_file(&temporary));
    }
    result
}

fn sorted(directory: &Path) -> Result<Vec<PathBuf>, ConfigurationError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error(directory, error)),
    };
    let mut found = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| file_error(directory, error))?;
    found.sort();
    Ok(found)
}

/// What was read, or nothing when the file is not there.
fn optional<T>(read: Result<T, ConfigurationError>) -> Result<Option<T>, ConfigurationError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(ConfigurationError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Reads a text file of at most [`MAX_FILE`] bytes.
///
/// # Errors
/// When it cannot be read, is larger, or is not UTF-8.
pub fn read_bounded(path: &Path) -> Result<String, ConfigurationError> {
    String::from_utf8(read_bytes(path)?).map_err(|_| {
        file_error(
            path,
            io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"),
        )
    })
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, ConfigurationError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| file_error(path, error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ConfigurationError::TooLarge { path: path.into() });
    }
    Ok(bytes)
}

fn file_error(path: &Path, error: io::Error) -> ConfigurationError {
    ConfigurationError::File {
        path: path.into(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("policy.d")).unwrap();
        std::fs::create_dir_all(folder.path().join("users/alice")).unwrap();
        folder
    }

    fn collect(folder: &tempfile::TempDir) -> Result<Applied, ConfigurationError> {
        Applied::collect(
            &folder.path().join("policy.d"),
            &folder.path().join("users"),
            &folder.path().join("revoked_keys"),
        )
    }

    #[test]
    fn collects_policy_files_in_order_and_leaves_editors_leftovers_alone() {
        let folder = tree();
        for name in ["20-b.policy", "10-a.policy", "10-a.policy~", ".x.swp"] {
            std::fs::write(folder.path().join("policy.d").join(name), "").unwrap();
        }
        let applied = collect(&folder).unwrap();
        let names: Vec<_> = applied
            .sources
            .iter()
            .map(|file| file.name.rsplit('/').next().unwrap())
            .collect();
        assert_eq!(names, ["10-a.policy", "20-b.policy"]);
    }

    #[test]
    fn a_disabled_user_is_disabled_and_another_is_not() {
        let folder = tree();
        std::fs::create_dir_all(folder.path().join("users/bob")).unwrap();
        std::fs::write(folder.path().join("users/bob/disabled"), "left\n").unwrap();
        let applied = collect(&folder).unwrap();
        assert!(applied.is_disabled(&"bob".parse().unwrap()));
        assert!(!applied.is_disabled(&"alice".parse().unwrap()));
    }

    #[test]
    fn lists_of_keys_are_told_apart_by_what_they_are_for() {
        const KEY: &str =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k";
        let folder = tree();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join("users/alice").join(name), text).unwrap();
        };
        write("authorized_keys.banking", KEY);
        write("authorized_keys~", "left by an editor");
        let alice = "alice".parse().unwrap();
        let checked = collect(&folder).unwrap().check().unwrap();
        let fingerprint = checked.keys[&alice][0].fingerprint;
        let asked = |purpose: Option<&str>| {
            let purpose = purpose.map(|purpose| purpose.parse().unwrap());
            let found = checked.user_key(&alice, &fingerprint, purpose.as_ref(), 0);
            found.map(|key| key.purpose.clone())
        };
        assert_eq!(asked(Some("banking")), Ok(Some("banking".parse().unwrap())));
        for other in [None, Some("mail")] {
            assert_eq!(asked(other), Err(Refusal::UnknownKey));
        }
        write("authorized_keys.banking", "nonsense");
        let refused = collect(&folder).unwrap().check().unwrap_err().to_string();
        assert!(
            refused.starts_with("alice: authorized_keys.banking line 1: "),
            "{refused}"
        );
        write("authorized_keys.banking", KEY);
        write("authorized_keys.any", KEY);
        let refused = collect(&folder).unwrap().check();
        assert!(matches!(refused, Err(ConfigurationError::KeysFor { .. })));
    }

    #[test]
    fn a_folder_that_is_no_user_name_is_refused() {
        let folder = tree();
        assert!(collect(&folder).is_ok());
        std::fs::create_dir_all(folder.path().join("users/Not A User")).unwrap();
        assert!(matches!(
            collect(&folder),
            Err(ConfigurationError::NotAUser { .. })
        ));
    }

    #[test]
    fn a_damaged_list_of_revoked_keys_is_an_error_and_not_an_empty_one() {
        let folder = tree();
        let path = folder.path().join("revoked_keys");
        let check = |bytes: Option<&[u8]>| {
            if let Some(bytes) = bytes {
                std::fs::write(&path, bytes).unwrap();
            }
            collect(&folder).unwrap().check()
        };
        let none = RevokedKeys::default();
        assert_eq!(check(None).unwrap().revoked, none);
        assert_eq!(check(Some(b"# none\n")).unwrap().revoked, none);
        for damaged in [&b""[..], b"SSHKRL\n\0", b"SSHKRL", b"\xff"] {
            let refused = check(Some(damaged)).map(|checked| checked.revoked);
            assert!(
                matches!(refused, Err(ConfigurationError::RevokedKeys(_))),
                "{refused:?}"
            );
        }
        let mut applied = collect(&folder).unwrap();
        applied.revoked_keys = Some("not Base64".into());
        assert!(matches!(
            applied.check(),
            Err(ConfigurationError::RevokedKeys(_))
        ));
    }

    #[test]
    fn storing_keeps_the_previous_configuration() {
        let folder = tree();
        let (path, previous) = (
            folder.path().join("applied.json"),
            folder.path().join("previous.json"),
        );
        assert_eq!(Applied::load(&path).unwrap(), None);
        let first = Applied {
            generation: 1,
            ..Applied::default()
        };
        let second = Applied {
            generation: 2,
            ..Applied::default()
        };
        first.store(&path, &previous).unwrap();
        second.store(&path, &previous).unwrap();
        assert_eq!(Applied::load(&path).unwrap(), Some(second));
        assert_eq!(Applied::load(&previous).unwrap(), Some(first));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_policy() {
        let folder = tree();
        let path = folder.path().join("applied.json");
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(
            Applied::load(&path),
            Err(ConfigurationError::Damaged { .. })
        ));
    }
}
