//! Plain connections: those of programs that ask nobody, to where policy says `programs any`.
//!
//! With a ticket they carry a token and are not seen here. Without one the kernel holds the SYN and
//! tells of it (bpf/ticket/holding.h); it is announced as for a program that asks, released, and sent
//! once at once: the kernel itself would send it again after a second only. A connection that is
//! refused is released as well, so that the server's RST tells the program so.
//!
//! An announcement is for a connection's ends, and nobody here holds the port. What keeps others
//! from using it is the guard: from before the announcement until it has been taken back, no socket's
//! SYN with these ends leaves the host but the one that it was made for.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::oneshot::{self, Receiver, Sender};
use usher_kernel::ticket::{Attempt, Event, Holding, Report, Syn};
use usher_local::packet_async::register;
use usher_proto::connection::ConnectionTuple;
use usher_proto::refusal::Refusal;

use super::Signer;
use super::announcement::{Place, announce, withdraw};
use super::closing::suspend;
use super::sessions::SessionKey;
use crate::log_share::LogShares;

/// Connections of one user that are decided about or announced at one time. The next one's SYN is
/// asked for again when the kernel sends it again.
const UNDER_WAY_PER_USER: usize = 512;
/// How long a released SYN may take: as long as an announcement lives on the server.
const CONNECT: Duration = Duration::from_secs(10);

/// What is under way, and what came of it.
#[derive(Default)]
pub struct Plain {
    state: Mutex<State>,
    log: LogShares,
    announced: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct State {
    under_way: HashMap<ConnectionTuple, UnderWay>,
    /// How many of each user.
    users: HashMap<u32, usize>,
}

struct UnderWay {
    attempt: Attempt,
    over: Option<Sender<()>>,
}

/// A held connection's place among those that are under way; given back when dropped.
struct Turn {
    signer: Arc<Signer>,
    connection: ConnectionTuple,
    uid: u32,
    over: Receiver<()>,
}

impl Plain {
    /// How many were announced, and how many refused.
    pub fn numbers(&self) -> [(String, u64); 2] {
        [
            ("plain_announced", &self.announced),
            ("plain_refused", &self.refused),
        ]
        .map(|(name, number)| (name.to_owned(), number.load(Ordering::Relaxed)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is over: whoever waits for that is told.
    fn end(&self, connection: &ConnectionTuple, attempt: Attempt) {
        if let Some(under_way) = self.lock().under_way.get_mut(connection)
            && under_way.attempt == attempt
            && let Some(over) = under_way.over.take()
        {
            // A task that waits no longer needs no word.
            let _ = over.send(());
        }
    }

    fn log_refusal(&self, uid: u32, connection: &ConnectionTuple, refusal: Refusal) {
        if self.log.admit(uid, refusal) {
            tracing::info!(uid, %connection, reason = refusal.name(),
                "refused a plain connection: {refusal}");
        }
    }
}

impl Turn {
    /// None: this connection or another one with the same ends is under way, or too many of the
    /// user are. The kernel tells of the SYN again when it sends it again.
    fn take(signer: &Arc<Signer>, report: &Report) -> Option<Self> {
        let (connection, uid) = (report.connection, report.uid);
        let mut state = signer.plain.lock();
        if state.under_way.contains_key(&connection) {
            return None;
        }
        let count = state.users.entry(uid).or_default();
        if *count >= UNDER_WAY_PER_USER {
            drop(state);
            signer
                .plain
                .log_refusal(uid, &connection, Refusal::Overloaded);
            return None;
        }
        *count += 1;
        let (sender, over) = oneshot::channel();
        let under_way = UnderWay {
            attempt: report.attempt,
            over: Some(sender),
        };
        state.under_way.insert(connection, under_way);
        drop(state);
        Some(Self {
            signer: Arc::clone(signer),
            connection,
            uid,
            over,
        })
    }

    /// Whether the connection is over already.
    fn is_over(&mut self) -> bool {
        self.over.try_recv().is_ok()
    }

    /// Waits until the connection is established or given up, or its announcement has expired.
    async fn has_ended(&mut self) {
        // Either is as good, and so is a sender that has gone.
        let _ = tokio::time::timeout(CONNECT, &mut self.over).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.signer.plain.lock();
        state.under_way.remove(&self.connection);
        if let Some(count) = state.users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                state.users.remove(&self.uid);
            }
        }
    }
}

/// Decides about what the kernel holds.
///
/// # Errors
/// When the reactor cannot take the kernel's reports.
pub async fn serve(signer: Arc<Signer>) -> io::Result<()> {
    let Some(holding) = signer.tickets.holding() else {
        return std::future::pending().await;
    };
    let descriptor = holding.descriptor().map_err(io::Error::other)?;
    let reports = register(descriptor, Interest::READABLE)?;
    loop {
        let mut ready = reports.readable().await?;
        ready.clear_ready();
        match holding.reports() {
            Ok(reports) => reports
                .into_iter()
                .for_each(|report| take_note(&signer, report)),
            Err(error) => tracing::error!(%error, "reading what is held"),
        }
    }
}

fn take_note(signer: &Arc<Signer>, mut report: Report) {
    match std::mem::replace(&mut report.event, Event::Over) {
        Event::Held(syn) => {
            if let Some(turn) = Turn::take(signer, &report) {
                tokio::spawn(decide(turn, report, syn));
            }
        }
        Event::Over => signer.plain.end(&report.connection, report.attempt),
        Event::Refused => {
            let signer = Arc::clone(signer);
            tokio::spawn(async move { take_out_of_use(&signer, &report).await });
        }
    }
}

/// The ticket whose token did not pass, if any.
async fn take_out_of_use(signer: &Signer, report: &Report) {
    if let Some(ticket) = report.ticket {
        suspend(signer, report.uid, report.connection.server, ticket).await;
    }
}

async fn decide(mut turn: Turn, report: Report, syn: Option<Syn>) {
    let signer = Arc::clone(&turn.signer);
    let Some(holding) = signer.tickets.holding() else {
        return;
    };
    let connection = &report.connection;
    // Given up while this process did not run.
    if turn.is_over() {
        return;
    }
    if let Err(error) = holding.guard(connection, report.attempt, false) {
        return tracing::warn!(%error, %connection, "a held connection is asked for again");
    }
    take_out_of_use(&signer, &report).await;
    announce_and_release(&mut turn, holding, &report, syn).await;
    if let Err(error) = holding.unguard(connection) {
        tracing::error!(%error, %connection, "a guard stays");
    }
}

async fn announce_and_release(
    turn: &mut Turn,
    holding: &Holding,
    report: &Report,
    syn: Option<Syn>,
) {
    let signer = Arc::clone(&turn.signer);
    let mut doubt = false;
    match authenticate(&signer, report, &mut doubt).await {
        Ok((place, session)) => {
            // It may have taken a while.
            if !turn.is_over() && is_permitted(&signer, &place) {
                signer.plain.announced.fetch_add(1, Ordering::Relaxed);
                release(holding, report, syn);
                turn.has_ended().await;
            }
            // The guard stands until the announcement is gone from the server.
            withdraw(&signer, &place.host, session, report.connection).await;
        }
        // These ends are announced for another connection, whose the server would take this one
        // for: it stays held, and is told of again.
        Err(Refusal::AlreadyAnnounced) => {
            let refusal = Refusal::AlreadyAnnounced;
            signer
                .plain
                .log_refusal(report.uid, &report.connection, refusal);
        }
        Err(refusal) => {
            signer.plain.refused.fetch_add(1, Ordering::Relaxed);
            signer
                .plain
                .log_refusal(report.uid, &report.connection, refusal);
            release(holding, report, syn);
            if doubt {
                // Perhaps announced all the same.
                tokio::time::sleep(CONNECT).await;
            } else {
                turn.has_ended().await;
            }
        }
    }
}

/// Who connects, and may they? Announces the connection if so.
async fn authenticate(
    signer: &Arc<Signer>,
    report: &Report,
    doubt: &mut bool,
) -> Result<(Place, usher_proto::session_id::SessionId), Refusal> {
    let user = signer.names.of(report.uid).await?;
    let server = report.connection.server;
    let place = {
        let configuration = signer.configuration();
        let (applied, checked) = &*configuration;
        if applied.is_disabled(&user) {
            return Err(Refusal::DisabledUser);
        }
        let (host, entry) = checked
            .policy
            .plain_service(server)
            .filter(|(_, entry)| entry.users.contains(&user))
            .ok_or(Refusal::ClientPolicy)?;
        let key = SessionKey {
            user,
            host: host.name.clone(),
            host_key: host.key,
            service: entry.service.clone(),
            server,
        };
        Place {
            key,
            uid: report.uid,
            host: host.clone(),
        }
    };
    let session = announce(signer, &place, report.connection, doubt).await?;
    Ok((place, session))
}

/// Whether the configuration in force says `programs any` of the place, and permits it.
fn is_permitted(signer: &Signer, place: &Place) -> bool {
    let policy = &signer.configuration().1.policy;
    policy.plain_service(place.key.server).is_some() && place.is_permitted(signer)
}

/// Lets the SYN go, and sends it in the kernel's place.
fn release(holding: &Holding, report: &Report, syn: Option<Syn>) {
    let connection = &report.connection;
    if let Err(error) = holding.guard(connection, report.attempt, true) {
        return tracing::error!(%error, %connection, "a connection is not released");
    }
    // Without it, and when it is lost, the kernel's own copy goes within a second.
    if let (Ok(sender), Some(syn)) = (holding.sender(), syn)
        && let Err(error) = sender.send(&syn)
    {
        tracing::debug!(%error, %connection, "a SYN is left to the kernel");
    }
}
