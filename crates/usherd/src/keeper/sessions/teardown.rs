//! Teardown: an ending session takes its connections and its worker along. Both logs have the reason:
//! the service manager's at once, the signed one as soon as the disk has it.

use std::collections::HashSet;

use tokio::sync::mpsc;
use usher_kernel::admission::AdmissionRow;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Sessions;
use super::table::{Ending, is_closed, is_live, leave_out_idle};
use crate::keeper::queues::{Key, LostAccount};

impl Sessions {
    /// Ends sessions and their connections. Also ends queues that no other session uses, with their workers.
    /// Returns the connections that were cut; none if the table could not be read: they are cut later then.
    pub fn end_all(&self, ending: Vec<Ending>) -> Vec<AdmissionRow> {
        if ending.is_empty() {
            return Vec::new();
        }
        // Mark the sessions as ended first, so that nothing new is announced; then read their connections.
        let mut touched: HashSet<Key> = HashSet::new();
        let mut ids: HashSet<SessionId> = HashSet::new();
        for Ending {
            session,
            record,
            reason,
        } in ending
        {
            touched.insert((record.service, record.uid));
            ids.insert(session);
            self.table.end(&session, record, reason);
        }
        self.end_served(touched, ids)
    }

    /// Like [`Sessions::end_all`], for sessions without records. The presences have their users and services.
    pub(super) fn end_without_records(&self, ids: HashSet<SessionId>) {
        self.table.close_stale_tokens();
        let touched = self.table.presences.leave_all(&ids);
        self.end_served(touched, ids);
    }

    /// Ends the connections of ended sessions, and queues that no other session uses, with their workers.
    fn end_served(&self, mut touched: HashSet<Key>, ids: HashSet<SessionId>) -> Vec<AdmissionRow> {
        // Close the queue before cutting its connections, so that nothing is accepted in between. Cut
        // them before killing its processes: the end of stream from a dying process would look to the
        // client like a complete transfer, not like an aborted one.
        touched.retain(|key| !self.table.presences.has_live(*key));
        let still_used = self.used_by_closed(&touched, &ids);
        let closed: Vec<_> = touched
            .difference(&still_used)
            .filter_map(|key| self.queues.close(*key))
            .collect();
        let rows = self.connections.cut(&ids);
        for queue in closed {
            self.queues.dismiss(queue);
        }
        // Cut once more: a SYN whose token was under check may have been admitted since.
        self.connections.cut_again(ids);
        rows
    }

    /// Ends everything of the users whose accounts are reported as lost, for ever.
    pub async fn end_lost_accounts(&self, mut lost: mpsc::Receiver<LostAccount>) {
        while let Some(LostAccount { keys, refusal }) = lost.recv().await {
            let keys = keys.into_iter().filter(|key| self.queues.has(*key));
            self.end_accounts(&keys.collect(), refusal);
        }
    }

    /// Ends all sessions and queues of users at services, because an account is gone or was replaced. If that
    /// account is a shared service's, `keys` has all users of the service.
    fn end_accounts(&self, keys: &HashSet<Key>, reason: Refusal) {
        let mut ending: Vec<Ending> = Vec::new();
        match self
            .readable()
            .and_then(|sessions| Ok((sessions, self.host.admissions()?)))
        {
            Ok((sessions, rows)) => {
                for (session, record) in sessions {
                    if keys.contains(&(record.service, record.uid)) && is_live(&record) {
                        ending.push(Ending::new(session, record, reason));
                    }
                }
                leave_out_idle(&mut ending, &rows);
            }
            Err(error) => {
                tracing::error!(%error, "cannot read the sessions of an account that is gone");
                // A member is left alone, because its process also serves others, and only the tables tell
                // which connections are the member's. The account is looked at again in its turn.
                let own = keys.iter().filter(|key| !self.queues.is_member(**key));
                return own.for_each(|key| self.queues.remove(*key));
            }
        }
        self.end_all(ending);
        // Remove the queues even if no session was left.
        for key in keys {
            self.queues.remove(*key);
        }
    }

    /// The queues among these that have connections of a closed session that does not end now: their
    /// workers continue. Returns no queue if the table cannot be read.
    fn used_by_closed(&self, queues: &HashSet<Key>, ending: &HashSet<SessionId>) -> HashSet<Key> {
        if queues.is_empty() {
            return HashSet::new();
        }
        let rows = self.host.admissions().unwrap_or_else(|error| {
            tracing::error!(%error,
                "cannot read the admission table; workers end with the last session");
            Vec::new()
        });
        let others = rows
            .iter()
            .map(|row| ((row.service, row.uid), row.session))
            .filter(|(key, session)| queues.contains(key) && !ending.contains(session));
        others
            .filter(|(_, session)| match self.host.admission.session(session) {
                Ok(record) => record.is_some_and(|record| is_closed(&record)),
                Err(error) => {
                    tracing::error!(%error, "cannot read the session table");
                    false
                }
            })
            .map(|(key, _)| key)
            .collect()
    }
}
