//! The commands that Usher has charon carry out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as FilePath;
use std::time::Duration;

use usher_protection::IkePublicKey;

use crate::configuration::{Configuration, HYBRID_ALGORITHM};
use crate::error::IkeError;
use crate::explain::{explain, has_duplicate};
use crate::key::{IkeKey, fingerprint, is_fingerprint};
use crate::paths::{Paths, is_ours, key_of};
use crate::sas::{ChildSa, IkeSa, Sas};
use crate::vici::{Connection, MessageError, Section};

/// How long charon may take for an answer that needs no other host.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The time after which an attempt counts as failed. charon goes on with what it has begun.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// Events after which the list of SAs has changed.
const EVENTS: [&str; 4] = ["ike-updown", "child-updown", "ike-rekey", "child-rekey"];

/// The level of charon's log that an attempt reports. At level 2 and above, the thread that serves the
/// sockets of VICI logs, too, and charon may hang for ever (5.9.8; strongSwan issue 566).
const LOG_LEVEL: &str = "1";

/// Limit of lines of charon's log that are kept of an attempt.
const MOST_LINES: usize = 64;

/// Limit of connections, or IKE SAs and pairs of SAs in all, that are kept of a list. Beyond that a list is
/// nonsense.
const MOST_SAS: usize = 65_536;

/// A charon that has answered.
#[derive(Debug)]
pub(crate) struct Charon {
    commands: Connection,
    /// The version that charon reports: `charon-systemd 5.9.8`.
    pub(crate) version: String,
    /// True if it can do hybrid key exchanges.
    pub(crate) hybrid: bool,
    /// charon's names of the private keys that this process has loaded, by their fingerprints.
    keys: BTreeMap<String, String>,
    /// The connections as they were loaded, by name.
    loaded: BTreeMap<String, Section>,
}

/// Objects that this process has loaded into charon, and another program has unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unloaded {
    /// How many connections.
    pub(crate) connections: usize,
    /// A key of this host.
    pub(crate) key: bool,
}

impl Unloaded {
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

impl Charon {
    /// Connects to charon and asks for its version. The second connection is for its events, which do not
    /// wait for its answers.
    pub(crate) async fn open(socket: &FilePath) -> Result<(Self, Connection), IkeError> {
        let mut commands = Connection::open(socket, ANSWER_LIMIT).await?;
        let said = commands.command("version", &Section::new()).await?;
        let [daemon, version] = ["daemon", "version"].map(|name| said.text(name));
        let algorithms = commands.command("get-algorithms", &Section::new()).await?;
        let hybrid = algorithms
            .sections()
            .any(|(_, section)| section.names().any(|name| name == HYBRID_ALGORITHM));
        for listed in ["list-sa", "list-conn"] {
            commands.register(listed).await?;
        }
        let mut events = Connection::open(socket, ANSWER_LIMIT).await?;
        for event in EVENTS {
            events.register(event).await?;
        }
        let charon = Self {
            commands,
            version: format!(
                "{} {}",
                daemon.as_deref().unwrap_or("charon"),
                version.as_deref().unwrap_or("of unknown version")
            ),
            hybrid,
            keys: BTreeMap::new(),
            loaded: BTreeMap::new(),
        };
        Ok((charon, events))
    }

    /// Makes charon's connections equal to the configuration: removes what the policy has revoked, loads
    /// new and changed connections, and then removes the others. Returns the reasons that connections
    /// could not be loaded, by name.
    pub(crate) async fn configure(
        &mut self,
        wanted: &Configuration,
        paths: &Paths,
    ) -> Result<BTreeMap<String, String>, IkeError> {
        let own = paths.own_keys();
        let is_kept = |name: &str| paths.have(name) || paths.kept_for(name).is_some();
        // First, so that it does not stay if charon refuses something later.
        self.unload(is_kept, &own).await?;
        self.end_others(is_kept).await?;
        let without_key = self.load_keys(wanted, &own).await?;
        let mut refused = BTreeMap::new();
        for path in paths.iter() {
            if let Some(reason) = without_key.get(&path.own) {
                refused.insert(path.connection.clone(), reason.clone());
                continue;
            }
            let message = wanted.load_connection(path, self.hybrid);
            if self.loaded.get(&path.connection) == Some(&message) {
                continue;
            }
            match self.commands.command("load-conn", &message).await {
                Ok(_) => {
                    self.loaded.insert(path.connection.clone(), message);
                }
                Err(IkeError::Refused { reason, .. }) => {
                    refused.insert(path.connection.clone(), reason);
                }
                Err(other) => return Err(other),
            }
        }
        self.unload(|name| paths.have(name), &own).await?;
        Ok(refused)
    }

    /// Loads this host's keys that have these fingerprints. Returns charon's reasons against keys that it
    /// refuses. Then only peers of the other algorithm have SAs until the next configuration.
    async fn load_keys(
        &mut self,
        wanted: &Configuration,
        own: &BTreeSet<String>,
    ) -> Result<BTreeMap<IkePublicKey, String>, IkeError> {
        let mut without = BTreeMap::new();
        for key in &wanted.keys {
            let fingerprint = fingerprint(&key.public());
            if !own.contains(&fingerprint) {
                continue;
            }
            match self.load_key(key, &fingerprint).await {
                Ok(()) => {}
                Err(IkeError::Refused { reason, .. }) if own.len() > 1 => {
                    let algorithm = key.public().algorithm();
                    let reason =
                        format!("charon does not take this host's {algorithm} key: {reason}");
                    without.insert(key.public(), reason);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(without)
    }

    /// Loads a key of this host, which has this fingerprint.
    async fn load_key(&mut self, key: &IkeKey, expected: &str) -> Result<(), IkeError> {
        let message = Section::new()
            .value("type", "any")
            .value("data", key.to_pkcs8().as_slice());
        let answer = self.commands.command("load-key", &message).await?;
        let id = answer.text("id").unwrap_or_else(|| expected.to_owned());
        if id != expected {
            tracing::warn!(
                id,
                expected,
                "charon names the IKE key otherwise than Usher expects: a later protector will not find \
                 it there; restart charon when protection ends"
            );
        }
        self.keys.insert(expected.to_owned(), id);
        Ok(())
    }

    /// Removes all of Usher's connections with their SAs and private keys, including those that an
    /// earlier process has loaded.
    pub(crate) async fn leave(&mut self) -> Result<(), IkeError> {
        self.unload(|_| false, &BTreeSet::new()).await?;
        self.end_others(|_| false).await
    }

    /// Removes Usher's connections that do not stay, and the private keys that only they use. The keys
    /// with the fingerprints `own` stay. A process finds the keys of an earlier process by the names of
    /// its connections, which contain the keys. Keys are removed first, so that a process that is
    /// interrupted leaves the names for the next one.
    async fn unload(
        &mut self,
        stays: impl Fn(&str) -> bool,
        own: &BTreeSet<String>,
    ) -> Result<(), IkeError> {
        let connections = self.connections().await?.into_iter();
        let (staying, gone): (Vec<String>, Vec<String>) = connections.partition(|name| stays(name));
        let keys = |names: &[String]| -> BTreeSet<String> {
            let keys = names.iter().filter_map(|name| key_of(name));
            keys.map(str::to_owned).collect()
        };
        let used = keys(&staying);
        let is_used = |key: &str| {
            own.iter().any(|own| own.starts_with(key))
                || used.iter().any(|used| key.starts_with(used.as_str()))
        };
        let former: BTreeSet<String> = keys(&gone);
        let former = former.into_iter().filter(|key| !is_used(key)).collect();
        self.unload_keys_of(&former).await?;
        let loaded = self.keys.keys().filter(|key| !is_used(key)).cloned();
        for key in loaded.collect::<Vec<_>>() {
            let id = self.keys.get(&key).map_or(key.as_str(), String::as_str);
            let message = Section::new().value("id", id);
            tolerant(self.commands.command("unload-key", &message).await)?;
            self.keys.remove(&key);
        }
        for name in gone {
            let message = Section::new().value("name", &name);
            tolerant(self.commands.command("unload-conn", &message).await)?;
            self.loaded.remove(&name);
        }
        Ok(())
    }

    /// The names of Usher's connections. charon sends them one by one: the answer to `get-conns` is one
    /// message, which has room for some thousands of names.
    async fn connections(&mut self) -> Result<BTreeSet<String>, IkeError> {
        let mut names = BTreeSet::new();
        let take = |message: Section| {
            let ours = message.sections().filter(|(name, _)| is_ours(name));
            for (name, _) in ours {
                if names.len() <= MOST_SAS {
                    names.insert(name.to_owned());
                }
            }
        };
        let message = Section::new();
        self.commands.listing("list-conns", &message, take).await?;
        if names.len() <= MOST_SAS {
            Ok(names)
        } else {
            Err(MessageError::TooMany.into())
        }
    }

    /// Finds what this process has loaded and charon no longer has: `swanctl --load-all` unloads all
    /// connections and keys that its own files lack. The next [`Self::configure`] loads them again.
    pub(crate) async fn find_unloaded(&mut self) -> Result<Unloaded, IkeError> {
        let present = self.connections().await?;
        let before = self.loaded.len();
        self.loaded.retain(|name, _| present.contains(name));
        let mut unloaded = Unloaded {
            connections: before - self.loaded.len(),
            key: false,
        };
        if !self.keys.is_empty() {
            let answer = self.commands.command("get-keys", &Section::new()).await?;
            let present = answer.texts("keys");
            unloaded.key = self.keys.values().any(|id| !present.contains(id));
        }
        Ok(unloaded)
    }

    /// Removes the private keys whose fingerprints begin with one of these, which are the digits in names
    /// of connections. Keys with names of another form belong to other programs.
    async fn unload_keys_of(&mut self, beginnings: &BTreeSet<String>) -> Result<(), IkeError> {
        if beginnings.is_empty() {
            return Ok(());
        }
        let is_former = |id: &String| {
            let mut beginnings = beginnings.iter();
            is_fingerprint(id) && beginnings.any(|beginning| id.starts_with(beginning.as_str()))
        };
        let answer = self.commands.command("get-keys", &Section::new()).await?;
        let keys = answer.texts("keys").into_iter();
        for id in keys.filter(is_former) {
            let message = Section::new().value("id", &id);
            tolerant(self.commands.command("unload-key", &message).await)?;
            self.keys.remove(&id);
        }
        Ok(())
    }

    /// Ends the SAs of Usher's connections that do not stay, also of connections that somebody else has
    /// unloaded.
    async fn end_others(&mut self, stay: impl Fn(&str) -> bool) -> Result<(), IkeError> {
        let sas = self.sas().await?;
        for connection in sas.connections().filter(|name| !stay(name)) {
            self.end_connection(connection).await?;
        }
        Ok(())
    }

    /// Ends all SAs of a connection.
    pub(crate) async fn end_connection(&mut self, name: &str) -> Result<(), IkeError> {
        self.terminate(Section::new().value("ike", name), "-1")
            .await
    }

    /// Ends an IKE SA.
    pub(crate) async fn end_ike_sa(&mut self, sa: &IkeSa) -> Result<(), IkeError> {
        self.terminate(Section::new().value("ike-id", &sa.id), "-1")
            .await
    }

    /// Ends a pair of SAs.
    pub(crate) async fn end_child(&mut self, child: &ChildSa) -> Result<(), IkeError> {
        self.terminate(Section::new().value("child-id", &child.id), "-1")
            .await
    }

    /// As [`Self::end_child`], and waits for the end, for at most a second.
    pub(crate) async fn end_child_now(&mut self, child: &ChildSa) -> Result<(), IkeError> {
        self.terminate(Section::new().value("child-id", &child.id), "1000")
            .await
    }

    /// Makes charon replace a pair of SAs by a new one.
    pub(crate) async fn rekey_child(&mut self, child: &ChildSa) -> Result<(), IkeError> {
        let message = Section::new().value("child-id", &child.id);
        tolerant(self.commands.command("rekey", &message).await)
    }

    /// Ends SAs. charon forgets them at once and tells the peer once, because the peer may be gone.
    async fn terminate(&mut self, which: Section, milliseconds: &str) -> Result<(), IkeError> {
        let message = which.value("force", "yes").value("timeout", milliseconds);
        tolerant(self.commands.command("terminate", &message).await)
    }

    /// The IKE SAs of Usher's connections.
    pub(crate) async fn sas(&mut self) -> Result<Sas, IkeError> {
        let mut sas = Sas::default();
        let mut count = 0;
        let take = |message: Section| {
            let ours = message.sections().filter(|(name, _)| is_ours(name));
            for (connection, sa) in ours {
                let sa = IkeSa::read(sa);
                count += 1 + sa.children.len();
                if count <= MOST_SAS {
                    sas.add(connection, sa);
                }
            }
        };
        let message = Section::new();
        self.commands.listing("list-sas", &message, take).await?;
        if count <= MOST_SAS {
            Ok(sas)
        } else {
            Err(MessageError::TooMany.into())
        }
    }
}

/// Initiates a child and waits for the outcome. Each attempt has its own connection to charon.
///
/// # Errors
/// [`IkeError::Refused`] with the reason, as far as charon's log has one.
pub(crate) async fn negotiate(
    socket: &FilePath,
    connection: &str,
    child: &str,
) -> Result<(), IkeError> {
    let mut charon = Connection::open(socket, ANSWER_LIMIT).await?;
    charon.register("control-log").await?;
    let milliseconds = NEGOTIATION_LIMIT.as_millis().to_string();
    let message = Section::new()
        .value("ike", connection)
        .value("child", child)
        .value("timeout", milliseconds)
        .value("loglevel", LOG_LEVEL);
    charon.set_limit(NEGOTIATION_LIMIT + ANSWER_LIMIT);
    let mut lines = Vec::new();
    let take = |event: Section| {
        let line = event.text("msg").filter(|_| lines.len() < MOST_LINES);
        lines.extend(line);
    };
    match charon.listing("initiate", &message, take).await {
        Ok(_) => Ok(()),
        // The peer began at the same time, and its SAs came first.
        Err(IkeError::Refused { .. }) if has_duplicate(&lines) => Ok(()),
        Err(IkeError::Refused { command, reason }) => {
            let reason = explain(&lines).unwrap_or(reason);
            Err(IkeError::Refused { command, reason })
        }
        Err(other) => Err(other),
    }
}

/// Counts a refusal as success: the object is already gone.
fn tolerant(outcome: Result<Section, IkeError>) -> Result<(), IkeError> {
    match outcome {
        Err(IkeError::Refused { command, reason }) => {
            tracing::debug!(command, reason, "charon had nothing to do");
            Ok(())
        }
        other => other.map(drop),
    }
}
