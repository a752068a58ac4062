//! The configuration in force: policy text, the users' public keys and the disabled users, in one file
//! that is replaced atomically. The daemons read only this file, so an administrator's half-finished edit
//! below `/etc/usher` never takes effect, and all daemons see one state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use usher_base::{DecodeError, HostName, UserName};
use usher_policy::{
    GroupName, Groups, Host, MAXIMUM_GROUP_MEMBERS, PolicyError, Source, Unresolved,
    mistakes_of_part,
};
use usher_proto::{HostPublicKey, RevokedKeys, RevokedKeysError};

use crate::checked::Checked;
use crate::error::ConfigurationError;
use crate::keys::{self, UserKey, parse_keys};
use crate::paths;
use crate::reading::{file_error, optional};
use usher_daemon::files::write_atomically;

/// The configuration in force.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Applied {
    /// Counts up by one with each apply.
    pub generation: u64,
    /// The policy files in the order of their names, then those that they include.
    pub sources: Vec<Source>,
    /// The groups that the policy names, with their accounts at the time of collection. Later changes in
    /// the name service change nothing in force.
    #[serde(default)]
    pub groups: BTreeMap<GroupName, BTreeSet<String>>,
    /// The copy of another host's files that this was read from, for messages; never in force.
    #[serde(skip)]
    pub copy: Option<PathBuf>,
    /// Files of the policy that could not be read, and why; never in force.
    #[serde(skip)]
    pub unread: Vec<PolicyError>,
    /// Groups that could not be looked up, and why; never in force.
    #[serde(skip)]
    pub unknown_groups: BTreeMap<GroupName, String>,
    /// The identities of hosts that have replaced their keys ([`Applied::continue_hosts`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub identities: BTreeMap<HostName, HostPublicKey>,
    /// Users known on this host.
    pub users: BTreeMap<UserName, UserEntry>,
    /// The list of revoked keys as it was read, in Base64; absent where there is none.
    #[serde(default)]
    pub revoked_keys: Option<String>,
    /// The list of authorities whose certificates count for every user; absent where there is none.
    #[serde(default)]
    pub user_authorities: Option<String>,
}

/// The configuration of one user, besides the policy.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct UserEntry {
    /// Public keys in authorized_keys style: one OpenSSH public key a line, `#` comments. All times
    /// are in UTC.
    pub authorized_keys: String,
    /// The lists of keys for one purpose only, by its name.
    #[serde(default)]
    pub authorized_keys_for: BTreeMap<String, String>,
    /// The reason why the user is disabled; absent for other users.
    pub disabled: Option<String>,
}

impl Applied {
    /// Whether this configuration disables the user.
    #[must_use]
    pub fn disables(&self, user: &UserName) -> bool {
        let entry = self.users.get(user);
        entry.is_some_and(|entry| entry.disabled.is_some())
    }

    /// Reads the configuration in force; `None` when nothing has been applied yet.
    ///
    /// # Errors
    /// When the file exists and cannot be read or is damaged.
    pub fn load(path: &Path) -> Result<Option<Self>, ConfigurationError> {
        let text = present(path)?;
        let applied = text.map(|text| serde_json::from_slice(&text)).transpose();
        applied.map_err(|error| ConfigurationError::Damaged(path.into(), error))
    }

    /// Looks up every group that the policy names, each once. [`Applied::check`] reports failures.
    pub fn look_up_groups<E: std::error::Error>(
        &mut self,
        mut look_up: impl FnMut(&GroupName) -> Result<BTreeSet<String>, E>,
    ) {
        self.groups.clear();
        self.unknown_groups.clear();
        for name in usher_policy::groups_named(&self.sources) {
            match look_up(&name) {
                Ok(accounts) if accounts.len() > MAXIMUM_GROUP_MEMBERS => {
                    let reason = format!("it has more than {MAXIMUM_GROUP_MEMBERS} accounts");
                    self.unknown_groups.insert(name, reason);
                }
                Ok(accounts) => {
                    self.groups.insert(name, accounts);
                }
                Err(error) => {
                    self.unknown_groups.insert(name, error.to_string());
                }
            }
        }
    }

    /// Gives every host the identity that it has in `former`, the configuration in force, if both
    /// configurations have one key of the host in common: so its sessions outlive the replacement of its key,
    /// whatever daemons do meanwhile. A host with another key gets an identity that `former` does not have.
    /// `hosts` are those of this configuration's policy.
    pub fn continue_hosts(&mut self, hosts: &BTreeMap<HostName, Host>, former: &Self) {
        if self.sources == former.sources {
            self.identities.clone_from(&former.identities);
            return;
        }
        self.identities.clear();
        // No session goes on from a configuration that this version does not understand.
        let known = usher_policy::parse_with_groups(&former.sources, &former.known_groups());
        let known = known.map_or_else(|_| BTreeMap::new(), |policy| policy.hosts);
        for (name, host) in hosts {
            let Some(before) = known.get(name) else {
                continue;
            };
            let kept = former.identities.get(name);
            let kept = kept.copied().unwrap_or(before.keys[0]);
            let is_same = host.keys.iter().any(|key| before.keys.contains(key));
            let identity = match (is_same, host.keys[0]) {
                (true, _) => kept,
                (false, key) if key == kept => kept.successor(),
                (false, key) => key,
            };
            if identity != host.keys[0] {
                self.identities.insert(name.clone(), identity);
            }
        }
    }

    /// The groups, known and unknown, in the form of the policy language.
    #[must_use]
    pub fn known_groups(&self) -> Groups {
        let known = self.groups.iter();
        let known = known.map(|(name, accounts)| (name.clone(), Ok(accounts.clone())));
        let unknown = self.unknown_groups.iter();
        let unknown = unknown.map(|(name, reason)| (name.clone(), Err(Unresolved(reason.clone()))));
        known.chain(unknown).collect()
    }

    /// Checks the whole: policy text and every user's keys.
    ///
    /// # Errors
    /// All errors of the policy, or the first of the key lists.
    pub fn check(&self) -> Result<Checked, ConfigurationError> {
        if !self.unread.is_empty() {
            let mut errors = self.unread.clone();
            errors.extend(mistakes_of_part(&self.sources, &self.known_groups()));
            return Err(ConfigurationError::Policy(errors));
        }
        let policy = usher_policy::parse_with_groups(&self.sources, &self.known_groups())
            .map_err(ConfigurationError::Policy)?;
        let keys = self
            .users
            .iter()
            .map(|(user, entry)| Ok((user.clone(), keys_of(user, entry)?)))
            .collect::<Result<_, ConfigurationError>>()
            .map_err(|error| match &self.copy {
                None => error,
                Some(copy) => ConfigurationError::UserOfCopy(
                    paths::within(copy, paths::USERS_DIRECTORY),
                    Box::new(error),
                ),
            })?;
        let disabled = self
            .users
            .iter()
            .filter(|(_, entry)| entry.disabled.is_some());
        let revoked = self.read_revoked_keys().map_err(|error| {
            ConfigurationError::RevokedKeys(self.path_of(paths::REVOKED_KEYS), error)
        })?;
        let authorities = self.user_authorities.as_deref().unwrap_or_default();
        let authorities = keys::parse_authorities(authorities).map_err(|(line, reason)| {
            ConfigurationError::Line {
                list: self.path_of(paths::USER_AUTHORITIES).display().to_string(),
                line,
                reason,
            }
        })?;
        let services_by_number = policy
            .services
            .values()
            .map(|service| (service.id, service.name.clone()))
            .collect();
        Ok(Checked {
            policy,
            services_by_number,
            identities: self.identities.clone(),
            keys,
            disabled: disabled.map(|(user, _)| user.clone()).collect(),
            authorities,
            revoked,
        })
    }

    fn read_revoked_keys(&self) -> Result<RevokedKeys, RevokedKeysError> {
        let Some(base64) = &self.revoked_keys else {
            return Ok(RevokedKeys::default());
        };
        let damaged = DecodeError::Malformed { field: "Base64" };
        let bytes = Base64::decode_vec(base64).map_err(|_| RevokedKeysError::Damaged(damaged))?;
        RevokedKeys::parse(&bytes)
    }

    /// The path from which a file of /etc/usher was read.
    fn path_of(&self, file: &str) -> PathBuf {
        let folder = self.copy.as_deref();
        paths::within(
            folder.unwrap_or(Path::new(paths::CONFIGURATION_DIRECTORY)),
            file,
        )
    }

    /// Puts this configuration in force for the daemons' next reload: the present one becomes
    /// the previous one, unless it is damaged, then the file is replaced. Durable when it returns.
    ///
    /// # Errors
    /// When a file cannot be written; the configuration in force is then unchanged.
    pub fn store(&self, path: &Path, previous: &Path) -> Result<(), ConfigurationError> {
        if let Some(present) = present(path)?
            && serde_json::from_slice::<Self>(&present).is_ok()
        {
            write_atomically(previous, &present, 0o644)
                .map_err(|error| file_error(previous, error))?;
        }
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ConfigurationError::Damaged(path.into(), error))?;
        write_atomically(path, &text, 0o644).map_err(|error| file_error(path, error))
    }
}

/// The bytes of the stored form, if there is one.
fn present(path: &Path) -> Result<Option<Vec<u8>>, ConfigurationError> {
    optional(std::fs::read(path).map_err(|error| file_error(path, error)))
}

/// All keys of a user.
///
/// # Errors
/// Names the first list or line that is wrong.
fn keys_of(user: &UserName, entry: &UserEntry) -> Result<Vec<UserKey>, ConfigurationError> {
    let mut keys = parse_keys(user, None, &entry.authorized_keys)?;
    for (purpose, list) in &entry.authorized_keys_for {
        let purpose = purpose.parse().map_err(|_| ConfigurationError::KeysFor {
            user: user.clone(),
            found: purpose.clone(),
        })?;
        keys.extend(parse_keys(user, Some(&purpose), list)?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::{collect, tree};
    use crate::copy::ConfigurationCopy;

    #[test]
    fn a_disabled_user_is_disabled_and_another_is_not() {
        let folder = tree();
        for (name, reason) in [("bob", "left\n"), ("carol", "")] {
            let entry = folder.path().join("users").join(name);
            std::fs::create_dir_all(&entry).unwrap();
            std::fs::write(entry.join("disabled"), reason).unwrap();
        }
        let applied = collect(&folder).unwrap();
        let checked = applied.check().unwrap();
        for (name, disabled) in [
            ("bob", true),
            ("carol", true),
            ("alice", false),
            ("nobody", false),
        ] {
            let user = name.parse().unwrap();
            assert_eq!(checked.disabled.contains(&user), disabled, "{name}");
        }
    }

    // Threat model: A174
    #[test]
    fn a_host_stays_the_same_while_its_key_is_replaced_step_by_step() {
        const KEYS: [&str; 3] = [
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG/kNziXQpQi0AFJCKGW0vsllqBnwekfni2XQY5hfnUW",
        ];
        let with = |keys: &[usize]| {
            let keys: Vec<String> = keys
                .iter()
                .map(|&key| format!("\"{}\"", KEYS[key]))
                .collect();
            let text = match &keys[..] {
                [] => String::new(),
                keys => format!(
                    "host laptop {{ address 10.77.0.1; key {}; }}\n",
                    keys.join(", ")
                ),
            };
            let name = "hosts.policy".into();
            Applied {
                sources: vec![Source { name, text }],
                ..Applied::default()
            }
        };
        let laptop = "laptop".parse().unwrap();
        let mut present = with(&[0]);
        let identity = |applied: &Applied| applied.check().unwrap().identity_of(&laptop);
        let first = identity(&present);
        let mut put = |keys: &[usize]| {
            let mut fresh = with(keys);
            let hosts = fresh.check().unwrap().policy.hosts;
            fresh.continue_hosts(&hosts, &present);
            // The configuration as the daemons read it.
            present = serde_json::from_slice(&serde_json::to_vec(&fresh).unwrap()).unwrap();
            identity(&present)
        };
        for keys in [&[0, 1][..], &[1], &[1], &[2, 1], &[2]] {
            assert_eq!(put(keys), first, "{keys:?}");
        }
        // A host whose key is replaced in one step is another host, even with the key that it had at first.
        let second = put(&[0]);
        assert_ne!(second, first);
        assert_eq!(put(&[0, 1]), second);
        let third = put(&[2]);
        assert!(third != first && third != second);
        assert_eq!(put(&[]), None);
        assert_eq!(put(&[1]), Some(KEYS[1].parse().unwrap()));
    }

    #[test]
    fn a_group_with_too_many_accounts_is_a_mistake() {
        let folder = tree();
        let path = folder.path().join("policy.d/groups.policy");
        std::fs::write(path, "users u { group staff, crowd; }\n").unwrap();
        let mut applied = collect(&folder).unwrap();
        let accounts = |count: usize| (0..count).map(|number| format!("a{number}")).collect();
        let mut look_up = |of_crowd: usize| {
            applied.look_up_groups(|group| match group.as_ref() {
                "crowd" => Ok(accounts(of_crowd)),
                _ => Ok::<_, std::fmt::Error>(accounts(1)),
            });
            (applied.groups.len(), applied.check().is_ok())
        };
        assert_eq!(look_up(MAXIMUM_GROUP_MEMBERS), (2, true));
        assert_eq!(look_up(MAXIMUM_GROUP_MEMBERS + 1), (1, false));
        let reason = &applied.unknown_groups["crowd"];
        assert_eq!(reason, "it has more than 65536 accounts");
    }

    #[test]
    fn a_damaged_list_of_revoked_keys_is_an_error() {
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
                matches!(refused, Err(ConfigurationError::RevokedKeys { .. })),
                "{refused:?}"
            );
        }
        let mut applied = collect(&folder).unwrap();
        applied.revoked_keys = Some("not Base64".into());
        assert!(matches!(
            applied.check(),
            Err(ConfigurationError::RevokedKeys { .. })
        ));
    }

    #[test]
    fn a_mistake_is_reported_with_the_path_of_its_copy() {
        let folder = tree();
        let root = folder.path();
        let copy = ConfigurationCopy::open(root).unwrap();
        let told = |copy: Option<&ConfigurationCopy>| {
            let read = Applied::collect(root, copy);
            read.unwrap().check().map(|_| ()).unwrap_err().to_string()
        };
        for (file, of_this_host, line) in [
            ("revoked_keys", "/etc/usher/revoked_keys", ": "),
            ("user_ca_keys", "/etc/usher/user_ca_keys", " line 1: "),
            (
                "users/alice/authorized_keys.git",
                "alice: authorized_keys.git",
                " line 1: ",
            ),
        ] {
            std::fs::write(root.join(file), "nonsense").unwrap();
            let own = told(None);
            assert!(own.starts_with(&format!("{of_this_host}{line}")), "{own}");
            let of_copy = root.join(file).display().to_string();
            let of_copy = of_copy.replace("alice/", "alice: ");
            let copys = told(Some(&copy));
            assert!(copys.starts_with(&format!("{of_copy}{line}")), "{copys}");
            std::fs::remove_file(root.join(file)).unwrap();
        }
        let path = root.join("users/alice/authorized_keys.any");
        std::fs::write(path, "").unwrap();
        let users = root.join("users").display().to_string();
        let copys = told(Some(&copy));
        assert!(
            copys.starts_with(&format!("{users}/alice: authorized_keys.any: ")),
            "{copys}"
        );
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
        assert_eq!(Applied::load(&path).unwrap(), Some(second.clone()));
        assert_eq!(Applied::load(&previous).unwrap(), Some(first.clone()));
        // A damaged configuration does not become the previous one.
        std::fs::write(&path, "{").unwrap();
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
