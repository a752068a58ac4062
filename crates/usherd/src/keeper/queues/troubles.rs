//! Failures of services, for `usher who` and `usher doctor`: failed starts and refused connections,
//! counted since the keeper started, with the last reason.

use std::collections::HashMap;

use parking_lot::Mutex;
use usher_daemon::clock::unix_time;
use usher_local::checked::Checked;
use usher_local::requests::TroubleView;

use super::queue::Queue;

/// The troubles of each service that had any, by its number: as many as policies have had services.
#[derive(Default)]
pub struct Troubles(Mutex<HashMap<u32, TroubleView>>);

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

    /// The numbers of all failed starts and of all refused connections.
    pub fn totals(&self) -> (u64, u64) {
        let troubles = self.0.lock();
        let sum = |of: fn(&TroubleView) -> u64| troubles.values().map(of).sum();
        (
            sum(|one| one.failed_starts),
            sum(|one| one.refused_connections),
        )
    }

    /// The troubles of the services that a policy has, in the order of their names.
    pub fn view(&self, checked: &Checked) -> Vec<TroubleView> {
        let troubles = self.0.lock();
        let named = troubles.iter().filter_map(|(id, trouble)| {
            let service = checked.service(*id)?.name.clone();
            Some(TroubleView {
                service,
                ..trouble.clone()
            })
        });
        let mut views: Vec<TroubleView> = named.collect();
        views.sort_by(|one, other| one.service.cmp(&other.service));
        views
    }

    fn enter(&self, queue: &Queue, reason: &str, (failed, refused): (u64, u64)) {
        let mut troubles = self.0.lock();
        let before = troubles.get(&queue.key.0);
        let (failed_before, refused_before) = before.map_or((0, 0), |before| {
            (before.failed_starts, before.refused_connections)
        });
        let trouble = TroubleView {
            service: queue.service.clone(),
            user: queue.account.name.clone(),
            reason: reason.into(),
            at: unix_time(),
            failed_starts: failed_before + failed,
            refused_connections: refused_before + refused,
            over: false,
        };
        troubles.insert(queue.key.0, trouble);
    }
}
