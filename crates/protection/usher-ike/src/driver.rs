//! The task that keeps charon at its configuration and the SAs in place.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use usher_protection::{ClassReport, PeerReport, PeerState, Profile, Report};

use crate::charon::{Charon, ChildSa, IkeSa, negotiate};
use crate::configuration::{Configuration, Path};
use crate::error::IkeError;

/// First and longest wait before charon is connected to again.
const RECONNECTING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// First and longest wait after an attempt that failed. An acquire ends it.
const RETRYING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How often the SAs are listed when no event comes. A hung charon is noticed by it.
const LISTING: Duration = Duration::from_secs(10);

/// How long events are gathered before the SAs are listed.
const GATHERING: Duration = Duration::from_millis(50);

/// How long the host with the greater name waits for the other to begin, so that seldom both do. Two
/// pairs of SAs are no harm.
const COURTESY: Duration = Duration::from_secs(2);

/// How long a pair's SAs are left alone after they were ended because the kernel asked for them. The
/// kernel also asks for SAs of another source address, which a program may choose; an acquire does not
/// say which, and good SAs must not end again and again.
const ENDING: Duration = Duration::from_secs(300);

/// Most attempts at one time; one a peer.
const MOST_ATTEMPTS: usize = 16;

/// Most orders and notices that wait. Beyond that an acquire is dropped, which the kernel repeats while
/// a program sends, and a notice, which only hurries the kernel.
const MOST_WAITING: usize = 1_024;

/// The kernel asks for SAs: XFRM_MSG_ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The address of the packet's other host.
    pub peer: IpAddr,
    /// The `reqid` of the SPD entry's template.
    pub reqid: u32,
}

/// SAs with a peer have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The peer's address.
    pub peer: IpAddr,
    /// The `reqid` of the SAs.
    pub reqid: u32,
}

/// Drives charon from a task of its own, which ends when this is dropped. What is in force stays.
#[derive(Debug)]
pub struct Ike {
    orders: mpsc::Sender<Acquire>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What the task shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Option<Arc<Configuration>>>,
    changed: tokio::sync::Notify,
    report: Mutex<Report>,
}

impl Ike {
    /// Starts the task, for the charon at this socket. The notices say which SAs have come.
    #[must_use]
    pub fn start(socket: PathBuf) -> (Self, mpsc::Receiver<Notice>) {
        let (orders, acquires) = mpsc::channel(MOST_WAITING);
        let (notices, noticed) = mpsc::channel(MOST_WAITING);
        let shared = Arc::new(Shared::default());
        let driver = Driver {
            socket,
            shared: Arc::clone(&shared),
            acquires,
            notices,
            attempts: BTreeMap::new(),
            running: JoinSet::new(),
            refused: BTreeMap::new(),
            up: BTreeSet::new(),
            asked: BTreeSet::new(),
            ended: BTreeMap::new(),
        };
        let task = tokio::spawn(driver.run());
        let ike = Self {
            orders,
            shared,
            task,
        };
        (ike, noticed)
    }

    /// Has charon have this configuration from now on; none: nothing of Usher's, and it is left alone.
    /// Returns at once.
    pub fn configure(&self, configuration: impl Into<Option<Configuration>>) {
        *self.shared.wanted.lock() = configuration.into().map(Arc::new);
        self.shared.changed.notify_one();
    }

    /// Has the SAs negotiated now for which the kernel asks. Returns at once; it is dropped when too
    /// many wait.
    pub fn acquire(&self, acquire: Acquire) {
        if self.orders.try_send(acquire).is_err() {
            tracing::warn!(?acquire, "too many acquires wait; this one is dropped");
        }
    }

    /// What is known now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.shared.report.lock().clone()
    }
}

impl Drop for Ike {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A class with a peer's address: connection and reqid.
type Pair = (String, u32);

/// What came of attempts for a pair.
#[derive(Debug)]
struct Attempt {
    running: bool,
    /// When the next one may begin.
    next: Instant,
    /// The wait after the next failure.
    wait: Duration,
    failed: Option<String>,
}

struct Driver {
    socket: PathBuf,
    shared: Arc<Shared>,
    acquires: mpsc::Receiver<Acquire>,
    notices: mpsc::Sender<Notice>,
    attempts: BTreeMap<Pair, Attempt>,
    running: JoinSet<(Pair, Result<(), IkeError>)>,
    /// Why charon does not take connections.
    refused: BTreeMap<String, String>,
    /// The pairs that have SAs.
    up: BTreeSet<Pair>,
    /// Those of them for which the kernel asks nevertheless.
    asked: BTreeSet<Pair>,
    /// When SAs of a pair were last ended for that reason.
    ended: BTreeMap<Pair, Instant>,
}

impl Driver {
    async fn run(mut self) {
        let (mut wait, longest) = RECONNECTING;
        loop {
            // A host without a configuration leaves charon alone.
            while self.shared.wanted.lock().is_none() {
                self.shared.changed.notified().await;
            }
            let began = Instant::now();
            match self.serve().await {
                Ok(()) => {
                    *self.shared.report.lock() = Report::default();
                    wait = RECONNECTING.0;
                    continue;
                }
                Err(error) => self.set_trouble(&error),
            }
            if began.elapsed() > longest {
                wait = RECONNECTING.0;
            }
            // A new configuration may be tried at once.
            let _elapsed = timeout(wait, self.shared.changed.notified()).await;
            wait = longest.min(wait * 2);
        }
    }

    /// Serves one charon until something fails, or nothing is wanted any more.
    async fn serve(&mut self) -> Result<(), IkeError> {
        let mut charon = Charon::open(&self.socket).await?;
        tracing::info!(charon = charon.version, "connected to charon");
        {
            let mut report = self.shared.report.lock();
            report.charon = Some(charon.version.clone());
            report.trouble = None;
        }
        self.attempts.clear();
        self.running.shutdown().await;
        let Some(mut current) = self.configure(&mut charon).await? else {
            return Ok(());
        };
        let mut listing = Instant::now();
        loop {
            let next = self
                .next_attempt()
                .map_or(listing, |next| next.min(listing));
            tokio::select! {
                () = self.shared.changed.notified() => {
                    match self.configure(&mut charon).await? {
                        Some(wanted) => current = wanted,
                        None => return Ok(()),
                    }
                    listing = Instant::now();
                }
                Some(acquire) = self.acquires.recv() => {
                    if self.hurry(&current, acquire) {
                        listing = Instant::now();
                    }
                }
                event = charon.events.event() => {
                    event?;
                    listing = listing.min(Instant::now() + GATHERING);
                }
                Some(ended) = self.running.join_next() => {
                    self.ended(ended);
                    listing = Instant::now();
                }
                () = sleep_until(next) => {
                    if Instant::now() >= listing {
                        let sas = charon.sas().await?;
                        self.note(&current, &sas, charon.hybrid);
                        for child in superfluous(&current, &sas, charon.hybrid) {
                            charon.end_child(child).await?;
                        }
                        for child in self.stale(&current, &sas) {
                            charon.end_child_now(child).await?;
                        }
                        listing = Instant::now() + LISTING;
                    }
                    self.begin_attempts();
                }
            }
        }
    }

    /// Gives charon the configuration, which it returns; none: takes all away.
    async fn configure(
        &mut self,
        charon: &mut Charon,
    ) -> Result<Option<Arc<Configuration>>, IkeError> {
        let wanted = self.shared.wanted.lock().clone();
        let Some(wanted) = wanted else {
            charon.leave().await?;
            return Ok(None);
        };
        self.refused = charon.configure(&wanted).await?;
        for (connection, reason) in &self.refused {
            tracing::warn!(connection, reason, "charon does not take this connection");
        }
        let pairs: BTreeMap<Pair, bool> = wanted
            .paths()
            .iter()
            .filter(|path| !self.refused.contains_key(&path.connection))
            .flat_map(|path| {
                let classes = wanted.negotiable(charon.hybrid);
                classes.map(|class| {
                    let begins = wanted.host < path.peer;
                    ((path.connection.clone(), class.reqid), begins)
                })
            })
            .collect();
        self.attempts.retain(|pair, _| pairs.contains_key(pair));
        self.up.retain(|pair| pairs.contains_key(pair));
        self.ended.retain(|pair, _| pairs.contains_key(pair));
        for (pair, begins) in pairs {
            let first = match begins {
                true => Instant::now(),
                false => Instant::now() + COURTESY,
            };
            self.attempts.entry(pair).or_insert(Attempt {
                running: false,
                next: first,
                wait: RETRYING.0,
                failed: None,
            });
        }
        Ok(Some(wanted))
    }

    /// When the next attempt may begin; none: each pair has SAs, or waits for an attempt.
    fn next_attempt(&self) -> Option<Instant> {
        if self.running.len() == MOST_ATTEMPTS {
            return None;
        }
        let missing = self.missing().filter(|(_, attempt)| !attempt.running);
        missing.map(|(_, attempt)| attempt.next).min()
    }

    fn missing(&self) -> impl Iterator<Item = (&Pair, &Attempt)> {
        let attempts = self.attempts.iter();
        attempts.filter(|(pair, _)| !self.up.contains(*pair) && !self.is_busy(&pair.0))
    }

    /// Whether an attempt with this connection is under way. Others wait: it may make the IKE SA.
    fn is_busy(&self, connection: &str) -> bool {
        let attempts = self.attempts.iter();
        attempts
            .into_iter()
            .any(|(pair, attempt)| attempt.running && pair.0 == connection)
    }

    fn begin_attempts(&mut self) {
        let now = Instant::now();
        while self.running.len() < MOST_ATTEMPTS {
            let due = self.missing().filter(|(_, attempt)| attempt.next <= now);
            let Some(pair) = due
                .min_by_key(|(_, attempt)| attempt.next)
                .map(|(pair, _)| pair.clone())
            else {
                return;
            };
            self.begin(pair);
        }
    }

    fn begin(&mut self, pair: Pair) {
        let wanted = self.shared.wanted.lock().clone();
        let class = wanted.and_then(|wanted| {
            let class = wanted.classes.iter().find(|class| class.reqid == pair.1);
            class.map(|class| class.class.name())
        });
        let Some(class) = class else {
            // The next configuration is already there, without it.
            self.attempts.remove(&pair);
            return;
        };
        if let Some(attempt) = self.attempts.get_mut(&pair) {
            attempt.running = true;
        }
        let socket = self.socket.clone();
        self.running.spawn(async move {
            let outcome = negotiate(&socket, &pair.0, class).await;
            (pair, outcome)
        });
    }

    fn ended(&mut self, ended: Result<(Pair, Result<(), IkeError>), tokio::task::JoinError>) {
        let Ok(((connection, reqid), outcome)) = ended else {
            // A panic, or the runtime ends: the attempt stays out until charon is connected to again.
            tracing::error!("an attempt to negotiate broke off");
            return;
        };
        let Some(attempt) = self.attempts.get_mut(&(connection.clone(), reqid)) else {
            return;
        };
        attempt.running = false;
        attempt.next = Instant::now() + attempt.wait;
        attempt.wait = RETRYING.1.min(attempt.wait * 2);
        let failed = outcome.err().map(|error| match error {
            IkeError::Refused { reason, .. } => reason,
            other => other.to_string(),
        });
        if failed.is_some() && failed != attempt.failed {
            let reason = failed.as_deref().unwrap_or_default();
            tracing::warn!(connection, reqid, reason, "nothing was negotiated");
        }
        attempt.failed = failed;
    }

    /// Makes the attempt due for which the kernel asks. Returns whether charon says that it has these
    /// SAs: then they must be looked at.
    fn hurry(&mut self, current: &Configuration, acquire: Acquire) -> bool {
        let address = acquire.peer.to_canonical();
        let paths = current.paths();
        let mut is_up = false;
        for path in paths.iter().filter(|path| path.address == address) {
            let pair = (path.connection.clone(), acquire.reqid);
            if let Some(attempt) = self.attempts.get_mut(&pair) {
                attempt.next = Instant::now();
                attempt.wait = RETRYING.0;
                let is_left_alone = || match self.ended.get(&pair) {
                    Some(ended) => ended.elapsed() < ENDING,
                    None => false,
                };
                if self.up.contains(&pair) && !is_left_alone() {
                    self.asked.insert(pair);
                    is_up = true;
                }
            }
        }
        is_up
    }

    /// The SAs that charon has and the kernel seems to have lost: it asked after they were listed. charon
    /// makes no others while it has them. A pair's are ended once in [`ENDING`].
    fn stale<'s>(&mut self, current: &Configuration, sas: &'s [IkeSa]) -> Vec<&'s ChildSa> {
        let mut stale = Vec::new();
        for pair in std::mem::take(&mut self.asked) {
            let class = current.classes.iter().find(|class| class.reqid == pair.1);
            let own = sas.iter().filter(|sa| sa.connection == pair.0);
            let children = own.flat_map(|sa| &sa.children);
            let children = children
                .filter(|child| class.is_some_and(|class| child.name == class.class.name()));
            tracing::warn!(
                connection = pair.0,
                reqid = pair.1,
                "the kernel asks for SAs that charon has: it has lost them, or a program sends from an \
                 address that has none; they are negotiated again, at most every five minutes"
            );
            stale.extend(children);
            self.up.remove(&pair);
            self.ended.insert(pair, Instant::now());
        }
        stale
    }

    /// Takes notice of the SAs that there are.
    fn note(&mut self, current: &Configuration, sas: &[IkeSa], hybrid: bool) {
        let paths = current.paths();
        for path in &paths {
            for class in current.negotiable(hybrid) {
                let pair = (path.connection.clone(), class.reqid);
                let is_up = installed(sas, &path.connection, class.class.name()).is_some();
                if !is_up {
                    self.up.remove(&pair);
                } else if self.up.insert(pair.clone()) {
                    if let Some(attempt) = self.attempts.get_mut(&pair) {
                        attempt.wait = RETRYING.0;
                        attempt.failed = None;
                    }
                    let peer = path.address;
                    tracing::info!(host = %path.peer, %peer, class = class.class.name(), "protected");
                    let reqid = class.reqid;
                    if self.notices.try_send(Notice { peer, reqid }).is_err() {
                        tracing::debug!(%peer, reqid, "a notice was dropped");
                    }
                }
            }
        }
        let peers = paths
            .iter()
            .map(|path| self.peer(path, current, sas, hybrid));
        let peers = peers.collect();
        self.shared.report.lock().peers = peers;
    }

    fn peer(
        &self,
        path: &Path,
        current: &Configuration,
        sas: &[IkeSa],
        hybrid: bool,
    ) -> PeerReport {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let own = || sas.iter().filter(|sa| sa.connection == path.connection);
        let established = own().filter(|sa| sa.established).max_by_key(|sa| sa.age);
        let classes: Vec<ClassReport> = current
            .classes
            .iter()
            .map(|wanted| {
                let name = wanted.class.name();
                let child = installed(sas, &path.connection, name);
                let attempt = self.attempts.get(&(path.connection.clone(), wanted.reqid));
                let lacks = wanted.class.profile == Profile::Strong && !hybrid;
                let why_not = match lacks {
                    true => Some("this host's charon has no hybrid key exchange".to_owned()),
                    false => attempt.and_then(|attempt| attempt.failed.clone()),
                };
                ClassReport {
                    class: name.to_owned(),
                    protected: child.is_some(),
                    since: child.map(|child| now.saturating_sub(child.age)),
                    algorithms: child.map(|child| child.algorithms.clone()),
                    spi_in: child.and_then(|child| child.spi_in.clone()),
                    spi_out: child.and_then(|child| child.spi_out.clone()),
                    bytes_in: child.map_or(0, |child| child.bytes_in),
                    bytes_out: child.map_or(0, |child| child.bytes_out),
                    why_not: why_not.filter(|_| child.is_none()),
                }
            })
            .collect();
        let why_not = self.refused.get(&path.connection).cloned();
        PeerReport {
            name: path.peer.clone(),
            address: path.address,
            state: match established {
                Some(_) => PeerState::Established,
                None if own().next().is_some() => PeerState::Negotiating,
                None => PeerState::Unreached,
            },
            since: established.map(|sa| now.saturating_sub(sa.age)),
            algorithms: established.map(|sa| sa.algorithms.clone()),
            why_not: why_not.or_else(|| classes.iter().find_map(|class| class.why_not.clone())),
            classes,
        }
    }

    fn set_trouble(&mut self, error: &IkeError) {
        let text = error.to_string();
        let mut report = self.shared.report.lock();
        if report.trouble.as_ref() != Some(&text) {
            tracing::error!(
                "{text}; SAs in force stay, nothing new is negotiated, and Usher tries again"
            );
        }
        report.trouble = Some(text);
    }
}

/// The youngest installed pair of SAs of a class.
fn installed<'s>(sas: &'s [IkeSa], connection: &str, class: &str) -> Option<&'s ChildSa> {
    let own = sas.iter().filter(|sa| sa.connection == connection);
    let children = own.flat_map(|sa| &sa.children);
    let installed = children.filter(|child| child.installed && child.name == class);
    installed.min_by_key(|child| child.age)
}

/// The SAs of classes that the policy no longer has.
fn superfluous<'s>(current: &Configuration, sas: &'s [IkeSa], hybrid: bool) -> Vec<&'s ChildSa> {
    let wanted: BTreeSet<&str> = current
        .negotiable(hybrid)
        .map(|class| class.class.name())
        .collect();
    let children = sas.iter().flat_map(|sa| &sa.children);
    children
        .filter(|child| child.installed && !wanted.contains(child.name.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Peer, PeerClass, SetMark};
    use crate::key::{IkeKey, IkePublicKey};
    use usher_protection::{Class, Kind};

    const REQID: u32 = 0x7500;

    fn configuration() -> Configuration {
        Configuration {
            host: "laptop".parse().expect("a name"),
            key: Arc::new(IkeKey::from_seed([1; 32])),
            peers: vec![Peer {
                name: "mailhost".parse().expect("a name"),
                addresses: vec!["192.0.2.1".parse().expect("an address")],
                key: IkePublicKey::from_bytes([7; 32]),
            }],
            classes: vec![PeerClass {
                class: Class::new(Kind::Encryption, Profile::Standard),
                reqid: REQID,
                mark: SetMark { value: 1, mask: 1 },
            }],
        }
    }

    /// A driver that knows SAs of the only pair, and these SAs as charon lists them.
    fn with_sas(current: &Configuration) -> (Driver, Vec<IkeSa>) {
        let connection = current.paths()[0].connection.clone();
        let pair = (connection.clone(), REQID);
        let attempt = Attempt {
            running: false,
            next: Instant::now(),
            wait: RETRYING.0,
            failed: None,
        };
        let driver = Driver {
            socket: PathBuf::new(),
            shared: Arc::default(),
            acquires: mpsc::channel(1).1,
            notices: mpsc::channel(1).0,
            attempts: BTreeMap::from([(pair.clone(), attempt)]),
            running: JoinSet::new(),
            refused: BTreeMap::new(),
            up: BTreeSet::from([pair]),
            asked: BTreeSet::new(),
            ended: BTreeMap::new(),
        };
        let child = ChildSa {
            id: "1".into(),
            name: current.classes[0].class.name().into(),
            installed: true,
            age: 1,
            algorithms: String::new(),
            spi_in: None,
            spi_out: None,
            bytes_in: 0,
            bytes_out: 0,
        };
        let sa = IkeSa {
            connection,
            established: true,
            age: 1,
            algorithms: String::new(),
            children: vec![child],
        };
        (driver, vec![sa])
    }

    /// A program may have the kernel ask as often as it likes, by a source address without SAs.
    #[tokio::test]
    async fn acquires_end_sas_once_in_a_while() {
        let current = configuration();
        let (mut driver, sas) = with_sas(&current);
        let acquire = Acquire {
            peer: current.peers[0].addresses[0],
            reqid: REQID,
        };
        let ends = |driver: &mut Driver| {
            driver.hurry(&current, acquire);
            let ended = driver.stale(&current, &sas).len();
            // They are negotiated again.
            driver.note(&current, &sas, false);
            ended
        };
        assert_eq!(ends(&mut driver), 1, "the kernel may have lost them");
        for _ in 0..3 {
            assert_eq!(ends(&mut driver), 0, "not again and again");
        }
        for ended in driver.ended.values_mut() {
            *ended -= ENDING;
        }
        assert_eq!(ends(&mut driver), 1, "but after a while");
    }
}
