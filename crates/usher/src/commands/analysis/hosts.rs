//! The policies that a question is about: this host's own, or copies of several hosts' /etc/usher.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use usher_analysis::{FormerKey, HostPolicy, KeyFault, Network, UserState};
use usher_base::{HostName, UserName};
use usher_daemon::clock::unix_time;
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::copy::ConfigurationCopy;
use usher_policy::{Clause, Groups, Name, Place, Places, Source, parse_with_places};

use crate::commands::log::fingerprint;
use crate::commands::{configuration, connect, groups};
use crate::failure::{At, Failure};

/// The options that choose policies.
#[derive(Debug, Args)]
pub struct Hosts {
    /// Use this copy of a host's /etc/usher instead of this host's; repeat for more
    #[arg(long = "host", value_name = "NAME=DIRECTORY")]
    copies: Vec<HostCopy>,
    /// Use the copies in this directory: one of /etc/usher for each host, under the host's name
    #[arg(long = "hosts", value_name = "DIRECTORY")]
    folder: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct HostCopy {
    name: HostName,
    folder: PathBuf,
}

impl FromStr for HostCopy {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let form = "write NAME=DIRECTORY: a host and the directory of its policy";
        let parts = text.split_once('=');
        let (name, folder) = parts.ok_or_else(|| Failure::refused(form))?;
        Ok(Self {
            name: connect::parse_name(name)?,
            folder: folder.into(),
        })
    }
}

/// Policies with their texts.
pub struct Loaded {
    /// The hosts that are known.
    pub network: Network,
    /// The files of each host, and the groups that they name.
    pub sources: BTreeMap<HostName, (Vec<Source>, Groups)>,
}

impl Hosts {
    /// Reads and checks the policies.
    ///
    /// # Errors
    /// When one cannot be read or has mistakes, or two belong to one host.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let mut copies = self.copies.clone();
        if let Some(folder) = &self.folder {
            copies.extend(copies_in(folder)?);
        }
        if copies.is_empty() {
            return Loaded::of(vec![this_host()?]);
        }
        Loaded::read(copies)
    }
}

/// Reads and checks all copies in a directory.
pub fn load_all(folder: &Path) -> Result<Loaded, Failure> {
    Loaded::read(copies_in(folder)?)
}

impl Loaded {
    /// A configuration of this host alone.
    ///
    /// # Errors
    /// When it has no `host` block of this host.
    pub fn of_this_host(applied: Applied, checked: Checked) -> Result<Self, Failure> {
        Self::of(vec![named(applied, checked)?])
    }

    fn read(copies: Vec<HostCopy>) -> Result<Self, Failure> {
        let mut read = Vec::new();
        for HostCopy { name, folder } in copies {
            let copy = ConfigurationCopy::open(&folder)?;
            if let Some(reason) = wrong_level(&folder) {
                return Err(Failure::Refused(reason));
            }
            // Without this check a missing folder would be an empty policy, which permits nothing.
            if !copy.has_folder("policy.d")? {
                return Err(io::Error::from(io::ErrorKind::NotFound)).at(folder.join("policy.d"));
            }
            let users_are_known = copy.has_folder("users")?;
            let mut applied = Applied::collect(&folder, Some(&copy))?;
            applied.look_up_groups(|group| groups::accounts_in_copy(&copy, group));
            let checked = configuration::check_applied(&applied)?;
            read.push((name, applied, checked, users_are_known));
        }
        Self::of(read)
    }

    fn of(read: Vec<Read>) -> Result<Self, Failure> {
        let now = unix_time();
        let mut sources = BTreeMap::new();
        let mut hosts = Vec::new();
        for (name, applied, checked, users_are_known) in read {
            let texts = (applied.sources.clone(), applied.known_groups());
            sources.insert(name.clone(), texts);
            let users = if users_are_known {
                user_state(&checked, now)
            } else {
                UserState::default()
            };
            hosts.push(HostPolicy {
                name,
                policy: checked.policy.at(now),
                users,
            });
        }
        let network = Network::new(hosts).map_err(Failure::refused)?;
        Ok(Loaded { network, sources })
    }
}

/// A host, its files, its checked configuration, and whether its users are known.
type Read = (HostName, Applied, Checked, bool);

/// The reason why a directory is no copy of a host's /etc/usher, if it is above or below one.
fn wrong_level(folder: &Path) -> Option<String> {
    if has_policy(folder) {
        return None;
    }
    let shown = folder.display();
    if folder.ends_with("policy.d") {
        return Some(format!(
            "{shown}: give the directory above it, which is the copy of the host's /etc/usher"
        ));
    }
    let entries = std::fs::read_dir(folder).ok()?;
    let mut copies = entries.flatten().map(|entry| entry.path());
    let copy = copies.find(|path| has_policy(path))?;
    Some(format!(
        "{shown} is no copy of a host's /etc/usher, but contains such copies: give one with --host, \
         such as {}, or all with --hosts {shown}",
        copy.display()
    ))
}

fn has_policy(folder: &Path) -> bool {
    folder.join("policy.d").is_dir()
}

fn copies_in(folder: &Path) -> Result<Vec<HostCopy>, Failure> {
    if has_policy(folder) {
        let shown = folder.display();
        return Err(Failure::Refused(format!(
            "{shown} is the copy of one host's /etc/usher: give the directory above it, which has a \
             directory for each host"
        )));
    }
    let mut copies = Vec::new();
    for entry in std::fs::read_dir(folder).at(folder)? {
        let path = entry.at(folder)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Hidden entries belong to version control or an editor; files are notes.
        if name.starts_with('.') || !path.is_dir() {
            continue;
        }
        let name = name.parse().map_err(|_| {
            Failure::of_file(&path, "not a host's name; rename or move the directory")
        })?;
        copies.push(HostCopy { name, folder: path });
    }
    if copies.is_empty() {
        let folder = folder.display();
        return Err(Failure::Refused(format!(
            "{folder} has no directory of a host: make HOST/policy.d for each"
        )));
    }
    copies.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(copies)
}

/// Reads this host's files below /etc/usher, not the configuration in force.
fn this_host() -> Result<Read, Failure> {
    if !configuration::is_prepared() {
        return Err(Failure::Refused(format!(
            "{}, or use copies of hosts' policies with --hosts",
            configuration::NOT_PREPARED
        )));
    }
    let applied = configuration::collect()?;
    let checked = configuration::check_applied(&applied)?;
    named(applied, checked)
}

/// A configuration of this host, with the name that its policy has for this host.
fn named(applied: Applied, checked: Checked) -> Result<Read, Failure> {
    let own = checked.policy.host_by_key(&configuration::host_key()?);
    let own = own.ok_or_else(|| Failure::refused(configuration::NO_HOST))?;
    Ok((own.name.clone(), applied, checked, true))
}

/// Users who are disabled, users who have a valid key, and what authorities can certify.
fn user_state(checked: &Checked, now: u64) -> UserState {
    let mut keys: BTreeMap<Option<Name>, BTreeSet<UserName>> = BTreeMap::new();
    let mut authorities: BTreeMap<Option<Name>, BTreeMap<String, BTreeSet<UserName>>> =
        BTreeMap::new();
    let mut former_keys: BTreeMap<Option<Name>, BTreeMap<UserName, Vec<FormerKey>>> =
        BTreeMap::new();
    for (user, user_keys) in &checked.keys {
        for key in user_keys {
            let fault = if checked.revoked.has_key(&key.key) {
                KeyFault::Revoked
            } else if key.has_expired(now) {
                KeyFault::Expired
            } else {
                let users = keys.entry(key.purpose.clone()).or_default();
                users.insert(user.clone());
                continue;
            };
            let users = former_keys.entry(key.purpose.clone()).or_default();
            users.entry(user.clone()).or_default().push(FormerKey {
                fingerprint: fingerprint(&key.key),
                fault,
            });
        }
        for line in checked.good_authorities(user_keys, now) {
            for principal in line.trusted(user) {
                let purpose = authorities.entry(line.purpose.clone()).or_default();
                let users = purpose.entry(principal.to_owned()).or_default();
                users.insert(user.clone());
            }
        }
    }
    UserState {
        disabled: checked.disabled.iter().cloned().collect(),
        keys: Some(keys),
        former_keys,
        authorities,
        certified: checked.has_authority(),
    }
}

/// The places of the clauses of some hosts.
pub struct Lines<'l>(BTreeMap<&'l HostName, Places<'l>>);

impl<'l> Lines<'l> {
    /// Reads the texts of these hosts again, with places.
    ///
    /// # Errors
    /// The mistakes of a policy. The policies were checked before, so they have none.
    pub fn of(loaded: &'l Loaded, concerned: impl Fn(&HostName) -> bool) -> Result<Self, Failure> {
        let concerned = loaded.sources.iter().filter(|(host, _)| concerned(host));
        let places = concerned.map(|(host, (sources, groups))| {
            let parsed = parse_with_places(sources, groups);
            let (_, places) = parsed.map_err(|errors| Failure::Policy {
                errors,
                sources: sources.clone(),
            })?;
            Ok((host, places))
        });
        places.collect::<Result<_, Failure>>().map(Self)
    }

    /// The place of a clause; none for a default.
    pub fn place(&self, host: &HostName, clause: &Clause) -> Option<Place> {
        self.0.get(host)?.place(clause)
    }

    /// The place of a clause, or of the block that lacks it.
    pub fn nearest(&self, host: &HostName, clause: &Clause) -> Option<Place> {
        self.0.get(host)?.nearest(clause)
    }
}
