//! Takes up the sessions of an earlier keeper, with their queues. Ends connections and workers without a
//! session on record: only users with one are served.

use std::collections::{HashMap, HashSet};

use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, SessionRecord};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Sessions;
use super::table::{Ending, is_closed, is_live, with_connections};
use crate::keeper::host::accounts::Account;
use crate::keeper::queues::Stored;

impl Sessions {
    /// Adopts what an earlier keeper left: listeners with their waiting connections from the
    /// service manager's file descriptor store (sd_pid_notify_with_fds(3)), and sessions from the
    /// pinned table. Ends connections and workers of sessions that the table does not have. Returns whether
    /// everything has ended that the configuration forbids.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read. No connection and no worker has been ended then; unreadable
    /// records may have been removed.
    pub fn restore(&self, mut stored: Stored) -> Result<bool, KernelError> {
        // The connections of removed records are cut with those of all sessions without a record.
        self.remove_unreadable()?;
        // Close tokens before reading the connections: a token of a session without a record must admit none
        // after that.
        self.table.close_stale_tokens();
        let mut sessions = self.host.admission.sessions()?;
        let rows = self.host.admissions()?;
        // The former keeper may have ended a session without cutting its connections.
        let recorded = sessions.iter().filter(|(_, record)| is_live(record));
        let recorded: HashSet<SessionId> = recorded.map(|(session, _)| *session).collect();
        let mut lost = Vec::new();
        let connected = with_connections(&rows);
        sessions.sort_by_key(|(_, record)| record.ended.map_or(record.opened, |ended| ended.at));
        let configuration = self.host.configuration.get();
        for (session, record) in sessions {
            let key = (record.service, record.uid);
            let is_live = self.table.take_up(session, &record);
            // The connections of a closed session continue, and so does the worker that serves them.
            let continues = is_closed(&record) && connected.contains(&session);
            if !(is_live || continues) || self.queues.note_host(key, &record.host) {
                continue;
            }
            let restored = match configuration.checked.service(key.0) {
                None => Err(Refusal::UnknownService),
                // The account is looked up when a process of the user is started: here, all users
                // would wait for one look-up after the other.
                Some(service) => {
                    let account = Account {
                        name: record.user.clone(),
                        uid: record.uid,
                    };
                    self.queues
                        .restore(service, &account, &record.host, &mut stored)
                }
            };
            match restored {
                Ok(()) => tracing::info!(user = %record.user, "queue taken up again"),
                Err(refusal) => {
                    tracing::warn!(user = %record.user, reason = refusal.name(), "a session of an earlier keeper is ended: {refusal}");
                    lost.push(Ending::new(session, record, refusal));
                }
            }
        }
        self.queues
            .restore_shared(&configuration.checked, &mut stored);
        stored.forget_rest();
        self.end_all(lost);
        // Cut connections before ending workers: to its client, a worker's death looks like the end of a
        // complete transfer.
        self.cut_unrecorded(&recorded, &rows);
        self.queues.end_unrecorded();
        let ended = self.end_forbidden(&configuration.checked);
        if let Err(error) = &ended {
            tracing::error!(%error, "cannot look through the sessions of an earlier keeper");
        }
        Ok(ended.is_ok())
    }

    /// Removes records that cannot be read, so that one of them does not hide all others, and returns their
    /// sessions.
    fn remove_unreadable(&self) -> Result<HashSet<SessionId>, KernelError> {
        let removed = self.host.admission.remove_unreadable_sessions()?;
        for session in &removed {
            tracing::error!(%session, "the record of a session cannot be read and is removed: its \
                connections are cut; its client opens another session by itself");
        }
        Ok(removed.into_iter().collect())
    }

    /// All sessions, for callers that end some. Sessions with unreadable records are ended first, because
    /// they would hide all others.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn readable(&self) -> Result<Vec<(SessionId, SessionRecord)>, KernelError> {
        match self.host.admission.sessions() {
            Err(KernelError::UnreadableEntry(_)) => {
                self.end_without_records(self.remove_unreadable()?);
                self.host.admission.sessions()
            }
            sessions => sessions,
        }
    }

    /// Cuts the connections of all sessions except the `recorded` ones, which are on record and live.
    fn cut_unrecorded(&self, recorded: &HashSet<SessionId>, rows: &[AdmissionRow]) {
        let mut lost: HashMap<SessionId, usize> = HashMap::new();
        for row in rows.iter().filter(|row| !recorded.contains(&row.session)) {
            *lost.entry(row.session).or_default() += 1;
        }
        if lost.is_empty() {
            return;
        }
        for (session, connections) in &lost {
            tracing::warn!(%session, connections, "connections of a session that has ended or has no record are cut; its \
                client opens another session by itself");
        }
        let lost: HashSet<SessionId> = lost.into_keys().collect();
        self.connections.cut(&lost);
        self.connections.cut_again(lost);
    }
}
