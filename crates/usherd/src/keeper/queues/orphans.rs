//! Processes of an earlier keeper that no connection can reach any more: their listener is lost, or their
//! user has no session on record. They would wait for ever, and a new queue of the user would wait for them.

use std::collections::HashSet;

use usher_policy::Service;

use super::Queues;
use crate::keeper::host::accounts::Account;

impl Queues {
    /// If one process serves a user's whole queue, ends the user's processes, whose listener is lost: while
    /// they run, no other is started.
    pub(super) fn end_unreachable(&self, service: &Service, account: &Account) {
        if !service.style.serves_queue() {
            return;
        }
        let ended = self
            .common
            .groups
            .at(service, account.uid)
            .and_then(|group| {
                if !group.populated()? {
                    return Ok(());
                }
                tracing::warn!(service = %service.name, user = %account.name,
                    "the listener of an earlier keeper's workers is lost: they are ended");
                Ok(group.kill()?)
            });
        if let Err(error) = ended {
            tracing::error!(%error, "cannot end workers whose listener is lost");
        }
    }

    /// Ends the processes that belong to no queue. Called when every session on record has its queue, and
    /// before another session can be opened.
    pub fn end_unrecorded(&self) {
        let groups = match self.common.groups.occupied() {
            Ok(groups) => groups,
            Err(error) => {
                tracing::error!(%error, "cannot look for workers without a session on record; if their \
                    users are not served, restart the keeper, which looks again");
                return;
            }
        };
        let queues = self.list();
        let served: HashSet<_> = queues.iter().map(|queue| queue.group.path()).collect();
        for at in groups {
            if served.contains(at.group.path()) {
                continue;
            }
            tracing::warn!(
                service = at.service,
                uid = at.uid,
                "workers without a session on record are ended: their sessions have ended, or the records \
                 are lost; the user's next connection gets another worker"
            );
            if let Err(error) = at.group.kill() {
                tracing::error!(%error, service = at.service, uid = at.uid,
                    "cannot end workers without a session on record: end them by hand, by writing 1 into \
                     the file that the error names");
            }
        }
    }
}
