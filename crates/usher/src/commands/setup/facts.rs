//! The facts about a host that `usher setup` needs before it changes anything.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use usher_base::{HostName, UserName};
use usher_local::paths;
use usher_local::signing_key::{Credential, SigningKey};
use usher_policy::{Policy, Source, parse_policy};
use usher_proto::HostPublicKey;

use super::machine::Machine;
use crate::accounts;
use crate::commands::{configuration, user};
use crate::failure::Failure;

/// A host, as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The version of its `usher`.
    pub version: String,
    /// Whether the command ran as root.
    pub root: bool,
    /// Its time, in seconds since 1970.
    pub time: f64,
    /// How far its clock is ahead of this host's, in seconds.
    #[serde(skip)]
    pub ahead: f64,
    /// The system's host name.
    pub system_name: String,
    /// Its public host key, one OpenSSH line; null before `usher init`.
    pub key: Option<String>,
    /// The files of its policy folder.
    pub policy: Vec<PolicyFile>,
    /// The files of the policy in force.
    pub in_force: Vec<PolicyFile>,
    /// The number of the user's account; null if it has none.
    pub account: Option<u32>,
    /// The public key by which the user signs here, one OpenSSH line; null if the signer has none.
    pub signs_by: Option<String>,
    /// The user's list of public keys here.
    pub listed: String,
}

/// A file of a policy folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFile {
    /// Its path.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Facts {
    /// The facts about this host.
    ///
    /// # Errors
    /// When files cannot be read.
    pub fn of_this_host(user: &UserName) -> Result<Self, Failure> {
        let applied = configuration::read_applied()?;
        let in_force = configuration::in_force()?.sources.into_iter();
        let listed = applied
            .users
            .get(user)
            .map(|entry| entry.authorized_keys.clone());
        let key = std::fs::read_to_string(paths::HOST_PUBLIC_KEY).ok();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").into(),
            root: rustix::process::geteuid().is_root(),
            time: now(),
            ahead: 0.0,
            system_name: nix::unistd::gethostname()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            key: key.map(|line| line.trim().to_owned()),
            policy: applied.sources.into_iter().map(PolicyFile::from).collect(),
            in_force: in_force.map(PolicyFile::from).collect(),
            account: accounts::look_up(user.as_ref())?.map(|account| account.uid.as_raw()),
            signs_by: signs_by(user)?,
            listed: listed.unwrap_or_default(),
        })
    }

    /// The facts about another host.
    ///
    /// # Errors
    /// When ssh does not reach it, it has no Usher or another version, or its command does not run as root.
    pub fn of(machine: &Machine, user: &UserName) -> Result<Self, Failure> {
        let host = machine.destination();
        let before = now();
        let words = ["usher", "setup-facts", user.as_ref()].map(str::to_owned);
        let output = machine.run(&words, None)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let refused = |why: String| {
            Err(Failure::Refused(format!(
                "{host}: {why}; nothing has changed"
            )))
        };
        match output.status.code() {
            Some(0) => {}
            Some(127) => {
                return refused(
                    "it has no `usher` command: install the same packages there".into(),
                );
            }
            Some(255) => return refused(format!("ssh failed: {}", said.trim())),
            _ => return refused(format!("`usher setup-facts` failed there: {}", said.trim())),
        }
        let value: serde_json::Value = match serde_json::from_slice(&output.stdout) {
            Ok(value) => value,
            Err(error) => {
                return refused(format!(
                    "the answer of `usher setup-facts` is not JSON ({error}); does a file of the login's shell \
                     print something?"
                ));
            }
        };
        let (own, its) = (env!("CARGO_PKG_VERSION"), value["version"].as_str());
        if its != Some(own) {
            return refused(format!(
                "its Usher has version {}, and this host's has {own}: install the same on both",
                its.unwrap_or("?")
            ));
        }
        let facts: Self = match serde_json::from_value(value) {
            Ok(facts) => facts,
            Err(error) => {
                return refused(format!("its `usher setup-facts` is another one ({error})"));
            }
        };
        // The key goes into commands and policies.
        let key = match facts.key.as_deref().map(canonical).transpose() {
            Ok(key) => key,
            Err(why) => return refused(format!("its public host key is unusable: {why}")),
        };
        if !facts.root {
            return refused(
                "the login there is not root's: log in as root@HOST, or give --sudo if it may run commands by \
                 `sudo -n`"
                    .into(),
            );
        }
        // The other clock counts as read halfway through the call.
        let ahead = facts.time - (before + now()) / 2.0;
        Ok(Self {
            key,
            ahead,
            ..facts
        })
    }

    /// The host's name in the policy: the one in its host key, if it has a key.
    ///
    /// # Errors
    /// When the name cannot stand in a policy, or the host's key has another name than the one asked for.
    pub fn host_name(&self, asked: Option<&HostName>, option: &str) -> Result<HostName, Failure> {
        let of_key = self
            .key
            .as_ref()
            .and_then(|line| line.splitn(3, ' ').nth(2));
        let name = match (of_key, asked) {
            (Some(name), Some(asked)) if name != asked.as_ref() => {
                return Err(Failure::Refused(format!(
                    "{option} {asked}: that host's key is there already, and its name is {name}: leave the \
                     option out"
                )));
            }
            (Some(name), _) => name,
            (None, Some(asked)) => return Ok(asked.clone()),
            (None, None) => &self.system_name,
        };
        name.parse().map_err(|_| {
            Failure::Refused(format!(
                "the policy language cannot use the host name {name}; give another with {option}"
            ))
        })
    }
}

impl PolicyFile {
    /// The policy of this file alone; none if it has mistakes by itself.
    pub fn policy(&self) -> Option<Policy> {
        let source = Source {
            name: self.path.clone(),
            text: self.text.clone(),
        };
        parse_policy(&[source]).ok()
    }
}

impl From<Source> for PolicyFile {
    fn from(source: Source) -> Self {
        Self {
            path: source.name,
            text: source.text,
        }
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |time| time.as_secs_f64())
}

/// Parses the line of a public host key, and writes it anew.
fn canonical(line: &str) -> Result<String, String> {
    let key = HostPublicKey::from_openssh(line).map_err(|error| error.to_string())?;
    let name = line.splitn(3, ' ').nth(2).unwrap_or_default();
    let name = name
        .parse::<HostName>()
        .map_err(|error| error.to_string())?;
    Ok(format!("{} {name}", key.to_openssh()))
}

/// The public line of the key with which the user signs here.
fn signs_by(user: &UserName) -> Result<Option<String>, Failure> {
    let problem = |error: &dyn std::fmt::Display| {
        Failure::of_file(&user::private_key_path(user, None), error.to_string())
    };
    let Some(Credential { key, .. }) = user::signing_key(user)? else {
        return Ok(None);
    };
    let public = match &key {
        SigningKey::Private(key) => key.public_key(),
        SigningKey::Agent(key) => key,
    };
    public
        .to_openssh()
        .map(Some)
        .map_err(|error| problem(&error))
}
