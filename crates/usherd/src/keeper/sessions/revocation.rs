//! Revocation: a changed policy, or a disabled user, ends what it no longer permits.

use std::collections::HashSet;

use usher_base::ConnectionTuple;
use usher_daemon::clock::unix_time;
use usher_kernel::KernelError;
use usher_kernel::admission::SessionRecord;
use usher_local::checked::Checked;
use usher_local::configuration::Configuration;
use usher_local::requests::EndingView;
use usher_proto::Certified;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::table::{Ending, is_live, leave_out_idle};
use super::{Sessions, views};
use crate::keeper::queues::Key;
use crate::keeper::queues::queue::Queue;

impl Sessions {
    /// Ends every session that the configuration in force no longer permits, or whose key it no longer lists
    /// for the user. Returns these sessions with the connections that were cut; services have their names by
    /// the configuration `former`.
    pub fn end_forbidden(&self, former: &Checked) -> Result<Vec<EndingView>, KernelError> {
        let configuration = self.host.configuration.get();
        let now = unix_time();
        let mut forbidden = Vec::new();
        let sessions = self.readable()?;
        // Services may have another interval of authentication, so all sessions are scheduled anew.
        self.table.agenda.clear();
        for (session, mut record) in sessions {
            if is_live(&record) {
                let permitted = self
                    .permitted(&configuration.checked, &session, &record, now)
                    .and_then(|latest| self.table.shorten(&session, &mut record, latest));
                if let Err(reason) = permitted {
                    forbidden.push(Ending::new(session, record.clone(), reason));
                }
            }
            self.table.schedule(session, &record);
        }
        let rows = match self.host.admissions() {
            Ok(rows) => rows,
            Err(error) => {
                self.end_all(forbidden);
                return Err(error);
            }
        };
        leave_out_idle(&mut forbidden, &rows);
        let mut views = self.ending_views(former, &forbidden, &rows);
        let cut = self.end_all(forbidden);
        // `cut` lacks the connections of killed workers, and `rows` lacks newer connections.
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

    /// The sessions that [`Sessions::end_forbidden`] would end now if this configuration were in
    /// force. Changes nothing.
    pub fn would_end(&self, candidate: &Configuration) -> Result<Vec<EndingView>, KernelError> {
        let now = unix_time();
        let configuration = self.host.configuration.get();
        let sessions = self.host.admission.sessions()?.into_iter();
        let mut forbidden: Vec<Ending> = sessions
            .filter(|(_, record)| is_live(record))
            .filter_map(|(session, record)| {
                let reason = self
                    .permitted(&candidate.checked, &session, &record, now)
                    .err()?;
                Some(Ending::new(session, record, reason))
            })
            .collect();
        let rows = self.host.admissions()?;
        leave_out_idle(&mut forbidden, &rows);
        Ok(self.ending_views(&configuration.checked, &forbidden, &rows))
    }

    /// The latest time at which a configuration lets a live session end.
    ///
    /// # Errors
    /// The reason that it must end.
    fn permitted(
        &self,
        checked: &Checked,
        session: &SessionId,
        record: &SessionRecord,
        now: u64,
    ) -> Result<u64, Refusal> {
        is_same_host(checked, record)?;
        let service = checked
            .service(record.service)
            .ok_or(Refusal::UnknownService)?;
        if !self
            .queues
            .are_served_by(service, (record.service, record.uid))
        {
            return Err(Refusal::ServiceChanged);
        }
        self.host.can_restrict(service)?;
        let certificate = self.table.certificate(session, record)?;
        permitted_until(checked, record, certificate.as_ref(), now)
    }

    /// Releases the listeners of queues without a session, a worker or a connection. Ends workers, and their
    /// left-over processes, of users who may no longer use the service and have no session: no end of a
    /// session ends these workers.
    pub fn remove_unused_queues(&self) {
        let queues = self.queues.list();
        if queues.is_empty() {
            return;
        }
        let rows = match self.host.admissions() {
            Ok(rows) => rows,
            Err(error) => return tracing::error!(%error, "cannot read the admission table"),
        };
        // Read this once, not for each of thousands of queues.
        let used: HashSet<Key> = rows.iter().map(|row| (row.service, row.uid)).collect();
        let (configuration, now) = (self.host.configuration.get(), unix_time());
        for key in self.queues.members() {
            if !self.table.presences.has_live(key) && !used.contains(&key) {
                self.queues.remove(key);
            }
        }
        for queue in queues {
            let service = configuration.checked.service(queue.key.0);
            if service.is_some_and(|service| !queue.belongs_to(service)) {
                self.queues.remove(queue.key);
                continue;
            }
            if queue.is_shared {
                let is_used = self.queues.has_members(&queue) || queue.has_worker();
                if service.is_none() || !is_used {
                    self.queues.remove(queue.key);
                }
                continue;
            }
            if self.table.presences.has_live(queue.key) || used.contains(&queue.key) {
                continue;
            }
            if !is_user(&configuration.checked, &queue, now) || !queue.has_worker() {
                self.queues.remove(queue.key);
            }
        }
    }
}

/// Checks that the session's host is the one that opened it: a host whose key was replaced in one step is
/// another machine. A host that the policy no longer has is in no service's `hosts`.
///
/// # Errors
/// [`Refusal::HostNotPermitted`].
fn is_same_host(checked: &Checked, record: &SessionRecord) -> Result<(), Refusal> {
    match checked.identity_of(&record.host) {
        Some(identity) if identity.number(&record.host) != record.host_number => {
            Err(Refusal::HostNotPermitted)
        }
        Some(_) | None => Ok(()),
    }
}

/// The latest time at which a configuration lets a session end, by its key or certificate, and by its user's
/// time as a guest.
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

/// Whether the service lists the queue's user by name. A user by certificate is known by a session only.
fn is_user(checked: &Checked, queue: &Queue, now: u64) -> bool {
    let user = &queue.account.name;
    let service = checked.service(queue.key.0);
    service.is_some_and(|service| service.users.has(user, now)) && !checked.disabled.contains(user)
}
