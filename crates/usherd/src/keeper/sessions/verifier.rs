//! Records from the verifier. Each is checked against the keeper's own copy of the policy, and a
//! session is opened (`open`) only once the recorder has confirmed that the client signed it. So a
//! subverted verifier can neither invent a user, a service or a host, nor claim the presence of a
//! user who has not signed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use usher_kernel::admission::{AnnounceError, Announced, SessionRecord};
use usher_local::clock::unix_time;
use usher_local::packet_async::{AsyncPacketSocket, PacketListener};
use usher_proto::chain::{ChainElement, ChainError};
use usher_proto::connection::ConnectionTuple;
use usher_proto::keeper_record::{
    KEEPER_RECORD_SIZE, KeeperBody, KeeperReply, KeeperRequest, MAX_KEEPER_REQUEST,
};
use usher_proto::name::HostName;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Announcement, Notice, SessionRequest, Verdict};

use super::open::{Asked, open};
use super::table::tokens;
use super::teardown;
use crate::keeper::Keeper;
use crate::link::how;

/// Time limit of opening a session. The client keeps the port of the first connection for that
/// long, and for as long as it stays announced: no announcement follows after that.
const OPENING: Duration = Duration::from_secs(10);
/// The time that an announced connection may take to arrive.
const ANNOUNCED: Duration = Duration::from_secs(10);
/// Replies that may wait for the verifier.
const REPLIES: usize = 4096;

/// Accepts the verifier's connections, one at a time; a new one replaces one that hangs.
///
/// # Errors
/// Returns only when the listener fails.
pub async fn serve(keeper: Arc<Keeper>, listener: OwnedFd, verifier: u32) -> io::Result<()> {
    let listener = PacketListener::new(listener)?;
    let mut present: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let connection = listener.accept_of(verifier, "verifier").await?;
        if let Some(task) = present.take() {
            task.abort();
        }
        let (replies, queue) = mpsc::channel(REPLIES);
        *keeper.verifier.lock() = Some(replies.clone());
        tracing::info!("verifier connected");
        let keeper = Arc::clone(&keeper);
        // Ends with the connection, and so does all its work except sessions being opened.
        present = Some(tokio::spawn(async move {
            let error = tokio::select! {
                error = read(&keeper, &connection, replies) => error,
                error = write(&connection, queue) => error,
            };
            tracing::warn!(reason = how(error.as_ref()), "verifier gone");
        }));
    }
}

async fn write(
    connection: &AsyncPacketSocket,
    mut queue: mpsc::Receiver<[u8; KEEPER_RECORD_SIZE]>,
) -> Option<io::Error> {
    while let Some(record) = queue.recv().await {
        if let Err(error) = connection.send(&record).await {
            return Some(error);
        }
    }
    None
}

async fn read(
    keeper: &Arc<Keeper>,
    connection: &AsyncPacketSocket,
    replies: mpsc::Sender<[u8; KEEPER_RECORD_SIZE]>,
) -> Option<io::Error> {
    loop {
        let packet = match connection.receive(MAX_KEEPER_REQUEST).await {
            Ok(packet) if packet.bytes.is_empty() => return None,
            Ok(packet) => packet,
            Err(error) => return Some(error),
        };
        let KeeperRequest {
            request,
            host,
            body,
        } = match KeeperRequest::decode(&packet.bytes) {
            Ok(asked) => asked,
            Err(error) => return Some(io::Error::other(error)),
        };
        let verdict = match body {
            KeeperBody::Open {
                authentication,
                first,
            } => match keeper
                .recording
                .permit(authentication.opening.session(), &host)
            {
                Ok(permit) => {
                    // Looks up an account and has the record kept, which may take long; nothing
                    // else waits for it. The permit lasts until the answer is on its way. If the
                    // verifier goes, this still finishes: a recorded session exists, and cannot be
                    // recorded again.
                    let (keeper, replies) = (Arc::clone(keeper), replies.clone());
                    tokio::spawn(async move {
                        let (session, until) = (permit.session(), Instant::now() + OPENING);
                        let asked = Asked {
                            session,
                            host: &host,
                            authentication: &authentication,
                            first,
                            until,
                        };
                        let verdict = timeout_at(until, open(&keeper, &asked)).await;
                        let verdict = verdict.unwrap_or(Err(Refusal::KeeperUnavailable));
                        let is_open = verdict.is_ok();
                        if !answer(&replies, request, verdict.map(|()| None)).await && is_open {
                            close(&keeper, &session, &host);
                        }
                        drop(permit);
                    });
                    continue;
                }
                Err(refusal) => Err(refusal),
            },
            KeeperBody::Session(session, asked) => serve_session(keeper, session, &host, &asked),
        };
        answer(&replies, request, verdict).await;
    }
}

fn serve_session(
    keeper: &Keeper,
    session: SessionId,
    host: &HostName,
    asked: &SessionRequest,
) -> Verdict {
    match asked {
        SessionRequest::Announce(announcement) => announce(keeper, session, host, announcement)?,
        SessionRequest::Withdraw(connection) => withdraw(keeper, session, host, connection)?,
        SessionRequest::Close => teardown::close(keeper, &session, host)?,
        SessionRequest::Reauthenticate(element) => reauthenticate(keeper, session, host, element)?,
        SessionRequest::Tokens(key) => return tokens::open(keeper, session, host, key).map(Some),
    }
    Ok(None)
}

/// Sends an answer. Returns whether the verifier is still connected.
async fn answer(
    replies: &mpsc::Sender<[u8; KEEPER_RECORD_SIZE]>,
    request: u64,
    verdict: Verdict,
) -> bool {
    let reply = KeeperReply::Answer { request, verdict };
    let sent = replies.send(reply.encode()).await.is_ok();
    if !sent {
        tracing::debug!(?reply, "the verifier went before its answer");
    }
    sent
}

/// Sends the verifier a notice for this host. Returns whether it was accepted. Does not wait.
pub fn tell_verifier(keeper: &Keeper, host: HostName, notice: Notice) -> bool {
    let record = KeeperReply::Notice { host, notice }.encode();
    let verifier = keeper.verifier.lock();
    verifier
        .as_ref()
        .is_some_and(|verifier| verifier.try_send(record).is_ok())
}

/// Closes a session that its client does not know of.
pub fn close(keeper: &Keeper, session: &SessionId, host: &HostName) {
    if let Err(refusal) = teardown::close(keeper, session, host) {
        tracing::error!(%session, reason = refusal.name(), "cannot close abandoned session");
    }
}

/// The refusal for a kernel table that fails for another reason than its limit.
pub fn kernel_failed(error: usher_kernel::KernelError) -> Refusal {
    tracing::error!(%error, "the kernel's tables");
    Refusal::KeeperUnavailable
}

/// Withdraws an announcement. A forgotten session has no announcements left, so it counts as
/// success.
fn withdraw(
    keeper: &Keeper,
    session: SessionId,
    host: &HostName,
    connection: &ConnectionTuple,
) -> Result<(), Refusal> {
    let record = keeper.admission.session(&session).map_err(kernel_failed)?;
    if record.is_some_and(|record| record.host != *host) {
        return Err(Refusal::UnknownSession);
    }
    keeper
        .admission
        .withdraw(connection, &session)
        .map_err(kernel_failed)
}

/// A session of this host that has neither ended nor expired.
pub fn live_session(
    keeper: &Keeper,
    session: SessionId,
    host: &HostName,
) -> Result<SessionRecord, Refusal> {
    let record = keeper
        .admission
        .session(&session)
        .map_err(kernel_failed)?
        .filter(|record| record.host == *host)
        .ok_or(Refusal::UnknownSession)?;
    if record.ended.is_some() {
        return Err(Refusal::SessionEnded);
    }
    if record.expires <= unix_time() {
        return Err(Refusal::Expired);
    }
    Ok(record)
}

/// Whether a host may announce such a connection in a session for this service.
pub fn may_announce(
    keeper: &Keeper,
    service: u32,
    host: &HostName,
    connection: &ConnectionTuple,
) -> Result<(), Refusal> {
    let configuration = keeper.configuration.get();
    let service = configuration
        .checked
        .service(service)
        .ok_or(Refusal::UnknownService)?;
    if connection.server.port() != service.listen {
        return Err(Refusal::WrongServerAddress);
    }
    let hosts = &configuration.checked.policy.hosts;
    let host = hosts.get(host).ok_or(Refusal::HostNotPermitted)?;
    if !host.addresses.contains(&connection.client.ip()) {
        // A host may announce only its own connections. Otherwise another host's user could be
        // served as its own.
        return Err(Refusal::ForeignAddress);
    }
    Ok(())
}

pub fn announce(
    keeper: &Keeper,
    session: SessionId,
    host: &HostName,
    announcement: &Announcement,
) -> Result<(), Refusal> {
    let mut record = live_session(keeper, session, host)?;
    let connection = announcement.connection;
    may_announce(keeper, record.service, host, &connection)?;
    if !keeper.queues.has(record.service, record.uid) {
        return Err(Refusal::SessionEnded);
    }
    keeper.announced.take((record.service, record.uid))?;
    advance(keeper, session, &mut record, &announcement.element)?;
    let announced = Announced {
        session,
        service: record.service,
        uid: record.uid,
        lifetime: ANNOUNCED,
    };
    keeper
        .admission
        .announce(&connection, &announced)
        .map_err(|error| match error {
            AnnounceError::Full => Refusal::AdmissionTableFull,
            AnnounceError::AlreadyAnnounced => Refusal::AlreadyAnnounced,
            AnnounceError::NoConnection(_) => {
                tracing::error!(%error, "an announcement");
                Refusal::KeeperUnavailable
            }
            AnnounceError::Kernel(error) => kernel_failed(error),
        })
}

/// The user is still present: the client host has sent another element of the chain, and its policy
/// still permits the session.
fn reauthenticate(
    keeper: &Keeper,
    session: SessionId,
    host: &HostName,
    element: &ChainElement,
) -> Result<(), Refusal> {
    let mut record = live_session(keeper, session, host)?;
    advance(keeper, session, &mut record, element)
}

/// Accepts an element of the session's chain, which authenticates the user anew.
fn advance(
    keeper: &Keeper,
    session: SessionId,
    record: &mut SessionRecord,
    element: &ChainElement,
) -> Result<(), Refusal> {
    record.tip = record
        .tip
        .advance(&record.chain_salt, record.chain_length, element)
        .map_err(|error| match error {
            ChainError::Replayed => Refusal::ChainReplayed,
            ChainError::Exhausted => Refusal::ChainExhausted,
            ChainError::GapTooLarge => Refusal::ChainGap,
            ChainError::Mismatch => Refusal::ChainMismatch,
        })?;
    keeper
        .admission
        .update_session(&session, record)
        .map_err(kernel_failed)?;
    keeper.shares.authenticated(record, unix_time());
    Ok(())
}
