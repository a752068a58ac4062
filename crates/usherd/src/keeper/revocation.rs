//! Ending sessions: by the client, by the clock (`agenda`), by a changed policy or a disabled user.
//! What ends takes its connections and its worker along, and the log says why.

use std::collections::{HashMap, HashSet};

use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, Ended, SessionRecord};
use usher_local::applied::{Applied, Checked};
use usher_local::control::SessionView;
use usher_proto::connection::ConnectionTuple;
use usher_proto::keeper_record::KeeperReply;
use usher_proto::name::HostName;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::agenda::{self, REMEMBERED};
use super::queues::Key;
use super::{Keeper, service_by_id, tokens, who};
use crate::start::unix_time;

/// A session that is to end.
pub struct Entry {
    /// Which.
    pub session: SessionId,
    /// As the table has it.
    pub record: SessionRecord,
    /// Why.
    pub reason: Refusal,
}

/// The client host has closed a session of its own: no more connections; those there are go on.
///
/// # Errors
/// [`Refusal::UnknownSession`], also for another host's, and [`Refusal::SessionEnded`].
pub fn close(keeper: &Keeper, session: &SessionId, host: &HostName) -> Result<(), Refusal> {
    let record = keeper
        .admission
        .session(session)
        .map_err(|error| {
            tracing::error!(%error, "reading the session table");
            Refusal::KeeperUnavailable
        })?
        .filter(|record| record.host == *host)
        .ok_or(Refusal::UnknownSession)?;
    if record.ended.is_some() {
        return Err(Refusal::SessionEnded);
    }
    mark(keeper, session, record, Refusal::SessionEnded);
    Ok(())
}

/// Ends one session with its connections; when it was the user's last with this service, the
/// queue and the worker go, too.
pub fn end(keeper: &Keeper, session: &SessionId, record: SessionRecord, reason: Refusal) {
    let session = *session;
    end_all(
        keeper,
        vec![Entry {
            session,
            record,
            reason,
        }],
    );
}

/// Ends every session that the configuration in force no longer permits, or whose key it no longer
/// lists for the user.
///
/// # Errors
/// When the session table cannot be read.
pub fn end_forbidden(keeper: &Keeper) -> Result<Vec<SessionView>, KernelError> {
    let configuration = keeper.configuration();
    let (applied, checked) = &*configuration;
    let now = unix_time();
    let mut forbidden = Vec::new();
    let sessions = keeper.admission.sessions()?;
    // Services may demand another interval of authentication than before.
    keeper.agenda.clear();
    for (session, mut record) in sessions {
        if record.ended.is_none() || is_closed(&record) {
            let permitted = permitted_until(applied, checked, &record, now)
                .and_then(|latest| shorten(keeper, &session, &mut record, latest));
            if let Err(reason) = permitted {
                forbidden.push(Entry {
                    session,
                    record: record.clone(),
                    reason,
                });
            }
        }
        agenda::enter(keeper, session, &record);
    }
    let rows = match keeper.admission.admissions() {
        Ok(rows) => rows,
        Err(error) => {
            end_all(keeper, forbidden);
            return Err(error);
        }
    };
    let with_connections = with_connections(&rows);
    forbidden
        .retain(|entry| entry.record.ended.is_none() || with_connections.contains(&entry.session));
    let tokens = who::token_positions(keeper).unwrap_or_else(|error| {
        tracing::error!(%error, "reading the table of tokens");
        HashMap::new()
    });
    let views = forbidden
        .iter()
        .map(|entry| who::session_view(checked, &entry.session, &entry.record, &rows, &tokens))
        .collect();
    end_all(keeper, forbidden);
    Ok(views)
}

/// Has a session end no later than this.
fn shorten(
    keeper: &Keeper,
    session: &SessionId,
    record: &mut SessionRecord,
    latest: u64,
) -> Result<(), Refusal> {
    if latest >= record.expires {
        return Ok(());
    }
    record.expires = latest;
    keeper
        .admission
        .update_session(session, record)
        .map_err(|error| {
            tracing::error!(%error, "shortening a session; it ends now");
            Refusal::KeeperUnavailable
        })
}

/// Until when a session may live by a configuration, as far as its key says.
fn permitted_until(
    applied: &Applied,
    checked: &Checked,
    record: &SessionRecord,
    now: u64,
) -> Result<u64, Refusal> {
    if applied.is_disabled(&record.user) {
        return Err(Refusal::DisabledUser);
    }
    let service = service_by_id(checked, record.service).ok_or(Refusal::UnknownService)?;
    let purpose = service.keys.as_ref();
    let key = checked.user_key(&record.user, &record.key_fingerprint, purpose, now)?;
    checked
        .policy
        .service_permits(&service.name, &record.user, &record.host)
        .map(|_| key.latest(record.expires))
}

/// Whether its client has closed the session, whose connections go on.
pub fn is_closed(record: &SessionRecord) -> bool {
    let closed = |ended: Ended| ended.reason == Refusal::SessionEnded;
    record.ended.is_some_and(closed)
}

/// The sessions that have connections.
pub fn with_connections(rows: &[AdmissionRow]) -> HashSet<SessionId> {
    rows.iter().map(|row| row.session).collect()
}

/// Gives back the listeners of queues without a session, a worker or a connection.
pub fn remove_unused_queues(keeper: &Keeper) {
    let queues = keeper.queues.list();
    if queues.is_empty() {
        return;
    }
    let rows = match keeper.admission.admissions() {
        Ok(rows) => rows,
        Err(error) => return tracing::error!(%error, "reading the admission table"),
    };
    for queue in queues {
        let used = rows.iter().any(|row| (row.service, row.uid) == queue.key);
        if !keeper.shares.has_live(queue.key) && !used && !queue.has_worker() {
            keeper.queues.remove(keeper, queue.key);
        }
    }
}

/// Cuts established connections whose announcement was gone when they were established.
pub fn cut_untracked(keeper: &Keeper) {
    match keeper.admission.drain_untracked() {
        Ok(connections) => {
            for connection in connections {
                tracing::warn!(client = %connection.client, server = %connection.server,
                    "cut a connection that is not in the admission table");
                destroy(keeper, &connection);
            }
        }
        Err(error) => tracing::error!(%error, "reading untracked connections"),
    }
}

/// Makes room in a user's share of the session table: the oldest session without connections ends.
///
/// # Errors
/// [`Refusal::Overloaded`] when all of them have connections, or too many have just ended.
pub fn make_room(keeper: &Keeper, fresh: &SessionRecord) -> Result<(), Refusal> {
    if keeper.shares.crowded(fresh) {
        return Err(Refusal::Overloaded);
    }
    let Some(sessions) = keeper.shares.used_up(fresh) else {
        return Ok(());
    };
    let failed = |error| {
        tracing::error!(%error, "making room in the session table");
        Refusal::KeeperUnavailable
    };
    let rows = keeper.admission.admissions().map_err(failed)?;
    let idle = sessions
        .iter()
        .find(|session| !rows.iter().any(|row| row.session == **session));
    let oldest = idle.ok_or(Refusal::Overloaded)?;
    match keeper.admission.session(oldest).map_err(failed)? {
        Some(record) => mark(keeper, oldest, record, Refusal::SessionEnded),
        None => keeper.shares.leave(oldest, fresh),
    }
    Ok(())
}

/// Ends sessions with their connections, and what no session is left for.
pub fn end_all(keeper: &Keeper, ending: Vec<Entry>) {
    if ending.is_empty() {
        return;
    }
    // Marked first, so that nothing new is announced; then looked at, so that nothing is missed.
    let mut touched: HashSet<Key> = HashSet::new();
    let mut ids: HashSet<SessionId> = HashSet::new();
    for Entry {
        session,
        record,
        reason,
    } in ending
    {
        touched.insert((record.service, record.uid));
        ids.insert(session);
        mark(keeper, &session, record, reason);
    }
    // The queue goes before its connections are cut: nothing is accepted in between.
    for key in touched {
        if !keeper.shares.has_live(key) {
            keeper.queues.remove(keeper, key);
        }
    }
    cut(keeper, ids);
}

/// Cuts the connections of sessions that have ended; later, when the table cannot be read now.
fn cut(keeper: &Keeper, ids: HashSet<SessionId>) {
    match keeper.admission.admissions() {
        Ok(rows) => rows
            .iter()
            .filter(|row| ids.contains(&row.session))
            .for_each(|row| destroy(keeper, &row.connection)),
        Err(error) => {
            tracing::error!(%error, "reading the admission table; connections are cut later");
            keeper.uncut().extend(ids);
        }
    }
}

/// Cuts what could not be cut before. Called every second.
pub fn cut_left(keeper: &Keeper) {
    let left = std::mem::take(&mut *keeper.uncut());
    if !left.is_empty() {
        cut(keeper, left);
    }
}

/// Forgets a connection that is not established and destroys it when it is. In this order: what is
/// forgotten in time is cut as untracked when it is established, what is not is established and can
/// be destroyed. The other way round a connection established in between would stay.
fn destroy(keeper: &Keeper, connection: &ConnectionTuple) {
    if let Err(error) = keeper.admission.forget(connection) {
        tracing::error!(%error, "forgetting a connection");
    }
    if let Err(error) = usher_kernel::connections::destroy(connection) {
        tracing::error!(client = %connection.client, %error, "cannot destroy a connection");
    }
}

fn mark(keeper: &Keeper, session: &SessionId, mut record: SessionRecord, reason: Refusal) {
    tracing::info!(%session, user = %record.user, host = %record.host, reason = reason.name(),
        "session ended: {reason}");
    keeper.shares.leave(session, &record);
    tokens::close(keeper, session);
    let ended = Ended {
        at: unix_time(),
        reason,
    };
    keeper.recent.enter(*session, &record, ended);
    keeper.agenda.enter(ended.at + REMEMBERED + 1, *session);
    record.ended = Some(ended);
    if let Err(error) = keeper.admission.update_session(session, &record) {
        tracing::error!(%error, "marking a session ended");
    }
    let told = KeeperReply::SessionEnded {
        session: *session,
        host: record.host,
        reason,
    }
    .encode();
    let verifier = keeper.verifier();
    if verifier
        .as_ref()
        .is_some_and(|verifier| verifier.try_send(told).is_err())
    {
        tracing::debug!(%session, "the verifier was not told; the client learns it at its next announcement");
    }
}
