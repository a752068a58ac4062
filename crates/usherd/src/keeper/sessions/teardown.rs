//! Ends sessions: by the client, by the clock (`agenda`), by a changed policy or a disabled user. An
//! ending session takes its connections and its worker along. Both logs have the reason: the service
//! manager's at once, the signed one as soon as the disk has it (`ends`).

use std::collections::HashSet;

use tokio::sync::mpsc;
use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, Ended, SessionRecord};
use usher_local::checked::Checked;
use usher_local::clock::unix_time;
use usher_local::configuration::Configuration;
use usher_local::control::EndingView;
use usher_proto::Certified;
use usher_proto::connection::ConnectionTuple;
use usher_proto::name::HostName;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::Notice;

use super::table::agenda::{self, REMEMBERED};
use super::table::tokens;
use super::{verifier, views};
use crate::keeper::Keeper;
use crate::keeper::queues::queue::Queue;
use crate::keeper::queues::{Key, LostAccount};

/// A session to end.
pub struct Entry {
    /// Its id.
    pub session: SessionId,
    /// Its record in the table.
    pub record: SessionRecord,
    /// The reason.
    pub reason: Refusal,
}

/// Closes a session at the request of its client host: no more connections; existing ones continue.
///
/// # Errors
/// [`Refusal::UnknownSession`], also for another host's session, and [`Refusal::SessionEnded`].
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

/// Ends one session with its connections; if it was the user's last at this service, the queue and the
/// worker end, too.
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
/// lists for the user. Returns them with the connections that were cut, by the names of the
/// configuration `former`.
///
/// # Errors
/// When the session table or the table of connections cannot be read.
pub fn end_forbidden(keeper: &Keeper, former: &Checked) -> Result<Vec<EndingView>, KernelError> {
    let configuration = keeper.configuration.get();
    let now = unix_time();
    let mut forbidden = Vec::new();
    let sessions = keeper.admission.sessions()?;
    // Services may have changed their interval of authentication.
    keeper.agenda.clear();
    for (session, mut record) in sessions {
        if is_live(&record) {
            let permitted = permitted(keeper, &configuration.checked, &session, &record, now)
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
    leave_out_idle(&mut forbidden, &rows);
    let mut views = views::ending_views(keeper, former, &forbidden, &rows);
    let cut = end_all(keeper, forbidden);
    // Connections of killed workers have left the table by then; others may have come.
    let known: HashSet<ConnectionTuple> = rows.iter().map(|row| row.connection).collect();
    for row in cut.iter().filter(|row| !known.contains(&row.connection)) {
        let session = row.session.to_string();
        let view = views
            .iter_mut()
            .find(|view| view.session.session == session);
        if let Some(view) = view {
            view.session.connections.push(views::connection_view(row));
        }
    }
    Ok(views)
}

/// The sessions that [`end_forbidden`] would end now if this configuration were in force. Changes
/// nothing.
///
/// # Errors
/// When the session table or the table of connections cannot be read.
pub fn would_end(
    keeper: &Keeper,
    candidate: &Configuration,
) -> Result<Vec<EndingView>, KernelError> {
    let now = unix_time();
    let configuration = keeper.configuration.get();
    let sessions = keeper.admission.sessions()?.into_iter();
    let mut forbidden: Vec<Entry> = sessions
        .filter(|(_, record)| is_live(record))
        .filter_map(|(session, record)| {
            let reason = permitted(keeper, &candidate.checked, &session, &record, now).err()?;
            Some(Entry {
                session,
                record,
                reason,
            })
        })
        .collect();
    let rows = keeper.admission.admissions()?;
    leave_out_idle(&mut forbidden, &rows);
    Ok(views::ending_views(
        keeper,
        &configuration.checked,
        &forbidden,
        &rows,
    ))
}

/// Leaves out closed sessions without connections: nothing of them is left to end.
fn leave_out_idle(forbidden: &mut Vec<Entry>, rows: &[AdmissionRow]) {
    let with_connections = with_connections(rows);
    forbidden
        .retain(|entry| entry.record.ended.is_none() || with_connections.contains(&entry.session));
}

/// Makes a session end no later than this.
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

/// The certificate that makes a session's key the user's; a session that lacks its certificate ends.
fn certificate(
    keeper: &Keeper,
    session: &SessionId,
    record: &SessionRecord,
) -> Result<Option<Certified>, Refusal> {
    if !record.certified {
        return Ok(None);
    }
    match keeper.admission.certificate(session) {
        Ok(Some(certificate)) => Ok(Some(certificate)),
        Ok(None) => Err(Refusal::KeeperUnavailable),
        Err(error) => {
            tracing::error!(%session, %error, "reading the certificate of a session; it ends");
            Err(Refusal::KeeperUnavailable)
        }
    }
}

/// The reason for the end of an expired session: its certificate, its key, or its user as a guest has
/// expired.
pub fn expired(keeper: &Keeper, session: &SessionId, record: &SessionRecord) -> Refusal {
    let configuration = keeper.configuration.get();
    let certificate = certificate(keeper, session, record);
    if let Ok(Some(certificate)) = &certificate
        && certificate.valid_before <= record.expires
    {
        return Refusal::ExpiredCertificate;
    }
    let keys = configuration
        .checked
        .keys
        .get(&record.user)
        .into_iter()
        .flatten();
    let mut of_session = keys.filter(|key| key.fingerprint == record.key_fingerprint);
    if of_session.any(|key| key.options.expires == Some(record.expires)) {
        return Refusal::ExpiredKey;
    }
    let service = configuration.checked.service(record.service);
    let until = service.and_then(|service| service.users.until(&record.user));
    // A guest whose time was already over was a user by the certificate.
    match until == Some(record.expires) {
        true => Refusal::GuestOver,
        false => Refusal::Expired,
    }
}

/// Checks that the session's host is the one that opened it: a host with another key is another
/// machine. A host that the policy no longer has is in no service's `hosts`.
///
/// # Errors
/// [`Refusal::HostNotPermitted`].
fn has_same_key(checked: &Checked, record: &SessionRecord) -> Result<(), Refusal> {
    match checked.policy.hosts.get(&record.host) {
        Some(host) if host.key.number(&record.host) != record.host_number => {
            Err(Refusal::HostNotPermitted)
        }
        Some(_) | None => Ok(()),
    }
}

/// The latest end of a live session by a configuration.
///
/// # Errors
/// The reason that it must end.
fn permitted(
    keeper: &Keeper,
    checked: &Checked,
    session: &SessionId,
    record: &SessionRecord,
    now: u64,
) -> Result<u64, Refusal> {
    has_same_key(checked, record)?;
    let service = checked
        .service(record.service)
        .ok_or(Refusal::UnknownService)?;
    keeper.host.destinations.serves(service)?;
    let certificate = certificate(keeper, session, record)?;
    permitted_until(checked, record, certificate.as_ref(), now)
}

/// The latest end of a session by a configuration, by its key or certificate, and by its user's time as
/// a guest.
fn permitted_until(
    checked: &Checked,
    record: &SessionRecord,
    certificate: Option<&Certified>,
    now: u64,
) -> Result<u64, Refusal> {
    if checked.disabled.contains(&record.user) {
        return Err(Refusal::DisabledUser);
    }
    let service = checked
        .service(record.service)
        .ok_or(Refusal::UnknownService)?;
    let purpose = service.keys.as_ref();
    let latest = checked.admitted_until(
        &record.user,
        &record.key_fingerprint,
        certificate,
        purpose,
        (now, record.expires),
    )?;
    checked
        .service_permits(&service.name, &record.user, certificate, &record.host, now)
        .map(|(_, until)| latest.min(until))
}

/// Whether the session is open, or closed by its client with connections that may continue.
fn is_live(record: &SessionRecord) -> bool {
    record.ended.is_none() || is_closed(record)
}

/// Whether its client has closed the session; its connections continue.
pub fn is_closed(record: &SessionRecord) -> bool {
    let closed = |ended: Ended| ended.reason == Refusal::SessionEnded;
    record.ended.is_some_and(closed)
}

/// The sessions that have connections.
pub fn with_connections(rows: &[AdmissionRow]) -> HashSet<SessionId> {
    rows.iter().map(|row| row.session).collect()
}

/// Releases the listeners of queues without a session, a worker or a connection. Ends workers, and
/// their left-over processes, of users who may no longer use the service: a session that was closed
/// before could not end them.
pub fn remove_unused_queues(keeper: &Keeper) {
    let queues = keeper.queues.list();
    if queues.is_empty() {
        return;
    }
    let rows = match keeper.admission.admissions() {
        Ok(rows) => rows,
        Err(error) => return tracing::error!(%error, "reading the admission table"),
    };
    // Read this once, not for each of thousands of queues.
    let used: HashSet<Key> = rows.iter().map(|row| (row.service, row.uid)).collect();
    let (configuration, now) = (keeper.configuration.get(), unix_time());
    for queue in queues {
        if keeper.shares.has_live(queue.key) || used.contains(&queue.key) {
            continue;
        }
        if !is_user(&configuration.checked, &queue, now) || !queue.has_worker() {
            keeper.queues.remove(queue.key);
        }
    }
}

/// Whether the queue's user may use its service by name: a user by certificate has a session.
fn is_user(checked: &Checked, queue: &Queue, now: u64) -> bool {
    let user = &queue.account.name;
    let service = checked.service(queue.key.0);
    service.is_some_and(|service| service.users.has(user, now)) && !checked.disabled.contains(user)
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

/// Ends sessions with their connections, and queues without another session. Returns the connections
/// that were cut; none if the table could not be read, and they are cut later.
pub fn end_all(keeper: &Keeper, ending: Vec<Entry>) -> Vec<AdmissionRow> {
    if ending.is_empty() {
        return Vec::new();
    }
    // Mark first, so that nothing new is announced; then read, so that nothing is missed.
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
    // Close the queue before cutting its connections, so that nothing is accepted in between. Cut them
    // before killing its processes: the end of stream from a dying process would look to the client like
    // a complete transfer, not like an aborted one.
    touched.retain(|key| !keeper.shares.has_live(*key));
    let still_used = used_by_closed(keeper, &touched, &ids);
    let closed: Vec<_> = touched
        .difference(&still_used)
        .filter_map(|key| keeper.queues.close(*key))
        .collect();
    let rows = cut(keeper, &ids);
    for queue in closed {
        keeper.queues.dismiss(queue);
    }
    // Once more: a SYN whose token was under check may have been admitted since.
    keeper.uncut.lock().extend(ids);
    rows
}

/// Ends everything of the users whose accounts are reported as lost, for ever.
pub async fn end_lost_accounts(keeper: &Keeper, mut lost: mpsc::Receiver<LostAccount>) {
    while let Some(LostAccount { queue, refusal }) = lost.recv().await {
        if !queue.is_closed() {
            end_account(keeper, queue.key, refusal);
        }
    }
}

/// Ends everything of a user at a service, because the account is gone or is another by now.
pub fn end_account(keeper: &Keeper, key: Key, reason: Refusal) {
    let read = keeper
        .admission
        .sessions()
        .and_then(|sessions| Ok((sessions, keeper.admission.admissions()?)));
    let mut ending: Vec<Entry> = Vec::new();
    match read {
        Ok((sessions, rows)) => {
            let of_account = sessions
                .into_iter()
                .filter(|(_, record)| (record.service, record.uid) == key && is_live(record));
            ending.extend(of_account.map(|(session, record)| Entry {
                session,
                record,
                reason,
            }));
            leave_out_idle(&mut ending, &rows);
        }
        Err(error) => tracing::error!(%error, "reading the sessions of an account that is gone"),
    }
    end_all(keeper, ending);
    // Even if no session was left.
    keeper.queues.remove(key);
}

/// The queues among these that have connections of a closed session that does not end now: their
/// workers continue. None of them, if the table cannot be read.
fn used_by_closed(
    keeper: &Keeper,
    queues: &HashSet<Key>,
    ending: &HashSet<SessionId>,
) -> HashSet<Key> {
    if queues.is_empty() {
        return HashSet::new();
    }
    let rows = keeper.admission.admissions().unwrap_or_else(|error| {
        tracing::error!(%error, "reading the admission table; workers end with the last session");
        Vec::new()
    });
    let others = rows
        .iter()
        .map(|row| ((row.service, row.uid), row.session))
        .filter(|(key, session)| queues.contains(key) && !ending.contains(session));
    others
        .filter(|(_, session)| match keeper.admission.session(session) {
            Ok(record) => record.is_some_and(|record| is_closed(&record)),
            Err(error) => {
                tracing::error!(%error, "reading the session table");
                false
            }
        })
        .map(|(key, _)| key)
        .collect()
}

/// Cuts the connections of ended sessions, and returns them; none if the table cannot be read.
fn cut(keeper: &Keeper, ids: &HashSet<SessionId>) -> Vec<AdmissionRow> {
    match keeper.admission.admissions() {
        Ok(mut rows) => {
            rows.retain(|row| ids.contains(&row.session));
            rows.iter().for_each(|row| destroy(keeper, &row.connection));
            rows
        }
        Err(error) => {
            tracing::error!(%error, "reading the admission table; connections are cut later");
            keeper.uncut.lock().extend(ids);
            Vec::new()
        }
    }
}

/// Cuts connections that were admitted while their session ended, and those that could not be cut
/// before. Called every second.
pub fn cut_left(keeper: &Keeper) {
    let left = std::mem::take(&mut *keeper.uncut.lock());
    if !left.is_empty() {
        cut(keeper, &left);
    }
}

/// Forgets a connection that is not established, and destroys one that is. The order matters: a
/// connection forgotten in time is cut as untracked when it is established; otherwise it is established
/// and can be destroyed. In the other order a connection established in between would stay.
fn destroy(keeper: &Keeper, connection: &ConnectionTuple) {
    if let Err(error) = keeper.admission.forget(connection) {
        tracing::error!(%error, "forgetting a connection");
    }
    if let Err(error) = usher_system::connections::destroy(connection) {
        tracing::error!(client = %connection.client, %error, "cannot destroy a connection");
    }
}

pub fn mark(keeper: &Keeper, session: &SessionId, mut record: SessionRecord, reason: Refusal) {
    tracing::info!(%session, user = %record.user, host = %record.host, reason = reason.name(),
        "session ended: {reason}");
    keeper.shares.leave(session, &record);
    tokens::close(keeper, session);
    let ended = Ended {
        at: unix_time(),
        reason,
        recorded: false,
    };
    keeper.recent.enter(*session, &record, ended);
    keeper.agenda.enter(ended.at + REMEMBERED + 1, *session);
    record.ended = Some(ended);
    if let Err(error) = keeper.admission.update_session(session, &record) {
        tracing::error!(%error, "marking a session ended");
    }
    keeper.ends.enter(*session, ended);
    let session = *session;
    let notice = Notice::SessionEnded { session, reason };
    if !verifier::tell_verifier(keeper, record.host, notice) {
        tracing::debug!(%session, "the verifier was not told; the client learns it at its next announcement");
    }
}
