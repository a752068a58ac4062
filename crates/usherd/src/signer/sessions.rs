//! The sessions this host's users have with services of other hosts: for each the hash chain
//! whose elements announce connections. Opened by one signature, shared by all processes of the
//! user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use usher_local::applied::{Applied, Checked};
use usher_proto::chain::Chain;
use usher_proto::name::{HostName, ServiceName, UserName};
use usher_proto::session_id::SessionId;

/// What a session is for. The server's address is part of what is signed, so it is part of the
/// key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The local user.
    pub user: UserName,
    /// The server's host.
    pub host: HostName,
    /// The service there.
    pub service: ServiceName,
    /// The address it is reached at.
    pub address: IpAddr,
}

/// An open session.
pub struct Session {
    /// Its id, by which the server knows it.
    pub id: SessionId,
    /// What is left of its chain.
    pub chain: Chain,
    /// When it ends, seconds since 1970.
    pub expires: u64,
}

/// Whether a configuration permits what a session is for.
pub fn is_permitted(key: &SessionKey, (applied, checked): &(Applied, Checked)) -> bool {
    let host = checked.policy.hosts.get(&key.host);
    !applied.is_disabled(&key.user)
        && host.is_some_and(|host| host.addresses.contains(&key.address))
        && checked
            .policy
            .client_permits(&key.user, &key.host, &key.service)
            .is_ok()
}

/// One session's place. Its lock is held while a session is opened and while an element is taken
/// and sent, so that elements leave in order and a user's first connections share one signature.
pub type Slot = Arc<tokio::sync::Mutex<Option<Session>>>;

/// All sessions. There are at most as many as (local user, permitted service) pairs.
#[derive(Default)]
pub struct Sessions(Mutex<HashMap<SessionKey, Slot>>);

impl Sessions {
    /// The place of a session, open or not.
    pub fn slot(&self, key: &SessionKey) -> Slot {
        Arc::clone(self.lock().entry(key.clone()).or_default())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// The server has ended a session: the next connection opens a new one.
    pub fn ended(&self, host: &HostName, id: SessionId) {
        self.lock().retain(|key, slot| {
            let ended = key.host == *host
                && slot
                    .try_lock()
                    .is_ok_and(|session| session.as_ref().is_some_and(|session| session.id == id));
            !ended
        });
    }

    /// Forgets what a new configuration no longer permits.
    pub fn retain_permitted(&self, configuration: &(Applied, Checked)) {
        self.lock()
            .retain(|key, _| is_permitted(key, configuration));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SessionKey, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
