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

/// A state of the file of the applied configuration. The default stands for no file.
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

impl Stamp {
    /// Whether the file was made after a time, in seconds since 1970.
    fn is_later(&self, time: u64) -> bool {
        let made = self
            .0
            .and_then(|(_, _, made, _, _)| u64::try_from(made).ok());
        made.is_some_and(|made| made > time)
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

    /// As [`Configuration::load`], from this file.
    pub(crate) fn load_from(path: &Path) -> Result<Self, ConfigurationError> {
        let read = || {
            let mut file = File::open(path)?;
            // The stamp of the file that is read, even if another one replaces it meanwhile.
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

    /// The state of the file from which the configuration was loaded; the default if it came from no file.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The configuration's generation: each apply counts up by one.
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

    /// The present configuration. The caller's stays as it is, whatever is put in force meanwhile.
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

    /// Disables a user in memory, by an order that was given at a time, in seconds since 1970. The caller puts
    /// the returned configuration in force.
    ///
    /// A daemon that has stalled takes the order late, when its command has given up and will not take it
    /// back. If the command has stored the order by then, only the stored one counts.
    pub fn disable(&self, user: UserName, given: u64) -> Configuration {
        let present = self.get();
        let is_stored_since = present.applied.disables(&user) && present.stamp.is_later(given);
        if !is_stored_since {
            self.disabled.lock().insert(user);
        }
        (*present).clone()
    }

    /// Takes [`InForce::disable`] back, so that the stored configuration decides. Does nothing while the
    /// configuration in force is older than the generation `since`. The caller puts the returned one in
    /// force.
    pub fn enable(&self, user: &UserName, since: u64) -> Configuration {
        let mut fresh = (*self.get()).clone();
        if fresh.generation() < since {
            return fresh;
        }
        if self.disabled.lock().remove(user) && !fresh.applied.disables(user) {
            fresh.checked.disabled.remove(user);
        }
        fresh
    }

    /// Warns of users who are disabled in memory only.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let present = self.get();
        let disabled = self.disabled.lock();
        let unstored = disabled.iter();
        let unstored = unstored.filter(|user| !present.applied.disables(user));
        let named: Vec<&str> = unstored.map(UserName::as_str).collect();
        (!named.is_empty()).then(|| {
            format!(
                "users are refused here until the next start of this daemon, whatever is applied, because \
                 `usher user disable` could not store it: {}; run it again, or else `usher user enable`",
                named.join(", ")
            )
        })
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
        assert!(is_disabled(in_force.disable(alice.clone(), 1000)));
        // Another configuration is applied, which does not disable her.
        assert!(is_disabled(configuration(&["bob"])));
        assert!(
            is_disabled(in_force.enable(&alice, 1)),
            "another one is stored"
        );
        assert!(!is_disabled(in_force.enable(&alice, 0)));
        assert!(!is_disabled(configuration(&[])));

        // Then the stored configuration decides.
        assert!(is_disabled(in_force.disable(alice.clone(), 1000)));
        assert!(is_disabled(configuration(&["alice"])));
        assert!(is_disabled(in_force.enable(&alice, 0)));
        assert!(!is_disabled(configuration(&[])));
    }

    #[test]
    fn an_order_that_comes_after_it_was_stored_leaves_nothing() {
        let alice: UserName = "alice".parse().unwrap();
        let stored = |made: i64| {
            let stamp = Stamp(Some((1, 2, made, 0, 3)));
            let checked = configuration(&["alice"]);
            Configuration { stamp, ..checked }
        };
        // The twins: another order was stored long before this one, or none is.
        for (present, is_late) in [
            (stored(1011), true),
            (stored(1000), false),
            (configuration(&[]), false),
        ] {
            let in_force = InForce::new(present);
            let present = in_force.put(in_force.disable(alice.clone(), 1000));
            assert!(present.checked.disabled.contains(&alice));
            // Somebody has removed the mark, and applied.
            let present = in_force.put(configuration(&[]));
            assert_eq!(present.checked.disabled.contains(&alice), !is_late);
            let told = in_force.trouble();
            assert_eq!(told.is_some_and(|told| told.contains("alice")), !is_late);
            // A mark that is stored is no trouble.
            in_force.put(configuration(&["alice"]));
            assert_eq!(in_force.trouble(), None);
        }
    }
}
