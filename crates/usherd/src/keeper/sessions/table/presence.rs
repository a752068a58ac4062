//! A user's presence at a service, from one host: its sessions, and the time of the last
//! authentication. A user has at most [`SESSIONS`] live sessions at one service from one host, so that
//! one user cannot fill the session table. A client normally has one; restarted signers open more,
//! and the oldest without connections makes room for a new one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use usher_base::HostName;
use usher_kernel::admission::SessionRecord;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::{Table, kernel_failed, with_connections};
use crate::keeper::queues::Key;

/// Limit of live sessions of one user at one service from one host.
pub const SESSIONS: usize = 16;

/// Limit of sessions of one user at one service from one host in the table, including ended ones that are
/// still kept: further ones are refused until some are forgotten.
pub const KEPT: usize = 4096;

/// The presence of each user at each service, from each host.
pub struct Presences {
    all: Mutex<HashMap<Key, HashMap<HostName, Presence>>>,
    /// The number of sessions in the table, and its limit.
    kept: AtomicUsize,
    most: usize,
}

#[derive(Default)]
struct Presence {
    /// Live sessions, oldest first.
    live: VecDeque<SessionId>,
    /// The number in the table, including ended ones.
    kept: usize,
    /// When the user was last authenticated, in seconds since 1970.
    authenticated: u64,
}

impl Presences {
    /// No user is present yet, in a table with this many places.
    pub fn new(most: u32) -> Self {
        Self {
            all: Mutex::default(),
            kept: AtomicUsize::new(0),
            most: most as usize,
        }
    }

    /// Enters a live session that has just been authenticated or adopted.
    pub fn enter(&self, session: SessionId, record: &SessionRecord, now: u64) {
        self.with(record, |presence| {
            presence.live.push_back(session);
            presence.authenticated = now;
        });
    }

    /// Notes that a session has ended.
    pub fn leave(&self, session: &SessionId, record: &SessionRecord) {
        self.with(record, |presence| {
            presence.live.retain(|entered| entered != session);
        });
    }

    /// Notes that sessions have ended whose records are gone from the table. Returns their users and
    /// services.
    pub fn leave_all(&self, sessions: &HashSet<SessionId>) -> HashSet<Key> {
        let mut left = HashSet::new();
        for (key, hosts) in self.all.lock().iter_mut() {
            for presence in hosts.values_mut() {
                let before = presence.live.len();
                presence.live.retain(|entered| !sessions.contains(entered));
                let gone = before - presence.live.len();
                if gone > 0 {
                    left.insert(*key);
                    let gone = gone.min(presence.kept);
                    presence.kept -= gone;
                    self.kept.fetch_sub(gone, Ordering::Relaxed);
                }
            }
        }
        left
    }

    /// Notes that the table has a session, live or ended.
    pub fn keep(&self, record: &SessionRecord) {
        self.with(record, |presence| presence.kept += 1);
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the table has forgotten a session.
    pub fn forget(&self, record: &SessionRecord) {
        let kept = self.with(record, |presence| {
            let kept = presence.kept > 0;
            presence.kept -= usize::from(kept);
            kept
        });
        self.kept.fetch_sub(usize::from(kept), Ordering::Relaxed);
    }

    /// Notes that the user has been authenticated again.
    pub fn authenticated(&self, record: &SessionRecord, now: u64) {
        self.with(record, |presence| presence.authenticated = now);
    }

    /// When the user of `record` was last authenticated at the service from the host, in seconds since 1970.
    pub fn last_authenticated(&self, record: &SessionRecord) -> u64 {
        self.with(record, |presence| presence.authenticated)
    }

    /// The number of sessions in the table, counted here.
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Whether the table is full.
    pub fn is_full(&self) -> bool {
        self.kept() >= self.most
    }

    /// Whether the table has as many sessions of `record`'s user as it may.
    pub fn crowded(&self, record: &SessionRecord) -> bool {
        self.with(record, |presence| presence.kept >= KEPT)
    }

    /// The live sessions of `record`'s user, oldest first, if they have reached the limit.
    pub fn used_up(&self, record: &SessionRecord) -> Option<Vec<SessionId>> {
        self.with(record, |presence| {
            (presence.live.len() >= SESSIONS).then(|| presence.live.iter().copied().collect())
        })
    }

    /// The newest live session of a user at a service from a host.
    pub fn newest(&self, key: Key, host: &HostName) -> Option<SessionId> {
        let all = self.all.lock();
        all.get(&key)?.get(host)?.live.back().copied()
    }

    /// Whether a user has a live session at a service, from any host.
    pub fn has_live(&self, key: Key) -> bool {
        let all = self.all.lock();
        all.get(&key)
            .is_some_and(|hosts| hosts.values().any(|presence| !presence.live.is_empty()))
    }

    /// Changes the presence of a session's user, and forgets it if it is empty afterwards.
    fn with<T>(&self, record: &SessionRecord, change: impl FnOnce(&mut Presence) -> T) -> T {
        let mut all = self.all.lock();
        let key = (record.service, record.uid);
        let hosts = all.entry(key).or_default();
        let presence = hosts.entry(record.host.clone()).or_default();
        let outcome = change(presence);
        if presence.live.is_empty() && presence.kept == 0 {
            hosts.remove(&record.host);
        }
        if hosts.is_empty() {
            all.remove(&key);
        }
        outcome
    }
}

impl Table {
    /// Makes room for another session of a user: the oldest one without connections ends.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when all of them have connections, or too many have just ended.
    pub fn make_room(&self, fresh: &SessionRecord) -> Result<(), Refusal> {
        let Some(oldest) = self.in_the_way(fresh)? else {
            return Ok(());
        };
        match self.session(&oldest)? {
            Some(record) => self.end(&oldest, record, Refusal::SessionEnded),
            None => self.presences.leave(&oldest, fresh),
        }
        Ok(())
    }

    /// Checks whether there is room, or room could be made. Changes nothing.
    ///
    /// # Errors
    /// Like [`Table::make_room`]; [`Refusal::SessionTableFull`].
    pub fn has_room(&self, fresh: &SessionRecord) -> Result<(), Refusal> {
        if self.presences.is_full() {
            return Err(Refusal::SessionTableFull);
        }
        self.in_the_way(fresh).map(drop)
    }

    /// The session that has to end for another one; none if there is room for both.
    fn in_the_way(&self, fresh: &SessionRecord) -> Result<Option<SessionId>, Refusal> {
        if self.presences.crowded(fresh) {
            return Err(Refusal::Overloaded);
        }
        let Some(sessions) = self.presences.used_up(fresh) else {
            return Ok(None);
        };
        let rows = self.host.admissions().map_err(kernel_failed)?;
        let with_connections = with_connections(&rows);
        let idle = sessions
            .into_iter()
            .find(|session| !with_connections.contains(session));
        idle.map(Some).ok_or(Refusal::Overloaded)
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
        let presences = Presences::new(65_536);
        for number in 0..SESSIONS {
            assert_eq!(presences.used_up(&record(1000)), None);
            presences.enter(SessionId::from_bytes([number as u8; 16]), &record(1000), 1);
        }
        let full = presences.used_up(&record(1000)).unwrap();
        assert_eq!(full[0], SessionId::from_bytes([0; 16]));
        assert_eq!(presences.used_up(&record(1001)), None);
        presences.leave(&full[0], &record(1000));
        assert_eq!(presences.used_up(&record(1000)), None);
    }

    #[test]
    fn a_user_stays_at_a_service_while_any_session_lives() {
        let presences = Presences::new(65_536);
        let (here, mut there) = (record(1000), record(1000));
        there.host = "tablet".parse().unwrap();
        let [first, second] = [1, 2].map(|number| SessionId::from_bytes([number; _]));
        presences.enter(first, &here, 1);
        presences.enter(second, &there, 2);
        assert_eq!(presences.newest((1, 1000), &here.host), Some(first));
        presences.leave(&first, &here);
        assert_eq!(presences.newest((1, 1000), &here.host), None);
        assert_eq!(presences.newest((1, 1000), &there.host), Some(second));
        assert!(presences.has_live((1, 1000)) && !presences.has_live((1, 1001)));
        presences.leave(&second, &there);
        assert!(!presences.has_live((1, 1000)));
        assert!(presences.all.lock().is_empty());
    }

    #[test]
    fn an_authentication_renews_all_the_users_sessions_of_a_host() {
        let presences = Presences::new(65_536);
        let (here, mut there) = (record(1000), record(1000));
        there.host = "tablet".parse().unwrap();
        for (number, record) in [(1, &here), (2, &here), (3, &there)] {
            presences.keep(record);
            presences.enter(SessionId::from_bytes([number; _]), record, 10);
        }
        presences.authenticated(&here, 20);
        // The sessions have been closed; their connections continue.
        for number in [1, 2] {
            presences.leave(&SessionId::from_bytes([number; _]), &here);
        }
        assert_eq!(presences.last_authenticated(&here), 20);
        assert_eq!(presences.last_authenticated(&there), 10);
    }

    #[test]
    fn sessions_that_are_remembered_count_until_they_are_forgotten() {
        let presences = Presences::new(65_536);
        for _ in 0..KEPT {
            assert!(!presences.crowded(&record(1000)));
            presences.keep(&record(1000));
        }
        assert!(presences.crowded(&record(1000)));
        assert!(!presences.crowded(&record(1001)));
        presences.forget(&record(1000));
        assert!(!presences.crowded(&record(1000)));
    }

    #[test]
    fn a_table_is_full_of_all_users_sessions_until_one_is_forgotten() {
        let presences = Presences::new(2);
        for uid in [1000, 1001] {
            assert!(!presences.is_full());
            presences.keep(&record(uid));
        }
        assert!(presences.is_full());
        // The table has no session of this user.
        presences.forget(&record(1002));
        assert!(presences.is_full());
        presences.forget(&record(1001));
        assert!(!presences.is_full());
    }
}
