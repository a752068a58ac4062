//! Takes up the sessions of an earlier keeper, with their queues.

use std::sync::Arc;

use usher_local::clock::unix_time;
use usher_proto::refusal::Refusal;

use super::table::agenda;
use super::teardown;
use crate::keeper::Keeper;
use crate::keeper::host::accounts::Account;
use crate::keeper::queues::Stored;

/// Takes up what an earlier keeper left: listeners with their waiting connections from the service
/// manager's file descriptor store (sd_pid_notify_with_fds(3)), sessions from the pinned table.
pub fn restore(keeper: &Arc<Keeper>, mut stored: Stored) {
    let mut sessions = match keeper.admission.sessions() {
        Ok(sessions) => sessions,
        Err(error) => return tracing::error!(%error, "reading the session table"),
    };
    sessions.sort_by_key(|(_, record)| record.ended.map_or(record.opened, |ended| ended.at));
    let configuration = keeper.configuration.get();
    for (session, record) in sessions {
        let key = (record.service, record.uid);
        keeper.shares.keep(&record);
        if let Some(ended) = record.ended {
            keeper.shares.authenticated(&record, unix_time());
            keeper.recent.enter(session, &record, ended);
            keeper.agenda.enter(ended.at, session);
            if !ended.recorded {
                keeper.ends.enter(session, ended);
            }
            continue;
        }
        // When the user was last authenticated, the former keeper knew: counted from now on.
        keeper.shares.enter(session, &record, unix_time());
        agenda::enter(keeper, session, &record);
        if keeper.queues.has(key.0, key.1) {
            continue;
        }
        let restored = match (configuration.checked.service(key.0), stored.take(key)) {
            (None, _) => Err(Refusal::UnknownService),
            // Looked up when a process of the user is started: to do so here would keep everybody
            // waiting, a user after the other.
            (Some(service), listener) => {
                let account = Account {
                    name: record.user.clone(),
                    uid: record.uid,
                };
                keeper.queues.restore(service, &account, listener)
            }
        };
        match restored {
            Ok(()) => tracing::info!(user = %record.user, "queue taken up again"),
            Err(refusal) => {
                tracing::warn!(user = %record.user, reason = refusal.name(), "a session of an earlier keeper is ended: {refusal}");
                teardown::end(keeper, &session, record, refusal);
            }
        }
    }
    stored.forget_rest();
    if let Err(error) = teardown::end_forbidden(keeper, &configuration.checked) {
        tracing::error!(%error, "looking through the sessions of an earlier keeper");
    }
}
