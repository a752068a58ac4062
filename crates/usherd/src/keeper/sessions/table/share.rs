//! A user's share at a service, from one host. A user has at most [`SESSIONS`] live sessions in the
//! session table, so that one user cannot fill it. A client normally has one; restarted signers
//! open more, and the oldest without connections makes room for a new one. The share also holds the
//! time of the user's last authentication.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use usher_base::HostName;
use usher_kernel::admission::SessionRecord;
use usher_proto::session_id::SessionId;

use crate::keeper::queues::Key;

/// Most live sessions of one user at one service from one host.
pub const SESSIONS: usize = 16;

/// Most sessions of one user at one service from one host in the table, including ended ones that are
/// still kept: further ones are refused until some are forgotten.
pub const KEPT: usize = 4096;

/// The shares of each user at each service, from each host.
pub struct Shares {
    shares: Mutex<HashMap<Key, HashMap<HostName, Share>>>,
    /// The number of sessions in the table, and its limit.
    kept: AtomicUsize,
    most: usize,
}

#[derive(Default)]
struct Share {
    /// Live sessions, oldest first.
    live: VecDeque<SessionId>,
    /// The number in the table, including ended ones.
    kept: usize,
    /// When the user was last authenticated, in seconds since 1970.
    authenticated: u64,
}

impl Shares {
    /// The shares of a table with this many places.
    pub fn new(most: u32) -> Self {
        Self {
            shares: Mutex::default(),
            kept: AtomicUsize::new(0),
            most: most as usize,
        }
    }

    /// Enters a live session that has just been authenticated or adopted.
    pub fn enter(&self, session: SessionId, record: &SessionRecord, now: u64) {
        self.with(record, |share| {
            share.live.push_back(session);
            share.authenticated = now;
        });
    }

    /// Notes that a session has ended.
    pub fn leave(&self, session: &SessionId, record: &SessionRecord) {
        self.with(record, |share| {
            share.live.retain(|entered| entered != session);
        });
    }

    /// Notes that the table has a session, live or ended.
    pub fn keep(&self, record: &SessionRecord) {
        self.with(record, |share| share.kept += 1);
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the table has forgotten a session.
    pub fn forget(&self, record: &SessionRecord) {
        let kept = self.with(record, |share| {
            let kept = share.kept > 0;
            share.kept -= usize::from(kept);
            kept
        });
        self.kept.fetch_sub(usize::from(kept), Ordering::Relaxed);
    }

    /// Notes that the user has been authenticated again.
    pub fn authenticated(&self, record: &SessionRecord, now: u64) {
        self.with(record, |share| share.authenticated = now);
    }

    /// When the user was last authenticated in any of these sessions, in seconds since 1970.
    pub fn last_authenticated(&self, record: &SessionRecord) -> u64 {
        self.with(record, |share| share.authenticated)
    }

    /// Whether the table is full.
    pub fn is_full(&self) -> bool {
        self.kept.load(Ordering::Relaxed) >= self.most
    }

    /// Whether the table has as many sessions of `record`'s share as it may.
    pub fn crowded(&self, record: &SessionRecord) -> bool {
        self.with(record, |share| share.kept >= KEPT)
    }

    /// The sessions of `record`'s share, oldest first, if the share is used up.
    pub fn used_up(&self, record: &SessionRecord) -> Option<Vec<SessionId>> {
        self.with(record, |share| {
            (share.live.len() >= SESSIONS).then(|| share.live.iter().copied().collect())
        })
    }

    /// Whether a user has a live session at a service, from any host.
    pub fn has_live(&self, key: Key) -> bool {
        self.shares
            .lock()
            .get(&key)
            .is_some_and(|hosts| hosts.values().any(|share| !share.live.is_empty()))
    }

    /// Forgets a share that is empty afterwards.
    fn with<T>(&self, record: &SessionRecord, change: impl FnOnce(&mut Share) -> T) -> T {
        let mut shares = self.shares.lock();
        let key = (record.service, record.uid);
        let hosts = shares.entry(key).or_default();
        let share = hosts.entry(record.host.clone()).or_default();
        let outcome = change(share);
        if share.live.is_empty() && share.kept == 0 {
            hosts.remove(&record.host);
        }
        if hosts.is_empty() {
            shares.remove(&key);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::sessions::table::example;

    fn record(uid: u32) -> SessionRecord {
        SessionRecord {
            uid,
            ..example::record()
        }
    }

    #[test]
    fn a_share_is_one_users_and_is_given_back() {
        let shares = Shares::new(65_536);
        for number in 0..SESSIONS {
            assert_eq!(shares.used_up(&record(1000)), None);
            shares.enter(SessionId::from_bytes([number as u8; 16]), &record(1000), 1);
        }
        let full = shares.used_up(&record(1000)).unwrap();
        assert_eq!(full[0], SessionId::from_bytes([0; 16]));
        assert_eq!(shares.used_up(&record(1001)), None);
        shares.leave(&full[0], &record(1000));
        assert_eq!(shares.used_up(&record(1000)), None);
    }

    #[test]
    fn a_user_is_at_a_service_as_long_as_a_session_of_any_host_lives() {
        let shares = Shares::new(65_536);
        let (here, mut there) = (record(1000), record(1000));
        there.host = "tablet".parse().unwrap();
        let [first, second] = [1, 2].map(|number| SessionId::from_bytes([number; _]));
        shares.enter(first, &here, 1);
        shares.enter(second, &there, 2);
        shares.leave(&first, &here);
        assert!(shares.has_live((1, 1000)) && !shares.has_live((1, 1001)));
        shares.leave(&second, &there);
        assert!(!shares.has_live((1, 1000)));
        assert!(shares.shares.lock().is_empty());
    }

    #[test]
    fn an_authentication_counts_for_all_sessions_of_the_user_from_that_host() {
        let shares = Shares::new(65_536);
        let (here, mut there) = (record(1000), record(1000));
        there.host = "tablet".parse().unwrap();
        for (number, record) in [(1, &here), (2, &here), (3, &there)] {
            shares.keep(record);
            shares.enter(SessionId::from_bytes([number; _]), record, 10);
        }
        shares.authenticated(&here, 20);
        // The sessions have been closed; their connections continue.
        for number in [1, 2] {
            shares.leave(&SessionId::from_bytes([number; _]), &here);
        }
        assert_eq!(shares.last_authenticated(&here), 20);
        assert_eq!(shares.last_authenticated(&there), 10);
    }

    #[test]
    fn sessions_that_are_remembered_count_until_they_are_forgotten() {
        let shares = Shares::new(65_536);
        for _ in 0..KEPT {
            assert!(!shares.crowded(&record(1000)));
            shares.keep(&record(1000));
        }
        assert!(shares.crowded(&record(1000)));
        assert!(!shares.crowded(&record(1001)));
        shares.forget(&record(1000));
        assert!(!shares.crowded(&record(1000)));
    }

    #[test]
    fn a_table_is_full_of_all_users_sessions_until_one_is_forgotten() {
        let shares = Shares::new(2);
        for uid in [1000, 1001] {
            assert!(!shares.is_full());
            shares.keep(&record(uid));
        }
        assert!(shares.is_full());
        // Nothing of this one is kept.
        shares.forget(&record(1002));
        assert!(shares.is_full());
        shares.forget(&record(1001));
        assert!(!shares.is_full());
    }
}
