//! Failures of services, for `usher who` and `usher doctor`: failed starts and refused connections,
//! counted since the keeper started, with the last reason.

use std::collections::HashMap;

use parking_lot::Mutex;
use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_local::checked::Checked;
use usher_local::requests::TroubleView;

use super::queue::Queue;

/// The troubles of each service that had any, by its number: as many as policies have had services.
#[derive(Default)]
pub struct Troubles(Mutex<HashMap<u32, Trouble>>);

/// The troubles of one service.
struct Trouble {
    failed: u64,
    refused: u64,
    last: Last,
    over: bool,
}

/// The last trouble.
struct Last {
    user: UserName,
    reason: String,
    at: u64,
}

impl Troubles {
    /// Notes that a process of the service could not be started for a user, or has ended at once.
    pub fn failed(&self, queue: &Queue, reason: &str) {
        self.enter(queue, reason, (1, 0));
    }

    /// Notes that this many connections of a user were reset unserved.
    pub fn refused(&self, queue: &Queue, connections: u64, reason: &str) {
        self.enter(queue, reason, (0, connections));
    }

    /// Notes that the service serves again.
    pub fn over(&self, service: u32) {
        if let Some(trouble) = self.0.lock().get_mut(&service) {
            trouble.over = true;
        }
    }

    /// All failed starts, and all connections that were refused.
    pub fn totals(&self) -> (u64, u64) {
        let troubles = self.0.lock();
        let sum = |of: fn(&Trouble) -> u64| troubles.values().map(of).sum();
        (
            sum(|trouble| trouble.failed),
            sum(|trouble| trouble.refused),
        )
    }

    /// The troubles of the services that a policy has, in the order of their names.
    pub fn view(&self, checked: &Checked) -> Vec<TroubleView> {
        let mut views: Vec<TroubleView> = self
            .0
            .lock()
            .iter()
            .filter_map(|(id, trouble)| {
                Some(TroubleView {
                    service: checked.service(*id)?.name.clone(),
                    failed_starts: trouble.failed,
                    refused_connections: trouble.refused,
                    user: trouble.last.user.clone(),
                    reason: trouble.last.reason.clone(),
                    at: trouble.last.at,
                    over: trouble.over,
                })
            })
            .collect();
        views.sort_by(|one, other| one.service.cmp(&other.service));
        views
    }

    fn enter(&self, queue: &Queue, reason: &str, (failed, refused): (u64, u64)) {
        let last = Last {
            user: queue.account.name.clone(),
            reason: reason.into(),
            at: unix_time(),
        };
        let mut troubles = self.0.lock();
        let (before_failed, before_refused) = troubles
            .get(&queue.key.0)
            .map_or((0, 0), |before| (before.failed, before.refused));
        let trouble = Trouble {
            failed: before_failed + failed,
            refused: before_refused + refused,
            last,
            over: false,
        };
        troubles.insert(queue.key.0, trouble);
    }
}
