//! Each user's share of the session table, so that nobody fills it for everybody: a user at a
//! service, from one host, has at most [`SESSIONS`] live sessions. A client normally has one; more
//! come from signers that were restarted. The oldest without connections makes room for a new one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use usher_kernel::admission::SessionRecord;
use usher_proto::name::HostName;
use usher_proto::session_id::SessionId;

/// Live sessions of one user at one service from one host.
pub const SESSIONS: usize = 16;

/// Sessions of one user at one service from one host in the table, ended ones that are remembered
/// included: who opens more is refused until some are forgotten.
pub const KEPT: usize = 4096;

type Owner = (u32, u32, HostName);

/// The live sessions of each user, oldest first, and how many the table keeps.
#[derive(Default)]
pub struct Shares(
    Mutex<HashMap<Owner, VecDeque<SessionId>>>,
    Mutex<HashMap<Owner, usize>>,
);

impl Shares {
    /// Enters a live session.
    pub fn enter(&self, session: SessionId, record: &SessionRecord) {
        self.lock()
            .entry(owner(record))
            .or_default()
            .push_back(session);
    }

    /// A session has ended.
    pub fn leave(&self, session: &SessionId, record: &SessionRecord) {
        let mut shares = self.lock();
        if let Some(sessions) = shares.get_mut(&owner(record)) {
            sessions.retain(|entered| entered != session);
            if sessions.is_empty() {
                shares.remove(&owner(record));
            }
        }
    }

    /// The table keeps a session, live or ended.
    pub fn keep(&self, record: &SessionRecord) {
        *self.kept().entry(owner(record)).or_default() += 1;
    }

    /// The table has forgotten a session.
    pub fn forget(&self, record: &SessionRecord) {
        let mut kept = self.kept();
        if let Some(count) = kept.get_mut(&owner(record)) {
            *count -= 1;
            if *count == 0 {
                kept.remove(&owner(record));
            }
        }
    }

    /// Whether the table keeps as many sessions as it may of those that share with `record`.
    pub fn crowded(&self, record: &SessionRecord) -> bool {
        self.kept()
            .get(&owner(record))
            .is_some_and(|count| *count >= KEPT)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, HashMap<Owner, usize>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sessions that share with `record`, oldest first, when their share is used up.
    pub fn used_up(&self, record: &SessionRecord) -> Option<Vec<SessionId>> {
        self.lock()
            .get(&owner(record))
            .filter(|sessions| sessions.len() >= SESSIONS)
            .map(|sessions| sessions.iter().copied().collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Owner, VecDeque<SessionId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner(record: &SessionRecord) -> Owner {
    (record.service, record.uid, record.host.clone())
}

#[cfg(test)]
mod tests {
    use usher_proto::chain::ChainTip;

    use super::*;

    fn record(uid: u32) -> SessionRecord {
        SessionRecord {
            uid,
            service: 1,
            user: "alice".parse().unwrap(),
            host: "laptop".parse().unwrap(),
            tip: ChainTip {
                position: 0,
                value: [0; 16],
            },
            chain_length: 1,
            chain_salt: [0; 16],
            token_anchor: [0; 11],
            key_fingerprint: [0; 32],
            opened: 0,
            expires: 0,
            ended: None,
        }
    }

    #[test]
    fn a_share_is_one_users_and_is_given_back() {
        let shares = Shares::default();
        for number in 0..SESSIONS {
            assert_eq!(shares.used_up(&record(1000)), None);
            shares.enter(SessionId::from_bytes([number as u8; 16]), &record(1000));
        }
        let full = shares.used_up(&record(1000)).unwrap();
        assert_eq!(full[0], SessionId::from_bytes([0; 16]));
        assert_eq!(shares.used_up(&record(1001)), None);
        shares.leave(&full[0], &record(1000));
        assert_eq!(shares.used_up(&record(1000)), None);
    }

    #[test]
    fn sessions_that_are_remembered_count_until_they_are_forgotten() {
        let shares = Shares::default();
        for _ in 0..KEPT {
            assert!(!shares.crowded(&record(1000)));
            shares.keep(&record(1000));
        }
        assert!(shares.crowded(&record(1000)));
        assert!(!shares.crowded(&record(1001)));
        shares.forget(&record(1000));
        assert!(!shares.crowded(&record(1000)));
    }
}
