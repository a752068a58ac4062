//! The commands that Usher has charon carry out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as FilePath;
use std::time::Duration;

use crate::configuration::{Configuration, HYBRID_ALGORITHM, Path, is_ours};
use crate::error::IkeError;
use crate::vici::{Connection, Section};

/// How long charon may take for an answer that needs no other host.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long charon negotiates before an attempt counts as failed. It goes on with what it has begun.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// Events after which the list of SAs has changed.
const EVENTS: [&str; 4] = ["ike-updown", "child-updown", "ike-rekey", "child-rekey"];

/// Most lines of charon's log that are kept of an attempt.
const MOST_LINES: usize = 64;

/// A charon that has answered.
#[derive(Debug)]
pub(crate) struct Charon {
    commands: Connection,
    /// Of its own, so that commands and events do not wait for each other.
    pub(crate) events: Connection,
    /// As it says: `charon-systemd 5.9.8`.
    pub(crate) version: String,
    /// Whether it can do hybrid key exchanges.
    pub(crate) hybrid: bool,
    /// The number of the private key that was loaded last.
    key: Option<String>,
    /// The connections that were loaded, as they were.
    loaded: BTreeMap<String, Section>,
}

/// An IKE SA of one of Usher's connections.
#[derive(Clone, Debug)]
pub(crate) struct IkeSa {
    pub(crate) connection: String,
    pub(crate) established: bool,
    /// For how long, in seconds.
    pub(crate) age: u64,
    pub(crate) algorithms: String,
    pub(crate) children: Vec<ChildSa>,
}

/// A pair of SAs.
#[derive(Clone, Debug)]
pub(crate) struct ChildSa {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) installed: bool,
    pub(crate) age: u64,
    pub(crate) algorithms: String,
    pub(crate) spi_in: Option<String>,
    pub(crate) spi_out: Option<String>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

impl Charon {
    /// Connects to it and asks what it is.
    pub(crate) async fn open(socket: &FilePath) -> Result<Self, IkeError> {
        let mut commands = Connection::open(socket, ANSWER_LIMIT).await?;
        let said = commands.command("version", &Section::new()).await?;
        let [daemon, version] = ["daemon", "version"].map(|name| said.text(name));
        let algorithms = commands.command("get-algorithms", &Section::new()).await?;
        let hybrid = algorithms
            .sections()
            .any(|(_, section)| section.names().any(|name| name == HYBRID_ALGORITHM));
        commands.register("list-sa").await?;
        let mut events = Connection::open(socket, ANSWER_LIMIT).await?;
        for event in EVENTS {
            events.register(event).await?;
        }
        Ok(Self {
            commands,
            events,
            version: format!(
                "{} {}",
                daemon.as_deref().unwrap_or("charon"),
                version.as_deref().unwrap_or("of unknown version")
            ),
            hybrid,
            key: None,
            loaded: BTreeMap::new(),
        })
    }

    /// Makes its connections equal to the configuration: loads what is new or has changed, takes away
    /// what is no longer wanted, with its SAs. Returns why connections could not be loaded, by name.
    pub(crate) async fn configure(
        &mut self,
        wanted: &Configuration,
    ) -> Result<BTreeMap<String, String>, IkeError> {
        let paths = wanted.paths();
        self.load_key(wanted).await?;
        let mut refused = BTreeMap::new();
        for path in &paths {
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
        self.take_away(&paths).await?;
        Ok(refused)
    }

    /// Loads this host's key. The one before is taken away.
    async fn load_key(&mut self, wanted: &Configuration) -> Result<(), IkeError> {
        let message = Section::new()
            .value("type", "any")
            .value("data", wanted.key.to_pkcs8().as_slice());
        let answer = self.commands.command("load-key", &message).await?;
        let id = answer.text("id");
        let former = std::mem::replace(&mut self.key, id);
        match former.filter(|former| self.key.as_ref() != Some(former)) {
            Some(former) => self.unload_key(former).await,
            None => Ok(()),
        }
    }

    async fn unload_key(&mut self, id: String) -> Result<(), IkeError> {
        let message = Section::new().value("id", id);
        tolerant(self.commands.command("unload-key", &message).await)
    }

    /// Takes all connections of Usher's away, with their SAs, and the key that this process loaded. A
    /// key that an earlier process loaded stays until charon restarts.
    pub(crate) async fn leave(&mut self) -> Result<(), IkeError> {
        self.take_away(&[]).await?;
        match self.key.take() {
            Some(key) => self.unload_key(key).await,
            None => Ok(()),
        }
    }

    /// Takes away the connections that are none of these, with their SAs.
    pub(crate) async fn take_away(&mut self, paths: &[Path]) -> Result<(), IkeError> {
        let wanted: BTreeSet<&str> = paths.iter().map(|path| path.connection.as_str()).collect();
        let answer = self.commands.command("get-conns", &Section::new()).await?;
        let connections = answer.texts("conns").into_iter();
        let is_left = |name: &String| is_ours(name) && !wanted.contains(name.as_str());
        for name in connections.filter(is_left) {
            let message = Section::new().value("name", &name);
            tolerant(self.commands.command("unload-conn", &message).await)?;
            self.loaded.remove(&name);
        }
        // Their SAs, also those of connections that somebody else has unloaded.
        let sas = self.sas().await?;
        let left: BTreeSet<String> = sas
            .into_iter()
            .map(|sa| sa.connection)
            .filter(is_left)
            .collect();
        for name in left {
            self.terminate(Section::new().value("ike", name), "-1")
                .await?;
        }
        Ok(())
    }

    /// Has a pair of SAs ended.
    pub(crate) async fn end_child(&mut self, child: &ChildSa) -> Result<(), IkeError> {
        self.terminate(Section::new().value("child-id", &child.id), "-1")
            .await
    }

    /// The same, and waits for the end, for at most a second.
    pub(crate) async fn end_child_now(&mut self, child: &ChildSa) -> Result<(), IkeError> {
        self.terminate(Section::new().value("child-id", &child.id), "1000")
            .await
    }

    /// The peer may be gone: charon forgets the SAs at once and tells the peer once.
    async fn terminate(&mut self, which: Section, milliseconds: &str) -> Result<(), IkeError> {
        let message = which.value("force", "yes").value("timeout", milliseconds);
        tolerant(self.commands.command("terminate", &message).await)
    }

    /// The IKE SAs of Usher's connections.
    pub(crate) async fn sas(&mut self) -> Result<Vec<IkeSa>, IkeError> {
        let message = Section::new();
        let listed = self
            .commands
            .listing("list-sas", "list-sa", &message)
            .await?;
        let sas = listed.iter().flat_map(|message| message.sections());
        Ok(sas
            .filter(|(connection, _)| is_ours(connection))
            .map(|(connection, sa)| IkeSa::read(connection, sa))
            .collect())
    }
}

/// Has charon negotiate a child and waits for the outcome; an attempt has a connection of its own.
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
        .value("loglevel", "1");
    charon.set_limit(NEGOTIATION_LIMIT + ANSWER_LIMIT);
    let outcome = charon.command("initiate", &message).await;
    match outcome {
        Ok(_) => Ok(()),
        Err(IkeError::Refused { command, reason }) => {
            let lines: Vec<String> = charon
                .take_events()
                .filter_map(|(_, message)| message.text("msg"))
                .take(MOST_LINES)
                .collect();
            let reason = explain(&lines).unwrap_or(reason);
            Err(IkeError::Refused { command, reason })
        }
        Err(other) => Err(other),
    }
}

/// The reason of a failed attempt, in plain words where charon's log has a known one.
fn explain(lines: &[String]) -> Option<String> {
    const KNOWN: [(&str, &str); 9] = [
        (
            "constraint check failed",
            "its IKE key is not the one in the policy",
        ),
        ("no trusted", "its IKE key is not the one in the policy"),
        (
            "signature validation failed",
            "its IKE key is not the one in the policy",
        ),
        (
            "AUTHENTICATION_FAILED",
            "it does not accept this host's IKE key or name: compare `ike-key` in both policies",
        ),
        (
            "NO_PROPOSAL_CHOSEN",
            "it has no such class, or no algorithm in common",
        ),
        (
            "TS_UNACCEPTABLE",
            "it does not accept this host's address or this class",
        ),
        ("retransmit", "it does not answer"),
        ("unreachable", "it cannot be reached"),
        (
            "no private key found",
            "charon does not have this host's IKE key",
        ),
    ];
    let said = |part: &str| lines.iter().any(|line| line.contains(part));
    let known = KNOWN.iter().find(|(part, _)| said(part));
    known.map(|(_, words)| (*words).to_owned())
}

/// Takes what is already gone as done.
fn tolerant(outcome: Result<Section, IkeError>) -> Result<(), IkeError> {
    match outcome {
        Err(IkeError::Refused { command, reason }) => {
            tracing::debug!(command, reason, "charon had nothing to do");
            Ok(())
        }
        other => other.map(drop),
    }
}

impl IkeSa {
    fn read(connection: &str, sa: &Section) -> Self {
        let children = sa
            .inner("child-sas")
            .into_iter()
            .flat_map(Section::sections);
        Self {
            connection: connection.to_owned(),
            established: sa.text("state").as_deref() == Some("ESTABLISHED"),
            age: sa.number("established").unwrap_or(0),
            algorithms: joined(sa, &["encr-alg", "integ-alg", "prf-alg", "dh-group"]),
            children: children.map(|(_, child)| ChildSa::read(child)).collect(),
        }
    }
}

impl ChildSa {
    fn read(child: &Section) -> Self {
        let state = child.text("state").unwrap_or_default();
        let number = |name| child.number(name).unwrap_or(0);
        Self {
            id: child.text("uniqueid").unwrap_or_default(),
            name: child.text("name").unwrap_or_default(),
            installed: ["INSTALLED", "UPDATING", "REKEYING"].contains(&state.as_str()),
            age: number("install-time"),
            algorithms: format!(
                "{} {}",
                child.text("protocol").unwrap_or_default(),
                joined(child, &["encr-alg", "integ-alg", "dh-group"])
            ),
            spi_in: child.text("spi-in"),
            spi_out: child.text("spi-out"),
            bytes_in: number("bytes-in"),
            bytes_out: number("bytes-out"),
        }
    }
}

/// The algorithms of an SA: `AES_GCM_16-256/CURVE_25519`.
fn joined(sa: &Section, names: &[&str]) -> String {
    let algorithms = names.iter().filter_map(|name| {
        let algorithm = sa.text(name)?;
        let size = sa.text(&name.replace("-alg", "-keysize"));
        Some(match size.filter(|_| *name == "encr-alg") {
            Some(size) => format!("{algorithm}-{size}"),
            None => algorithm,
        })
    });
    algorithms.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sa() -> Section {
        let child = Section::new()
            .value("name", "encryption")
            .value("uniqueid", "4")
            .value("state", "INSTALLED")
            .value("protocol", "ESP")
            .value("encr-alg", "AES_GCM_16")
            .value("encr-keysize", "256")
            .value("bytes-in", "170")
            .value("install-time", "5");
        Section::new()
            .value("state", "ESTABLISHED")
            .value("established", "4")
            .section("child-sas", Section::new().section("encryption-4", child))
    }

    #[test]
    fn a_listed_sa_is_read() {
        let sa = IkeSa::read("usher-b", &sa());
        assert!(sa.established);
        let child = &sa.children[0];
        assert!(child.installed);
        assert_eq!(child.algorithms, "ESP AES_GCM_16-256");
        assert_eq!((child.age, child.bytes_in), (5, 170));
    }

    #[test]
    fn an_sa_of_nonsense_is_an_sa_that_protects_nothing() {
        let nonsense = Section::new()
            .value("established", "-1")
            .value("child-sas", "none")
            .list("state", ["ESTABLISHED"]);
        let sa = IkeSa::read("usher-b", &nonsense);
        assert!(!sa.established && sa.children.is_empty());
    }

    #[test]
    fn reasons_are_in_plain_words() {
        let lines = ["received AUTHENTICATION_FAILED notify error".to_owned()];
        let reason = explain(&lines).expect("a known one");
        assert!(reason.contains("ike-key"), "{reason}");
        assert_eq!(explain(&["something else".to_owned()]), None);
    }
}
