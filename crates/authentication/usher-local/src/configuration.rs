//! The configuration in force in a daemon.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use usher_base::UserName;
use usher_daemon::control_server::Failed;

use crate::applied::Applied;
use crate::checked::Checked;
use crate::error::ConfigurationError;
use crate::paths;
use crate::reading::{file_error, optional};
use crate::requests::{Prepare, PreparedView};

/// A configuration whose check found no mistake, and nothing that this version cannot enforce.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// The stored form.
    pub applied: Applied,
    /// The checked form.
    pub checked: Checked,
    stamp: Stamp,
}

/// A state of the file of the applied configuration. The default: there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp(Option<(u64, u64, i64, i64, u64)>);

impl From<&Metadata> for Stamp {
    fn from(file: &Metadata) -> Self {
        let (device, inode) = (file.dev(), file.ino());
        Self(Some((
            device,
            inode,
            file.ctime(),
            file.ctime_nsec(),
            file.size(),
        )))
    }
}

impl Configuration {
    /// Loads and checks the stored configuration. A host without one has an empty policy, which
    /// permits nothing.
    ///
    /// # Errors
    /// When the file is there and cannot be read, is damaged, fails its check, or has what this
    /// version cannot enforce.
    pub fn load() -> Result<Self, ConfigurationError> {
        Self::load_from(Path::new(paths::APPLIED))
    }

    /// The same, from this file.
    pub(crate) fn load_from(path: &Path) -> Result<Self, ConfigurationError> {
        let read = || {
            let mut file = File::open(path)?;
            // Of the file that is read, whichever replaces it meanwhile.
            let stamp = Stamp::from(&file.metadata()?);
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            Ok((stamp, text))
        };
        let found = optional(read().map_err(|error| file_error(path, error)))?;
        let Some((stamp, text)) = found else {
            return Self::check(Applied::default());
        };
        let applied = serde_json::from_slice(&text)
            .map_err(|error| ConfigurationError::Damaged(path.into(), error))?;
        let checked = Self::check(applied)?;
        Ok(Self { stamp, ..checked })
    }

    /// Reads and checks a configuration that is not stored, from the JSON of an [`Applied`].
    ///
    /// # Errors
    /// When it is damaged, fails its check, or has what this version cannot enforce.
    pub fn read(json: &[u8]) -> Result<Self, ConfigurationError> {
        Self::check(serde_json::from_slice(json).map_err(ConfigurationError::Unreadable)?)
    }

    /// As [`Configuration::read`], for the candidate of a request. Another thread does it: a large one takes
    /// a while, and connections and other requests need the daemon's own thread.
    ///
    /// # Errors
    /// As [`Configuration::read`].
    pub async fn candidate(candidate: Vec<u8>) -> Result<Self, Failed> {
        Ok(tokio::task::spawn_blocking(move || Self::read(&candidate)).await??)
    }

    /// Answers [`Prepare`] for a daemon that takes every valid configuration.
    ///
    /// # Errors
    /// As [`Configuration::read`].
    pub async fn prepare(request: Prepare) -> Result<PreparedView, Failed> {
        Self::candidate(request.into_candidate()).await?;
        Ok(PreparedView {})
    }

    fn check(applied: Applied) -> Result<Self, ConfigurationError> {
        let checked = applied.check()?.enforceable()?;
        Ok(Self {
            applied,
            checked,
            stamp: Stamp::default(),
        })
    }

    /// The state of the file from which it was loaded; the default for one that was not.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Its number: each apply counts up by one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.applied.generation
    }
}

/// The configuration in force in a daemon, and the users whom it refuses besides: an administrator
/// can disable a user even when the disk is full and the configuration cannot be stored.
#[derive(Debug)]
pub struct InForce {
    current: RwLock<Arc<Configuration>>,
    /// Disabled in memory only.
    disabled: Mutex<BTreeSet<UserName>>,
}

impl InForce {
    /// Starts with this configuration.
    #[must_use]
    pub fn new(configuration: Configuration) -> Self {
        Self {
            current: RwLock::new(Arc::new(configuration)),
            disabled: Mutex::default(),
        }
    }

    /// The present one. The caller keeps it as it is, whatever is put in force meanwhile.
    #[must_use]
    pub fn get(&self) -> Arc<Configuration> {
        Arc::clone(&self.current.read())
    }

    /// Puts a configuration in force and returns it. Users who are disabled in memory stay so.
    pub fn put(&self, mut fresh: Configuration) -> Arc<Configuration> {
        let disabled = self.disabled.lock();
        fresh.checked.disabled.extend(disabled.iter().cloned());
        let fresh = Arc::new(fresh);
        *self.current.write() = Arc::clone(&fresh);
        fresh
    }

    /// Disables a user in memory. The caller puts the returned configuration in force.
    pub fn disable(&self, user: UserName) -> Configuration {
        self.disabled.lock().insert(user);
        (*self.get()).clone()
    }

    /// Takes that back: then the stored configuration decides. The caller puts the returned one in
    /// force.
    pub fn enable(&self, user: &UserName) -> Configuration {
        let mut fresh = (*self.get()).clone();
        let stored = fresh.applied.users.get(user);
        if self.disabled.lock().remove(user) && stored.is_none_or(|user| user.disabled.is_none()) {
            fresh.checked.disabled.remove(user);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::applied::UserEntry;

    fn configuration(disabled: &[&str]) -> Configuration {
        let mut applied = Applied::default();
        for user in disabled {
            let entry = UserEntry {
                disabled: Some("left".into()),
                ..UserEntry::default()
            };
            applied.users.insert(user.parse().unwrap(), entry);
        }
        Configuration::check(applied).unwrap()
    }

    #[test]
    fn a_disabled_user_stays_so_until_that_is_taken_back() {
        let alice: UserName = "alice".parse().unwrap();
        let in_force = InForce::new(configuration(&[]));
        let is_disabled = |fresh| {
            let present = in_force.put(fresh);
            assert!(Arc::ptr_eq(&present, &in_force.get()));
            present.checked.disabled.contains(&alice)
        };
        assert!(!is_disabled(configuration(&[])));
        assert!(is_disabled(in_force.disable(alice.clone())));
        // Another apply, which does not name her.
        assert!(is_disabled(configuration(&["bob"])));
        assert!(!is_disabled(in_force.enable(&alice)));
        assert!(!is_disabled(configuration(&[])));

        // Then the stored configuration decides.
        assert!(is_disabled(in_force.disable(alice.clone())));
        assert!(is_disabled(configuration(&["alice"])));
        assert!(is_disabled(in_force.enable(&alice)));
        assert!(!is_disabled(configuration(&[])));
    }
}
