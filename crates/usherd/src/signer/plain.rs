//! Plain connections: those of programs that make no request, to destinations for which the policy
//! has `programs`.
//!
//! With a ticket, plain connections carry a token, and the signer does not see them. Without a ticket, the
//! kernel holds the SYN and reports it (bpf/authentication/ticket/holding.h). The signer announces the
//! connection as if the program had requested it, releases it, and sends the SYN at once: the kernel itself
//! would send it again only after a second. A refused connection is released too, so that the server's RST
//! tells the program.
//!
//! An announcement is for a connection's endpoints, and the signer has no duplicate of the socket that would
//! hold the port. The gate keeps others from using the announcement: from before it is made until it is
//! withdrawn, no SYN with these endpoints leaves the host except from the socket for which it was made.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use usher_base::ConnectionTuple;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_daemon::quota::{Quota, Taken};
use usher_kernel::ticket::{Attempt, Event, Holding, Limits, Report, Syn};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Signer;
use super::announcement::{announce, withdraw};
use super::closing::suspend;
use super::gates::Gated;
use super::lease::{Lease, Use};
use super::relay::CONNECT;
use super::reports;
use super::sessions::Pair;

/// Limits of connections being decided on, announced or refused at the same time: in total, half as
/// many as the kernel accepts gates; for one user; and the fraction of the free ones that one user
/// may take. Beyond them a SYN stays held, and the kernel reports it again when it retransmits it.
const UNDER_WAY: usize = Limits::GATES as usize / 2;
const UNDER_WAY_PER_USER: usize = 512;
const PART_OF_FREE: usize = 32;
/// Limit of connections being refused, for all users together, because a user may have many user ids
/// (newuidmap(1)). Further ones stay held as well.
const BEING_REFUSED: usize = 512;

/// The connections under way, and counters of their results.
pub struct Plain {
    under_way: Mutex<HashMap<ConnectionTuple, UnderWay>>,
    users: Quota<u32>,
    being_refused: Arc<Semaphore>,
    announced: AtomicU64,
    refused: AtomicU64,
    gates: AtomicU64,
}

impl Default for Plain {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
            users: Quota::new(UNDER_WAY, UNDER_WAY_PER_USER).in_parts(PART_OF_FREE),
            being_refused: Arc::new(Semaphore::new(BEING_REFUSED)),
            announced: AtomicU64::default(),
            refused: AtomicU64::default(),
            gates: AtomicU64::default(),
        }
    }
}

struct UnderWay {
    attempt: Attempt,
    over: Option<Sender<()>>,
}

/// The permit of a held connection. The number of permits is limited; dropping a permit returns it.
struct ConnectionPermit {
    signer: Arc<Signer>,
    connection: ConnectionTuple,
    _taken: Taken<u32>,
    /// Its place among the connections being refused.
    refused: Option<OwnedSemaphorePermit>,
    over: Receiver<()>,
}

impl Plain {
    /// The numbers of announced and refused connections, and of gates.
    pub fn numbers(&self) -> [(&'static str, u64); 3] {
        [
            ("plain_announced", &self.announced),
            ("plain_refused", &self.refused),
            ("plain_gates", &self.gates),
        ]
        .map(|(name, number)| (name, number.load(Ordering::Relaxed)))
    }

    /// Tells the waiting task that the connection is over.
    fn end(&self, connection: &ConnectionTuple, attempt: Attempt) {
        if let Some(under_way) = self.under_way.lock().get_mut(connection)
            && under_way.attempt == attempt
            && let Some(over) = under_way.over.take()
        {
            // The task may no longer be waiting.
            let _ = over.send(());
        }
    }
}

fn log_refusal(report: &Report, refusal: Refusal) {
    let Report { uid, pid, .. } = *report;
    tracing::info!(name: events::PROCESS_REFUSED, uid, pid, command = ?report.command, connection = %report.connection,
        reason = refusal.name(), "refused a plain connection: {refusal}");
}

impl ConnectionPermit {
    /// A permit; `None` if this connection or another with the same endpoints is under way, or the user's
    /// share is used up. The kernel reports the SYN again when it retransmits it.
    fn take(signer: &Arc<Signer>, report: &Report) -> Option<Self> {
        let connection = report.connection;
        let mut all = signer.plain.under_way.lock();
        let Entry::Vacant(free) = all.entry(connection) else {
            return None;
        };
        let Ok(share) = signer.plain.users.take(report.uid) else {
            drop(all);
            log_refusal(report, Refusal::Overloaded);
            return None;
        };
        let (sender, over) = oneshot::channel();
        free.insert(UnderWay {
            attempt: report.attempt,
            over: Some(sender),
        });
        Some(Self {
            signer: Arc::clone(signer),
            connection,
            _taken: share,
            refused: None,
            over,
        })
    }

    /// Takes a place among the connections being refused. Returns whether there was one.
    fn refuse(&mut self) -> bool {
        let room = Arc::clone(&self.signer.plain.being_refused).try_acquire_owned();
        self.refused = room.ok();
        self.refused.is_some()
    }

    /// Whether the connection is already over.
    fn is_over(&mut self) -> bool {
        self.over.try_recv().is_ok()
    }

    /// Waits until the connection is established or abandoned, or its announcement has expired.
    async fn has_ended(&mut self) {
        // All results count alike, including a dropped sender.
        let _ = tokio::time::timeout(CONNECT, &mut self.over).await;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.signer.plain.under_way.lock().remove(&self.connection);
    }
}

/// Decides on the held connections that the kernel reports.
pub async fn serve(signer: Arc<Signer>) -> io::Result<()> {
    let Some(holding) = signer.tickets.holding() else {
        return std::future::pending().await;
    };
    let take_notes =
        |reports: Vec<Report>| reports.into_iter().for_each(|one| take_note(&signer, one));
    let reports = || holding.reports();
    reports::each("held SYNs", holding.descriptor(), reports, take_notes).await
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

/// Suspends the ticket of a report, if it has one: the ticket's token did not pass.
async fn take_out_of_use(signer: &Signer, report: &Report) {
    if let Some(ticket) = report.ticket {
        suspend(signer, report.uid, report.connection.server, ticket).await;
    }
}

/// Decides on a held connection. The connection has no gate until the user and the permission are checked:
/// gates are limited, and nothing has been announced that needs one.
async fn decide(mut permit: ConnectionPermit, report: Report, syn: Option<Syn>) {
    let signer = Arc::clone(&permit.signer);
    let Some(holding) = signer.tickets.holding() else {
        return;
    };
    let connection = report.connection;
    let mut gated = Gated::held(connection, report.attempt);
    let permitted = permitted(&signer, &report).await;
    if permitted.is_err() && !permit.refuse() {
        return log_refusal(&report, Refusal::Overloaded);
    }
    // The program may have abandoned the connection meanwhile, or while this process did not run.
    if permit.is_over() {
        return;
    }
    if let Err(refusal) = gated.stand(&signer, None) {
        return tracing::warn!(%refusal, %connection, "cannot enter the gate of a held connection: \
            its next SYN is held again");
    }
    signer.plain.gates.fetch_add(1, Ordering::Relaxed);
    take_out_of_use(&signer, &report).await;
    match permitted {
        Ok(lease) => {
            announce_and_release(&mut permit, &mut gated, holding, &lease, &report, syn).await;
        }
        Err(refusal) => {
            refuse_and_release(&permit, &gated, holding, refusal, &report, syn);
            permit.has_ended().await;
        }
    }
    // Lift the gate before the permit is dropped, so that there are never more gates than permits.
    gated.lift(&signer).await;
    signer.plain.gates.fetch_sub(1, Ordering::Relaxed);
}

async fn announce_and_release(
    permit: &mut ConnectionPermit,
    gated: &mut Gated,
    holding: &Holding,
    lease: &Lease,
    report: &Report,
    syn: Option<Syn>,
) {
    let signer = Arc::clone(&permit.signer);
    match announce(&signer, lease, gated).await {
        Ok(session) => {
            // Announcing may have taken a while.
            if !permit.is_over() && lease.check().is_ok() {
                signer.plain.announced.fetch_add(1, Ordering::Relaxed);
                release(&signer, gated, Some(session), holding, syn);
                permit.has_ended().await;
            }
            // The gate stands until the announcement is gone from the server.
            withdraw(&signer, &lease.pair, session, report.connection).await;
        }
        // These endpoints are announced for another connection, for which the server would mistake this one.
        // This one stays held, and the kernel reports it again.
        Err(refusal @ Refusal::AlreadyAnnounced) => {
            log_refusal(report, refusal);
        }
        Err(refusal) => {
            refuse_and_release(permit, gated, holding, refusal, report, syn);
            permit.has_ended().await;
        }
    }
}

/// Releases the SYN unannounced, so that the server's RST tells the program.
fn refuse_and_release(
    permit: &ConnectionPermit,
    gated: &Gated,
    holding: &Holding,
    refusal: Refusal,
    report: &Report,
    syn: Option<Syn>,
) {
    permit.signer.plain.refused.fetch_add(1, Ordering::Relaxed);
    log_refusal(report, refusal);
    release(&permit.signer, gated, None, holding, syn);
}

/// Checks the user and the permission, and grants a lease.
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
    let host = (host, checked.identity(host));
    let pair = Pair::new((user, report.uid), host, &entry.service, server);
    let programs = &signer.programs;
    programs
        .permit(&signer.tickets, &entry.programs, report.program)
        .await?;
    signer.lease(pair, Use::Plain(report.program))
}

/// Releases the SYN, and sends it in the kernel's place.
fn release(
    signer: &Signer,
    gated: &Gated,
    session: Option<SessionId>,
    holding: &Holding,
    syn: Option<Syn>,
) {
    let connection = gated.connection;
    if let Err(refusal) = gated.released().stand(signer, session) {
        return tracing::error!(%refusal, %connection, "cannot release a held connection");
    }
    // If sending fails, or the SYN gets lost, the kernel sends its own copy within a second.
    if let (Ok(sender), Some(syn)) = (holding.sender(), syn)
        && let Err(error) = sender.send(&syn)
    {
        tracing::debug!(%error, %connection, "a SYN is left to the kernel");
    }
}
