//! Takes up the sessions of an earlier keeper, with their queues.

use usher_proto::refusal::Refusal;

use super::Sessions;
use crate::keeper::host::accounts::Account;
use crate::keeper::queues::Stored;

impl Sessions {
    /// Adopts what an earlier keeper left: listeners with their waiting connections from the
    /// service manager's file descriptor store (sd_pid_notify_with_fds(3)), and sessions from the
    /// pinned table.
    pub fn restore(&self, mut stored: Stored) {
        let mut sessions = match self.host.admission.sessions() {
            Ok(sessions) => sessions,
            Err(error) => return tracing::error!(%error, "reading the session table"),
        };
        sessions.sort_by_key(|(_, record)| record.ended.map_or(record.opened, |ended| ended.at));
        let configuration = self.host.configuration.get();
        for (session, record) in sessions {
            let key = (record.service, record.uid);
            if !self.table.take_up(session, &record) {
                continue;
            }
            if self.queues.has(key) {
                continue;
            }
            let restored = match (configuration.checked.service(key.0), stored.take(key)) {
                (None, _) => Err(Refusal::UnknownService),
                // The account is looked up when a process of the user is started: here, all users
                // would wait for one look-up after the other.
                (Some(service), listener) => {
                    let account = Account {
                        name: record.user.clone(),
                        uid: record.uid,
                    };
                    self.queues.restore(service, &account, listener)
                }
            };
            match restored {
                Ok(()) => tracing::info!(user = %record.user, "queue taken up again"),
                Err(refusal) => {
                    tracing::warn!(user = %record.user, reason = refusal.name(), "a session of an earlier keeper is ended: {refusal}");
                    self.end(&session, record, refusal);
                }
            }
        }
        stored.forget_rest();
        if let Err(error) = self.end_forbidden(&configuration.checked) {
            tracing::error!(%error, "looking through the sessions of an earlier keeper");
        }
    }
}
