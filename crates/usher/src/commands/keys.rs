//! `usher key list`: the keys of users that this host has, and when they expire.

use std::path::Path;

use serde::Serialize;
use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_local::checked::Checked;
use usher_local::paths;
use usher_local::reading::read_bounded;
use usher_local::signing_key::{Credential, SigningKey};
use usher_policy::Name;
use usher_proto::RevokedKeys;
use usher_proto::ssh_key::PublicKey;
use zeroize::Zeroizing;

use super::configuration;
use super::log::{fingerprint, utc};
use crate::failure::{At, Failure};
use crate::output::{Output, row, table, warn};

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum KeyKind {
    /// The key admits the user here.
    Admits,
    /// Certificates of the key admit users here.
    Authority,
    /// The user signs with the key here.
    Signs,
    /// The certificate with which the user signs here.
    Certificate,
}

/// A key of this host, or a certificate.
#[derive(Debug, Serialize)]
struct ListedKey {
    /// Its fingerprint, as `ssh-keygen -l` shows it; of a certificate that of its key.
    fingerprint: String,
    /// The user; null: an authority for all users.
    user: Option<UserName>,
    /// Its use.
    kind: KeyKind,
    /// Its purpose: services with `keys`, or blocks with `key`, of this name. Null: all others.
    purpose: Option<Name>,
    /// When it expires; null: never.
    expires: Option<u64>,
    /// True if that has passed.
    expired: bool,
    /// True if it is on this host's list of revoked keys.
    revoked: bool,
}

impl ListedKey {
    fn new(key: &PublicKey, user: Option<&UserName>, kind: KeyKind, revoked: &RevokedKeys) -> Self {
        Self {
            fingerprint: fingerprint(key),
            user: user.cloned(),
            kind,
            purpose: None,
            expires: None,
            expired: false,
            revoked: revoked.has_key(key),
        }
    }

    fn for_purpose(mut self, purpose: Option<Name>) -> Self {
        self.purpose = purpose;
        self
    }

    fn until(mut self, expires: Option<u64>) -> Self {
        self.expired = expires.is_some_and(|expires| expires <= unix_time());
        self.expires = expires;
        self
    }

    fn end(&self) -> String {
        match self.expires {
            _ if self.revoked => "revoked".into(),
            Some(expires) if self.expired => format!("expired {}", utc(expires)),
            Some(expires) => utc(expires),
            None => "never".into(),
        }
    }
}

/// Prints the keys of users that the configuration in force has, and those of the signer, the first to expire first.
///
/// # Errors
/// When the configuration in force or the signer's folder cannot be read.
pub fn list_keys(output: &Output) -> Result<(), Failure> {
    let checked = configuration::check_applied(&configuration::in_force()?)?;
    let mut listed = admitting(&checked);
    if rustix::process::geteuid().is_root() {
        listed.extend(signing(&checked.revoked)?);
    } else {
        warn("the keys with which users sign here are not listed: only root may read them");
    }
    listed.sort_by_cached_key(|key| {
        let end = key.expires.unwrap_or(u64::MAX);
        (end, key.user.clone(), key.kind, key.fingerprint.clone())
    });
    // JSON of `usher key list`: a list of [`ListedKey`].
    output.print(&listed, || {
        if listed.is_empty() {
            return "no keys\n".into();
        }
        let rows = listed.iter().map(|key| {
            let kind = match key.kind {
                KeyKind::Admits => "admits",
                KeyKind::Authority => "authority",
                KeyKind::Signs => "signs here",
                KeyKind::Certificate => "certificate of the key that signs here",
            };
            let purpose = key.purpose.as_ref();
            row![
                key.end(),
                key.user.as_ref().map_or("all", UserName::as_str),
                purpose.map_or(kind.into(), |name| format!("{kind}, for {name}")),
                key.fingerprint,
            ]
        });
        table(["EXPIRES", "USER", "USE", "KEY"], rows)
    });
    Ok(())
}

/// The keys and authorities by which users are admitted.
fn admitting(checked: &Checked) -> Vec<ListedKey> {
    let revoked = &checked.revoked;
    let of_users = checked.keys.iter().flat_map(|(user, keys)| {
        keys.iter().map(move |key| {
            let kind = if key.options.authority {
                KeyKind::Authority
            } else {
                KeyKind::Admits
            };
            ListedKey::new(&key.key, Some(user), kind, revoked)
                .for_purpose(key.purpose.clone())
                .until(key.options.expires)
        })
    });
    let of_all = checked.authorities.values();
    let of_all = of_all.map(|key| ListedKey::new(key, None, KeyKind::Authority, revoked));
    of_users.chain(of_all).collect()
}

/// The keys with which users sign here, and their certificates.
fn signing(revoked: &RevokedKeys) -> Result<Vec<ListedKey>, Failure> {
    let folder = Path::new(paths::PRIVATE_KEYS_DIRECTORY);
    let entries = match std::fs::read_dir(folder) {
        // A host from which no user connects.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at(folder)?,
    };
    let mut listed = Vec::new();
    for entry in entries {
        let path = entry.at(folder)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The form that `private_key_name` writes. Other files are not the signer's.
        let (user, purpose) = match name.split_once('@') {
            None => (name.parse::<UserName>().ok(), Ok(None)),
            Some((user, purpose)) => (user.parse().ok(), purpose.parse::<Name>().map(Some)),
        };
        let (Some(user), Ok(purpose)) = (user, purpose) else {
            continue;
        };
        let text = Zeroizing::new(read_bounded(&path)?);
        let credential = match Credential::parse(&text) {
            Ok(credential) => credential,
            Err(error) => {
                warn(&format!("{}: {error}; it is not listed", path.display()));
                continue;
            }
        };
        let key = match &credential.key {
            SigningKey::Private(key) => key.public_key(),
            SigningKey::Agent(key) => key,
        };
        listed.push(
            ListedKey::new(key, Some(&user), KeyKind::Signs, revoked).for_purpose(purpose.clone()),
        );
        if let Some(certificate) = &credential.certificate {
            let until = certificate.valid_before;
            listed.push(
                ListedKey::new(key, Some(&user), KeyKind::Certificate, revoked)
                    .for_purpose(purpose)
                    .until((until != u64::MAX).then_some(until)),
            );
        }
    }
    Ok(listed)
}
