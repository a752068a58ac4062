//! The task that keeps charon at its configuration and the SAs in place.

mod doubles;
mod handle;
mod pairs;
mod places;
mod report;
mod unloaded;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use usher_protection::Report;

use crate::charon::{Charon, negotiate};
use crate::configuration::Configuration;
use crate::configuration::Path;
use crate::error::IkeError;
use crate::paths::Paths;
use crate::sas::{ChildSa, Sas};
use doubles::{Doubles, left_over};
pub use handle::{Acquire, Ike, KernelSad, Notice};
use pairs::{Begins, Pair, Pairs};
use places::{Events, Kernel};
use unloaded::Looking;

/// First and longest wait before charon is connected to again.
const RECONNECTING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The time between two lists of the SAs when no event comes. The lists also show that charon hangs.
const LISTING: Duration = Duration::from_secs(10);

/// How long events are gathered before the SAs are listed.
const GATHERING: Duration = Duration::from_millis(50);

/// The time for which replaced SAs stay after this host has begun to send by the new ones.
const REPLACING: Duration = Duration::from_secs(1);

/// How many seconds SAs may be overdue before this task rekeys them in place of the kernel. The kernel
/// measures their age by the wall clock: if the clock is set back by a day, SAs live a day longer.
const OVERDUE: i64 = 60;

/// Limit of pairs of SAs beside others, and of IKE SAs without SAs, that are ended at one visit.
const MOST_DOUBLES: usize = 16;

/// Limit of attempts at one time; one a peer.
const MOST_ATTEMPTS: usize = 16;

/// Limit of orders and notices that wait. Further orders are dropped: the kernel repeats an acquire while a
/// program sends. Notices are never dropped.
const MOST_WAITING: usize = 1_024;

/// The connections that charon is to have.
#[derive(Clone, Debug, Default)]
enum Wanted {
    /// No configuration has come yet: connections of an earlier process stay.
    #[default]
    Unsaid,
    /// Nothing of Usher's.
    Nothing,
    This(Arc<Configuration>),
}

/// The configuration that charon has.
#[derive(Debug)]
struct Current {
    configuration: Arc<Configuration>,
    paths: Paths,
}

impl Deref for Current {
    type Target = Configuration;

    fn deref(&self) -> &Configuration {
        &self.configuration
    }
}

impl Current {
    /// For each path that has any, the connections whose SAs serve it until it has its own.
    fn kept<'s>(&self, sas: &'s Sas) -> BTreeMap<&str, Vec<&'s str>> {
        let mut kept: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for connection in sas.connections() {
            if let Some(path) = self.paths.kept_for(connection) {
                kept.entry(&path.connection).or_default().push(connection);
            }
        }
        kept
    }
}

/// The state that the task shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    /// Set when nothing is wanted, until everything of Usher's is removed from charon. If a
    /// configuration is wanted by then, its marks may be of another mask than those of the SAs.
    must_leave: AtomicBool,
    changed: tokio::sync::Notify,
    report: Mutex<Report>,
}

struct Driver {
    socket: PathBuf,
    kernel: Kernel,
    shared: Arc<Shared>,
    acquires: mpsc::Receiver<Acquire>,
    notices: mpsc::Sender<Notice>,
    pairs: Pairs,
    running: JoinSet<(Pair, Result<(), IkeError>)>,
    /// charon's reasons against connections that it does not take.
    refused: BTreeMap<String, String>,
    /// True if charon may have something of Usher's although nothing is wanted.
    may_have_left: bool,
    looking: Looking,
    doubles: Doubles,
    /// The connections whose SAs others have replaced: the kernel does not send by them any more.
    replaced: BTreeSet<String>,
}

impl Driver {
    /// A new driver, the sender of orders to it, and the receiver of its notices.
    fn new(
        socket: PathBuf,
        kernel: Box<dyn KernelSad>,
        shared: Arc<Shared>,
    ) -> (Self, mpsc::Sender<Acquire>, mpsc::Receiver<Notice>) {
        let (orders, acquires) = mpsc::channel(MOST_WAITING);
        let (notices, noticed) = mpsc::channel(MOST_WAITING);
        let driver = Self {
            socket,
            kernel: Arc::new(Mutex::new(kernel)),
            shared,
            acquires,
            notices,
            pairs: Pairs::default(),
            running: JoinSet::new(),
            refused: BTreeMap::new(),
            may_have_left: true,
            looking: Looking::default(),
            doubles: Doubles::default(),
            replaced: BTreeSet::new(),
        };
        (driver, orders, noticed)
    }

    async fn run(mut self) {
        let (mut wait, longest) = RECONNECTING;
        loop {
            // No configuration was set, or charon has nothing of Usher's and should have nothing.
            while match *self.shared.wanted.lock() {
                Wanted::Unsaid => true,
                Wanted::Nothing => !self.may_have_left,
                Wanted::This(_) => false,
            } {
                self.shared.changed.notified().await;
            }
            let began = Instant::now();
            match self.serve().await {
                Ok(()) => {
                    *self.shared.report.lock() = Report::default();
                    self.may_have_left = false;
                    wait = RECONNECTING.0;
                    continue;
                }
                // A charon that starts later has nothing of Usher's.
                Err(error) if is_not_running(&error) && self.wants_nothing() => {
                    *self.shared.report.lock() = Report::default();
                    self.may_have_left = false;
                    continue;
                }
                Err(error) => self.set_trouble(&error),
            }
            self.note_ended();
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
        let (mut charon, events) = Charon::open(&self.socket).await?;
        tracing::info!(charon = charon.version, "connected to charon");
        {
            let mut report = self.shared.report.lock();
            report.charon = Some(charon.version.clone());
            report.trouble = None;
            report.unloaded = None;
        }
        self.may_have_left = true;
        self.running.shutdown().await;
        self.pairs.begin_again(Instant::now());
        let mut events = Events::take(events, Arc::clone(&self.kernel));
        self.doubles = Doubles::default();
        // First of all, because a peer that the policy has revoked may make the list of SAs as long as it wants.
        let Some(mut current) = self.configure(&mut charon).await? else {
            return Ok(());
        };
        // SAs of a charon that was killed come behind those of this one.
        let known = charon.sas().await?.spis();
        by_list(self.kernel.lock().keep_places(&known));
        let mut listing = Instant::now();
        let mut comparing = listing;
        self.looking.begin(listing);
        loop {
            let due = listing.min(self.looking.next());
            let next = self.next_attempt().map_or(due, |next| next.min(due));
            tokio::select! {
                () = self.shared.changed.notified() => {
                    match self.configure(&mut charon).await? {
                        Some(wanted) => current = wanted,
                        None => return Ok(()),
                    }
                    listing = Instant::now();
                }
                Some(acquire) = self.acquires.recv() => {
                    if self.acquired(&current, acquire) {
                        listing = listing.min(Instant::now() + GATHERING);
                    }
                }
                outcome = events.have_come() => {
                    outcome?;
                    listing = listing.min(Instant::now() + GATHERING);
                }
                Some(ended) = self.running.join_next() => {
                    self.ended(ended);
                    listing = Instant::now();
                }
                () = sleep_until(next) => {
                    if self.looking.is_due(Instant::now()) && self.is_unloaded(&mut charon).await? {
                        match self.configure(&mut charon).await? {
                            Some(wanted) => current = wanted,
                            None => return Ok(()),
                        }
                        self.pairs.hurry(Instant::now());
                    }
                    if Instant::now() >= listing {
                        let listed_at = events.taken();
                        let sas = charon.sas().await?;
                        self.note(&current, &sas, charon.hybrid).await;
                        let replaced = self.replaced(&current, &sas, charon.hybrid);
                        for connection in self.prefer_new(&current, &sas, replaced).await {
                            charon.end_connection(&connection).await?;
                        }
                        for child in superfluous(&current, &sas, charon.hybrid) {
                            charon.end_child(child).await?;
                        }
                        let mut gone = self.lost(&current, &sas);
                        if Instant::now() >= comparing {
                            comparing = Instant::now() + LISTING;
                            gone.extend(self.vanished(&current, &sas));
                            self.place(&sas, listed_at, &events);
                            let doubles = self.doubles(&current, &sas, charon.hybrid).await;
                            // Peers decide how many there are, and how long each takes to end.
                            for child in doubles.into_iter().take(MOST_DOUBLES) {
                                charon.end_child(child).await?;
                            }
                            for sa in left_over(&sas).into_iter().take(MOST_DOUBLES) {
                                charon.end_ike_sa(sa).await?;
                            }
                        }
                        for child in gone {
                            charon.end_child_now(child).await?;
                        }
                        for (connection, child) in overdue(&sas) {
                            let class = &child.name;
                            tracing::info!(connection, class, "rekeying SAs that are overdue");
                            charon.rekey_child(child).await?;
                        }
                        listing = Instant::now() + LISTING;
                        if !self.replaced.is_empty() {
                            listing = Instant::now() + REPLACING;
                        }
                    }
                    self.begin_attempts(&current);
                }
            }
        }
    }

    /// Gives charon the wanted configuration and returns it. If none is wanted, removes everything of
    /// Usher's.
    async fn configure(&mut self, charon: &mut Charon) -> Result<Option<Current>, IkeError> {
        let wanted = self.shared.wanted.lock().clone();
        if self.shared.must_leave.swap(false, Ordering::SeqCst)
            && let Err(error) = charon.leave().await
        {
            self.shared.must_leave.store(true, Ordering::SeqCst);
            return Err(error);
        }
        let Wanted::This(configuration) = wanted else {
            return Ok(None);
        };
        let wanted = Current {
            paths: Paths::of(&configuration),
            configuration,
        };
        self.refused = charon.configure(&wanted, &wanted.paths).await?;
        for (connection, reason) in &self.refused {
            tracing::warn!(connection, reason, "charon does not take this connection");
        }
        let pairs: BTreeMap<Pair, Begins> = wanted
            .paths
            .iter()
            .filter(|path| !self.refused.contains_key(&path.connection))
            .flat_map(|path| {
                let classes = wanted.negotiable_with(path.unlabelled, charon.hybrid);
                classes.map(|class| {
                    let begins = match wanted.is_on_demand(&path.peer, class.class) {
                        true => Begins::OnDemand,
                        false if wanted.host < path.peer => Begins::Here,
                        false => Begins::There,
                    };
                    ((path.connection.clone(), class.reqid), begins)
                })
            })
            .collect();
        self.pairs.retain(pairs, Instant::now());
        let lacks = report::lacking(&wanted, &charon.version, charon.hybrid);
        if let Some(lacks) = &lacks {
            tracing::warn!("{lacks}");
        }
        self.shared.report.lock().lacks = lacks;
        Ok(Some(wanted))
    }

    /// When the next attempt may begin; none: each pair has SAs, or waits for an attempt.
    fn next_attempt(&self) -> Option<Instant> {
        match self.running.len() {
            MOST_ATTEMPTS => None,
            _ => self.pairs.next(),
        }
    }

    fn begin_attempts(&mut self, current: &Current) {
        while self.running.len() < MOST_ATTEMPTS {
            let Some(pair) = self.pairs.due(Instant::now()) else {
                return;
            };
            self.pairs.begin(&pair);
            // The pairs are those of this configuration.
            let Some(class) = class_of(current, pair.1) else {
                return;
            };
            let socket = self.socket.clone();
            self.running.spawn(async move {
                let outcome = negotiate(&socket, &pair.0, class).await;
                (pair, outcome)
            });
        }
    }

    fn ended(&mut self, ended: Result<(Pair, Result<(), IkeError>), JoinError>) {
        let Ok((pair, outcome)) = ended else {
            // A panic, or the runtime ends: the attempt stays out until charon is connected to again.
            tracing::error!("an attempt to negotiate broke off");
            return;
        };
        let failed = outcome.err().map(|error| match error {
            IkeError::Refused { reason, .. } => reason,
            other => other.to_string(),
        });
        let reason = failed.clone().unwrap_or_default();
        if unloaded::may_explain(&reason) {
            self.looking.at_once(Instant::now());
        }
        if self.pairs.end(&pair, failed, Instant::now()) {
            let (connection, reqid) = pair;
            tracing::warn!(connection, reqid, reason, "nothing was negotiated");
        }
    }

    /// Notes that the kernel asks for SAs. Returns whether charon's SAs must be looked at.
    fn acquired(&mut self, current: &Current, acquire: Acquire) -> bool {
        let Acquire {
            source,
            peer,
            reqid,
        } = acquire;
        let (source, peer) = (source.to_canonical(), peer.to_canonical());
        let now = Instant::now();
        let mut look = false;
        for path in current.paths.to(peer) {
            let pair = (path.connection.clone(), reqid);
            look |= self.pairs.acquired(&pair, source, now);
        }
        look
    }

    /// The SAs that charon has and the kernel has lost, as far as the kernel has asked for them.
    fn lost<'s>(&mut self, current: &Current, sas: &'s Sas) -> Vec<&'s ChildSa> {
        let class_of = |reqid| class_of(current, reqid);
        let kernel = &self.kernel;
        let lost = self
            .pairs
            .lost(sas, &mut || kernel.lock().list(), class_of, Instant::now());
        by_list(lost)
    }

    /// The SAs that charon has and the kernel has lost, whether the kernel has asked for them or not.
    fn vanished<'s>(&mut self, current: &Current, sas: &'s Sas) -> Vec<&'s ChildSa> {
        let class_of = |reqid| class_of(current, reqid);
        let listed = self.kernel.lock().list();
        let pairs = &mut self.pairs;
        by_list(listed.map(|kernel| pairs.vanished(sas, &kernel, class_of, Instant::now())))
    }

    /// Notes the present SAs, and reports those that have come. Waits while too many notices wait to be
    /// taken: a pair counts as up from here on, so a notice that is lost never comes again.
    async fn note(&mut self, current: &Current, sas: &Sas, hybrid: bool) {
        for path in current.paths.iter() {
            for class in current.negotiable_with(path.unlabelled, hybrid) {
                let reqid = class.reqid;
                let pair = (path.connection.clone(), reqid);
                let name = class.class.name();
                let is_up = sas.installed(&path.connection, name).is_some();
                if !self.pairs.set_up(&pair, is_up) {
                    continue;
                }
                tracing::info!(host = %path.peer, peer = %path.address, class = name, "protected");
                self.notify(path, reqid).await;
            }
        }
        let peers = self.peers(current, sas, hybrid);
        self.shared.report.lock().peers = peers;
    }

    /// Reports that a path has got SAs of a class, or another order of them, so that sockets look again.
    async fn notify(&mut self, path: &Path, reqid: u32) {
        let (host, peer) = (path.peer.clone(), path.address);
        if self
            .notices
            .send(Notice { host, peer, reqid })
            .await
            .is_err()
        {
            tracing::warn!(%peer, reqid, "cannot report new SAs: the protector takes no notices");
        }
    }

    /// The connections whose SAs were kept until new ones came, if they have now come for all classes.
    /// Marks the pairs that still lack new SAs, so that they are negotiated now.
    fn replaced<'s>(&mut self, current: &Current, sas: &'s Sas, hybrid: bool) -> Vec<&'s str> {
        let mut replaced = Vec::new();
        for (connection, kept) in current.kept(sas) {
            let mut is_replaced = true;
            let only = current.paths.unlabelled(connection);
            for class in current.negotiable_with(only, hybrid) {
                let name = class.class.name();
                let serves = |connection: &str| sas.installed(connection, name).is_some();
                if !serves(connection) && kept.iter().any(|kept| serves(kept)) {
                    self.pairs.need(&(connection.to_owned(), class.reqid));
                    is_replaced = false;
                }
            }
            if is_replaced {
                replaced.extend(kept);
            }
        }
        replaced
    }

    fn wants_nothing(&self) -> bool {
        matches!(*self.shared.wanted.lock(), Wanted::Nothing)
    }

    /// Corrects the view of the peers by the kernel's SAs, because a charon that has ended reports nothing.
    /// If it was stopped it has ended its SAs, and if it was killed it has not.
    fn note_ended(&mut self) {
        let listed = self.kernel.lock().list();
        let mut report = self.shared.report.lock();
        by_list(listed.map(|kernel| report::take_out(&mut report.peers, &kernel)));
    }

    fn set_trouble(&mut self, error: &IkeError) {
        let text = error.to_string();
        let mut report = self.shared.report.lock();
        if report.trouble.as_ref() != Some(&text) {
            tracing::error!(
                "{text}; SAs that the kernel has stay, nothing new is negotiated, and Usher tries again"
            );
        }
        report.trouble = Some(text);
    }
}

/// The result of a request to the kernel; the default, with a warning, if the kernel fails.
fn by_list<T: Default>(found: std::io::Result<T>) -> T {
    found.unwrap_or_else(|error| {
        tracing::warn!("cannot list the kernel's SAs or put them in order: {error}");
        T::default()
    })
}

/// Returns whether nothing listens at charon's socket.
fn is_not_running(error: &IkeError) -> bool {
    const KINDS: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
    matches!(error, IkeError::Absent { source, .. } if KINDS.contains(&source.kind()))
}

/// The name of the class that has this reqid.
fn class_of(current: &Configuration, reqid: u32) -> Option<&'static str> {
    let class = current.classes.iter().find(|class| class.reqid == reqid);
    class.map(|class| class.class.name())
}

/// The SAs that are too old, each with its connection.
fn overdue(sas: &Sas) -> impl Iterator<Item = (&str, &ChildSa)> {
    let children = sas.children();
    children.filter(|(_, child)| child.rekey_in.is_some_and(|seconds| seconds < -OVERDUE))
}

/// The SAs of classes that the policy no longer has, or not with this peer.
fn superfluous<'s>(current: &Current, sas: &'s Sas, hybrid: bool) -> Vec<&'s ChildSa> {
    let is_wanted = |connection: &str, child: &ChildSa| {
        let only = current.paths.unlabelled(connection);
        let mut wanted = current.negotiable_with(only, hybrid);
        wanted.any(|class| class.class.name() == child.name)
    };
    let children = sas.children();
    children
        .filter(|(connection, child)| child.installed && !is_wanted(connection, child))
        .map(|(_, child)| child)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::configuration::Peer;
    use crate::configuration::tests::configuration;
    use crate::sas::{IkeSa, KernelSas, Placed};
    use usher_protection::IkePublicKey;
    use usher_protection::Profile;

    /// A kernel without SAs.
    pub(super) struct NoSas;

    impl KernelSad for NoSas {
        fn list(&mut self) -> std::io::Result<KernelSas> {
            Ok(KernelSas::new())
        }

        fn has(&mut self, _: Placed) -> std::io::Result<bool> {
            Ok(false)
        }

        fn place(&mut self, _: Placed) -> std::io::Result<()> {
            Ok(())
        }

        fn place_last(&mut self, _: Placed) -> std::io::Result<()> {
            Ok(())
        }

        fn place_first(&mut self, _: Placed) -> std::io::Result<()> {
            Ok(())
        }

        fn keep_places(&mut self, _: &KernelSas) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// More than can wait, all in one listing.
    // Threat model: P60
    #[tokio::test]
    async fn no_notice_is_lost_however_many_come_at_once() {
        const PEERS: u32 = 3_000;
        let peer = |number: u32| Peer {
            name: format!("host{number}").parse().expect("a name"),
            addresses: vec![Ipv4Addr::from(0x0a00_0001 + number).into()],
            keys: vec![IkePublicKey::ed25519([2; 32])],
            unlabelled: None,
        };
        let mut configuration = configuration(2, &[Profile::Standard]);
        configuration.peers = (0..PEERS).map(peer).collect();
        let current = Current {
            paths: Paths::of(&configuration),
            configuration: Arc::new(configuration),
        };
        let class = current.classes[0];
        let mut sas = Sas::default();
        let mut pairs = BTreeMap::new();
        for path in current.paths.iter() {
            let child = ChildSa::installed(class.class.name());
            let sa = IkeSa {
                id: String::new(),
                local: None,
                remote: None,
                established: true,
                age: 1,
                algorithms: String::new(),
                children: vec![child],
            };
            sas.add(&path.connection, sa);
            pairs.insert((path.connection.clone(), class.reqid), Begins::Here);
        }
        let kernel = Box::new(NoSas);
        let (mut driver, _orders, mut notices) =
            Driver::new(PathBuf::new(), kernel, Arc::default());
        driver.pairs.retain(pairs, Instant::now());
        let noting = tokio::spawn(async move {
            driver.note(&current, &sas, false).await;
            // The same listing again: each pair was noticed once.
            driver.note(&current, &sas, false).await;
        });
        let mut peers: BTreeSet<IpAddr> = BTreeSet::new();
        let mut count = 0;
        while let Some(notice) = notices.recv().await {
            peers.insert(notice.peer);
            count += 1;
        }
        noting.await.expect("the task ends");
        assert_eq!((peers.len(), count), (PEERS as usize, PEERS));
    }
}
