//! Plain connections: those of programs that ask nobody, to where policy has
//! `programs`.
//!
//! With a ticket they carry a token and are not seen here. Without one the kernel holds the SYN and
//! tells of it (bpf/authentication/ticket/holding.h); it is announced as for a program that asks, released, and sent
//! once at once: the kernel itself would send it again after a second only. A connection that is
//! refused is released as well, so that the server's RST tells the program so.
//!
//! An announcement is for a connection's endpoints, and nobody here holds the port. What keeps others
//! from using it is the guard: from before the announcement until it has been taken back, no socket's
//! SYN with these endpoints leaves the host but the one that it was made for.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::sync::oneshot::{self, Receiver, Sender};
use usher_kernel::ticket::{Attempt, Event, Holding, Limits, Report, Syn};
use usher_local::clock::unix_time;
use usher_local::packet_async::register;
use usher_proto::connection::ConnectionTuple;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Signer;
use super::announcement::{announce, withdraw};
use super::closing::suspend;
use super::guards::Guarded;
use super::lease::{Lease, Use};
use super::relay::CONNECT;
use super::sessions::{Pair, SessionKey};
use crate::log_share::LogShares;
use crate::shares::Shares;

/// Connections that are decided about, announced or being refused at one time, half as many as
/// the kernel takes guards: of one user so many, and no more than this part of what is free. The next one's SYN
/// stays held, and is told of again when the kernel sends it again.
const UNDER_WAY: usize = Limits::GUARDS as usize / 2;
const UNDER_WAY_PER_USER: usize = 512;
const PART_OF_FREE: usize = 32;
/// How many of them are being refused, those of all users together. Somebody who has many user ids
/// (newuidmap(1)) has no more of them. The next one stays held likewise.
const BEING_REFUSED: usize = 512;
/// What is under way, and what came of it.
#[derive(Default)]
pub struct Plain {
    state: Mutex<State>,
    log: LogShares,
    announced: AtomicU64,
    refused: AtomicU64,
    guards: AtomicU64,
}

struct State {
    under_way: HashMap<ConnectionTuple, UnderWay>,
    users: Shares<u32>,
    being_refused: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            under_way: HashMap::new(),
            users: Shares::new(UNDER_WAY, UNDER_WAY_PER_USER, PART_OF_FREE),
            being_refused: 0,
        }
    }
}

struct UnderWay {
    attempt: Attempt,
    over: Option<Sender<()>>,
}

/// The permit of a held connection, of which there are so many; given back when dropped.
struct ConnectionPermit {
    signer: Arc<Signer>,
    connection: ConnectionTuple,
    uid: u32,
    /// It is one of those that are being refused, too.
    refused: bool,
    over: Receiver<()>,
}

impl Plain {
    /// How many were announced, how many refused, and how many guards there are.
    pub fn numbers(&self) -> [(&'static str, u64); 3] {
        [
            ("plain_announced", &self.announced),
            ("plain_refused", &self.refused),
            ("plain_guards", &self.guards),
        ]
        .map(|(name, number)| (name, number.load(Ordering::Relaxed)))
    }

    /// The connection is over: whoever waits for that is told.
    fn end(&self, connection: &ConnectionTuple, attempt: Attempt) {
        if let Some(under_way) = self.state.lock().under_way.get_mut(connection)
            && under_way.attempt == attempt
            && let Some(over) = under_way.over.take()
        {
            // A task that waits no longer needs no word.
            let _ = over.send(());
        }
    }

    fn log_refusal(&self, report: &Report, refusal: Refusal) {
        let Report { uid, pid, .. } = *report;
        if self.log.admit(uid, refusal) {
            tracing::info!(uid, pid, command = ?report.command, connection = %report.connection,
                reason = refusal.name(), "refused a plain connection: {refusal}");
        }
    }
}

impl ConnectionPermit {
    /// None: this connection or another one with the same endpoints is under way, or the user's share is.
    /// The kernel tells of the SYN again when it sends it again.
    fn take(signer: &Arc<Signer>, report: &Report) -> Option<Self> {
        let (connection, uid) = (report.connection, report.uid);
        let mut state = signer.plain.state.lock();
        if state.under_way.contains_key(&connection) {
            return None;
        }
        if !state.users.take(&uid) {
            drop(state);
            signer.plain.log_refusal(report, Refusal::Overloaded);
            return None;
        }
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
            refused: false,
            over,
        })
    }

    /// Whether there is room for it among those that are being refused.
    fn refuse(&mut self) -> bool {
        let mut state = self.signer.plain.state.lock();
        let room = self.refused || state.being_refused < BEING_REFUSED;
        if room && !self.refused {
            state.being_refused += 1;
            self.refused = true;
        }
        room
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

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut state = self.signer.plain.state.lock();
        state.under_way.remove(&self.connection);
        state.users.give_back(&self.uid);
        if self.refused {
            state.being_refused -= 1;
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
        loop {
            match holding.reports() {
                Ok(reports) => {
                    for report in reports.entries {
                        take_note(&signer, report);
                    }
                    if !reports.more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "reading what is held");
                    break;
                }
            }
            // Who connects faster than this is read keeps nobody else's requests waiting.
            tokio::task::yield_now().await;
        }
    }
}

fn take_note(signer: &Arc<Signer>, mut report: Report) {
    match std::mem::replace(&mut report.event, Event::Over) {
        Event::Held(syn) => {
            if let Some(permit) = ConnectionPermit::take(signer, &report) {
                tokio::spawn(decide(permit, report, syn));
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

/// Who connects, and may they? Before that is known a connection has no guard, of which there are so
/// many: nothing has been announced that it would have to guard.
async fn decide(mut permit: ConnectionPermit, report: Report, syn: Option<Syn>) {
    let signer = Arc::clone(&permit.signer);
    let Some(holding) = signer.tickets.holding() else {
        return;
    };
    let connection = report.connection;
    let mut guarded = Guarded::held(connection, report.attempt);
    let permitted = permitted(&signer, &report).await;
    if permitted.is_err() && !permit.refuse() {
        return signer.plain.log_refusal(&report, Refusal::Overloaded);
    }
    // Given up meanwhile, or while this process did not run.
    if permit.is_over() {
        return;
    }
    if let Err(refusal) = guarded.stand(&signer, None) {
        return tracing::warn!(%refusal, %connection, "a held connection is asked for again");
    }
    signer.plain.guards.fetch_add(1, Ordering::Relaxed);
    take_out_of_use(&signer, &report).await;
    match permitted {
        Ok(lease) => {
            announce_and_release(&mut permit, &mut guarded, holding, &lease, &report, syn).await;
        }
        Err(refusal) => {
            refuse_and_release(&permit, &guarded, holding, refusal, &report, syn);
            permit.has_ended().await;
        }
    }
    // Its permit is held until then, so that there are never more guards than permits.
    guarded.lift(&signer).await;
    signer.plain.guards.fetch_sub(1, Ordering::Relaxed);
}

async fn announce_and_release(
    permit: &mut ConnectionPermit,
    guarded: &mut Guarded,
    holding: &Holding,
    lease: &Lease,
    report: &Report,
    syn: Option<Syn>,
) {
    let signer = Arc::clone(&permit.signer);
    match announce(&signer, lease, guarded).await {
        Ok(session) => {
            // It may have taken a while.
            if !permit.is_over() && lease.check().is_ok() {
                signer.plain.announced.fetch_add(1, Ordering::Relaxed);
                release(&signer, guarded, Some(session), holding, syn);
                permit.has_ended().await;
            }
            // The guard stands until the announcement is gone from the server.
            withdraw(&signer, &lease.pair, session, report.connection).await;
        }
        // These endpoints are announced for another connection, whose the server would take this one
        // for: it stays held, and is told of again.
        Err(refusal @ Refusal::AlreadyAnnounced) => {
            signer.plain.log_refusal(report, refusal);
        }
        Err(refusal) => {
            refuse_and_release(permit, guarded, holding, refusal, report, syn);
            permit.has_ended().await;
        }
    }
}

/// Lets the SYN go unannounced, so that the server's RST tells the program.
fn refuse_and_release(
    permit: &ConnectionPermit,
    guarded: &Guarded,
    holding: &Holding,
    refusal: Refusal,
    report: &Report,
    syn: Option<Syn>,
) {
    let plain = &permit.signer.plain;
    plain.refused.fetch_add(1, Ordering::Relaxed);
    plain.log_refusal(report, refusal);
    release(&permit.signer, guarded, None, holding, syn);
}

/// Who connects, and may they?
async fn permitted(signer: &Signer, report: &Report) -> Result<Lease, Refusal> {
    let user = signer.names.of(report.uid).await?;
    let server = report.connection.server;
    let configuration = signer.configuration.get();
    let checked = &configuration.checked;
    if checked.disabled.contains(&user) {
        return Err(Refusal::DisabledUser);
    }
    let (host, entry) = checked
        .policy
        .plain_service(server)
        .filter(|(_, entry)| entry.users.has(&user, unix_time()))
        .ok_or(Refusal::ClientPolicy)?;
    let key = SessionKey {
        user,
        host: host.name.clone(),
        host_key: host.key,
        service: entry.service.clone(),
        server,
    };
    let pair = Pair {
        key,
        uid: report.uid,
        host: host.clone(),
    };
    let programs = &signer.programs;
    programs
        .permit(&signer.tickets, &entry.programs, report.program)
        .await?;
    signer.lease(pair, Use::Plain(report.program))
}

/// Lets the SYN go, and sends it in the kernel's place.
fn release(
    signer: &Signer,
    guarded: &Guarded,
    session: Option<SessionId>,
    holding: &Holding,
    syn: Option<Syn>,
) {
    let connection = guarded.connection;
    if let Err(refusal) = guarded.released().stand(signer, session) {
        return tracing::error!(%refusal, %connection, "a connection is not released");
    }
    // Without it, and when it is lost, the kernel's own copy goes within a second.
    if let (Ok(sender), Some(syn)) = (holding.sender(), syn)
        && let Err(error) = sender.send(&syn)
    {
        tracing::debug!(%error, %connection, "a SYN is left to the kernel");
    }
}
