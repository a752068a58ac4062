//! The users' signing keys: one file per user and purpose, readable by the signer only, and read for
//! each signature. A private key is wiped afterwards (`ssh_key` zeroizes keys when dropped); if the
//! user's ssh-agent signs, the file has the public key.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_local::keys::private_key_name;
use usher_local::paths;
use usher_local::signing_key::{Credential, SigningKey};
use usher_policy::{Name, Policy};
use usher_proto::refusal::Refusal;
use usher_proto::ssh_key::PublicKey;
use zeroize::Zeroizing;

/// Identifies the file of a user's key: it changes when the key is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    changed: (i64, i64),
}

/// The folder of the keys.
pub struct Keys(PathBuf);

impl Default for Keys {
    fn default() -> Self {
        Self::at(paths::PRIVATE_KEYS_DIRECTORY)
    }
}

impl Keys {
    /// The keys in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The present stamp of the user's key for `purpose`; `None` if the user has no key.
    pub fn stamp(&self, user: &UserName, purpose: Option<&Name>) -> Option<Stamp> {
        let file = std::fs::metadata(self.path(user, purpose)).ok()?;
        Some(Stamp {
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }

    fn path(&self, user: &UserName, purpose: Option<&Name>) -> PathBuf {
        self.0.join(private_key_name(user, purpose))
    }

    /// Reads the user's signing key for `purpose`.
    ///
    /// # Errors
    /// [`Refusal::NoPrivateKey`] when the user has no usable key; the log has the reason.
    pub fn load(&self, user: &UserName, purpose: Option<&Name>) -> Result<Credential, Refusal> {
        let path = self.path(user, purpose);
        let text = Zeroizing::new(std::fs::read_to_string(&path).map_err(|error| {
            tracing::info!(%user, path = %path.display(), %error, "no private key");
            Refusal::NoPrivateKey
        })?);
        Credential::parse(&text).map_err(|error| {
            tracing::warn!(name: events::KEY_REFUSED, %user, path = %path.display(), %error, "this key cannot sign");
            Refusal::NoPrivateKey
        })
    }

    /// The keys that users' agents sign with, in the order of the users' names.
    ///
    /// # Errors
    /// When the folder cannot be read; the log reports a file that cannot be read.
    pub fn agents(&self) -> io::Result<Vec<(UserName, PublicKey)>> {
        let mut agents = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            // A file that is being written has a name that no user can have.
            let name = entry?.file_name();
            if let Some((user, purpose)) = name.to_str().and_then(owner_of)
                && let Ok(found) = self.load(&user, purpose.as_ref())
                && let SigningKey::Agent(key) = found.key
            {
                agents.push((user, key));
            }
        }
        agents.sort_by(|(one, _), (other, _)| one.as_ref().cmp(other.as_ref()));
        Ok(agents)
    }

    /// Whether an agent signs for the user, for the purposes that the client policy permits. Reads only
    /// that user's files, however many others there are, because every user may ask.
    pub fn has_agent(&self, user: &UserName, policy: &Policy) -> io::Result<bool> {
        let (services, now) = (policy.client_services(), unix_time());
        let purposes: BTreeSet<_> = services
            .filter(|service| service.users.has(user, now))
            .map(|service| service.key.as_ref())
            .chain([None])
            .collect();
        for purpose in purposes {
            if self.path(user, purpose).try_exists()? && self.is_agents(user, purpose) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the user's agent signs for this purpose.
    pub fn is_agents(&self, user: &UserName, purpose: Option<&Name>) -> bool {
        let found = self.load(user, purpose);
        found.is_ok_and(|found| matches!(found.key, SigningKey::Agent(_)))
    }
}

/// The user and the purpose of the key in a file of this name.
fn owner_of(name: &str) -> Option<(UserName, Option<Name>)> {
    match name.split_once('@') {
        Some((user, purpose)) => Some((user.parse().ok()?, Some(purpose.parse().ok()?))),
        None => Some((name.parse().ok()?, None)),
    }
}
