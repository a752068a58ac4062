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

type Owner = (u32, u32, HostName);

/// The live sessions of each user, oldest first.
#[derive(Default)]
pub struct Shares(Mutex<HashMap<Owner, VecDeque<SessionId>>>);

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
}
