//! The sessions that this host's users have with services of other hosts, each with the hash chain
//! whose elements announce connections. One signature opens a session, and all of the user's
//! processes share it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use usher_base::{HostName, ServiceName, UserName};
use usher_daemon::clock::unix_time;
use usher_kernel::ticket::TicketKey;
use usher_local::checked::Checked;
use usher_policy::{Host, Name, Policy};
use usher_proto::chain::Chain;
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::keys::Stamp;

/// The subject of a session. The server's address and port are part of the signed statement, so they are part
/// of this key. In place of the server's host key in the statement, this key has the host's identity: so
/// sessions go on when the host replaces its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The local user.
    pub user: UserName,
    /// The server's host.
    pub host: HostName,
    /// The identity of that host.
    pub identity: HostPublicKey,
    /// The service there.
    pub service: ServiceName,
    /// The address and port of the service.
    pub server: SocketAddr,
}

/// A user of this host and a service of another.
#[derive(Clone)]
pub struct Pair {
    /// The subject of the pair's sessions.
    pub key: SessionKey,
    /// The local user.
    pub uid: u32,
    /// The server's host.
    pub host: Host,
}

impl Pair {
    /// A user and a service of a host at this address.
    pub fn new(
        (user, uid): (UserName, u32),
        (host, identity): (&Host, HostPublicKey),
        service: &ServiceName,
        server: SocketAddr,
    ) -> Self {
        let key = SessionKey {
            user,
            host: host.name.clone(),
            identity,
            service: service.clone(),
            server,
        };
        let host = host.clone();
        Self { key, uid, host }
    }

    /// The key of the pair's tickets.
    pub fn ticket_key(&self) -> TicketKey {
        TicketKey {
            uid: self.uid,
            server: self.key.server,
        }
    }
}

/// The requested lifetime of a session, in seconds; the server may shorten it.
pub const SESSION: u64 = 8 * 3600;

/// An open session.
pub struct Session {
    /// Its id, by which the server knows it.
    pub id: SessionId,
    /// The local user's id.
    pub uid: u32,
    /// The unused part of its chain.
    pub chain: Chain,
    /// Until this time, the server's requests for the user's authentication are not answered.
    pub quiet_until: Option<Instant>,
    /// Its end, in seconds since 1970.
    pub expires: u64,
    /// The key that signed for it.
    pub signed_by: Option<Stamp>,
    /// Whether the user's agent signed for it.
    pub by_agent: bool,
}

/// The purpose of the user's key that opens a session.
pub fn purpose<'p>(key: &SessionKey, policy: &'p Policy) -> Option<&'p Name> {
    policy
        .client_permits(&key.user, &key.host, &key.service, unix_time())
        .ok()
        .and_then(|service| service.key.as_ref())
}

/// The time until which a configuration permits the sessions of a key, in seconds since 1970.
///
/// # Errors
/// The reason why the sessions are not permitted.
pub fn permitted_until(key: &SessionKey, checked: &Checked) -> Result<u64, Refusal> {
    let policy = &checked.policy;
    if checked.disabled.contains(&key.user) {
        return Err(Refusal::DisabledUser);
    }
    let service = policy.client_permits(&key.user, &key.host, &key.service, unix_time())?;
    let host = policy.hosts.get(&key.host).ok_or(Refusal::UnknownHost)?;
    let is_meant = checked.identity(host) == key.identity
        && host.addresses.contains(&key.server.ip())
        && service.port == key.server.port();
    if !is_meant {
        return Err(Refusal::ServiceMoved);
    }
    let until = service.users.until(&key.user);
    until.ok_or(Refusal::ClientPolicy)
}

/// Whether a configuration permits the sessions of a key.
pub fn is_permitted(key: &SessionKey, checked: &Checked) -> bool {
    permitted_until(key, checked).is_ok()
}

/// The slot of one session. Its lock is held while a session is opened and while an element is
/// taken and sent, so that elements leave in order and a user's first connections share one
/// signature.
pub type Slot = Arc<tokio::sync::Mutex<Option<Session>>>;

/// The slot of an open session, held exclusively.
pub struct HeldSession {
    /// The subject of the session.
    pub key: SessionKey,
    slot: OwnedMutexGuard<Option<Session>>,
}

impl HeldSession {
    /// The session.
    pub fn session(&mut self) -> Option<&mut Session> {
        self.slot.as_mut()
    }

    /// Replaces the session.
    pub fn replace(&mut self, session: Session) {
        *self.slot = Some(session);
    }
}

/// All sessions. There are at most as many as (local user, permitted service) pairs.
#[derive(Default)]
pub struct Sessions(Mutex<HashMap<SessionKey, Slot>>);

impl Sessions {
    /// The slot of a session, open or not.
    pub fn slot(&self, key: &SessionKey) -> Slot {
        Arc::clone(self.0.lock().entry(key.clone()).or_default())
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Forgets a session that the server has ended: the next connection opens a new one.
    pub fn ended(&self, host: &HostName, id: SessionId) {
        self.0.lock().retain(|key, slot| {
            let ended = key.host == *host
                && slot
                    .try_lock()
                    .is_ok_and(|session| session.as_ref().is_some_and(|session| session.id == id));
            !ended
        });
    }

    /// The slot of this session, unless the slot is in use.
    pub fn hold(&self, host: &HostName, id: SessionId) -> Option<HeldSession> {
        self.0
            .lock()
            .iter()
            .filter(|(key, _)| key.host == *host)
            .find_map(|(key, slot)| {
                let slot = Arc::clone(slot).try_lock_owned().ok()?;
                let key = key.clone();
                (slot.as_ref()?.id == id).then_some(HeldSession { key, slot })
            })
    }

    /// Forgets one session: the next connection opens a new one.
    pub async fn forget(&self, key: &SessionKey, id: SessionId) {
        let Some(slot) = self.0.lock().get(key).map(Arc::clone) else {
            return;
        };
        let mut session = slot.lock().await;
        session.take_if(|session| session.id == id);
    }

    /// Runs `act` for every open session, each in its own task: a session being opened, perhaps by
    /// its user's touch, delays no other.
    pub fn for_each<A>(&self, act: A)
    where
        A: Fn(&SessionKey, &mut Option<Session>) + Clone + Send + 'static,
    {
        for (key, slot) in self.0.lock().iter() {
            let (key, slot, act) = (key.clone(), Arc::clone(slot), act.clone());
            tokio::spawn(async move {
                let mut session = slot.lock().await;
                act(&key, &mut session);
            });
        }
    }

    /// Forgets sessions that a new configuration no longer permits.
    pub fn retain(&self, keep: impl Fn(&SessionKey) -> bool) {
        self.0.lock().retain(|key, _| keep(key));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use usher_local::applied::{Applied, UserEntry};
    use usher_local::configuration::Configuration;

    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";

    /// A configuration with `statement` in the `client` block of alice. `disabled`: the reason for which
    /// alice is disabled.
    pub fn configuration(statement: &str, disabled: Option<&str>) -> Configuration {
        let text = format!(
            "host mailhost {{ address 10.77.0.2; key \"{KEY}\"; }}\n\
             users mail {{ member alice; }}\n\
             client mail {{ users mail; service imap at mailhost port 143;{statement} }}\n"
        );
        let alice = UserEntry {
            disabled: disabled.map(str::to_owned),
            ..UserEntry::default()
        };
        let applied = Applied {
            sources: vec![usher_policy::Source {
                name: "test.policy".into(),
                text,
            }],
            users: [("alice".parse().unwrap(), alice)].into(),
            ..Applied::default()
        };
        Configuration::read(&serde_json::to_vec(&applied).unwrap()).unwrap()
    }

    /// Alice and the service.
    pub fn pair(checked: &Checked) -> Pair {
        let key = key(checked);
        let host = checked.policy.hosts[&key.host].clone();
        Pair {
            key,
            uid: 1001,
            host,
        }
    }

    fn key(checked: &Checked) -> SessionKey {
        let host: HostName = "mailhost".parse().unwrap();
        SessionKey {
            user: "alice".parse().unwrap(),
            identity: checked.policy.hosts[&host].keys[0],
            host,
            service: "imap".parse().unwrap(),
            server: ([10, 77, 0, 2], 143).into(),
        }
    }

    #[test]
    fn what_policy_says_otherwise_is_not_permitted() {
        let configuration = configuration("", None).checked;
        let permitted = key(&configuration);
        assert!(is_permitted(&permitted, &configuration));
        let others: [fn(&mut SessionKey); 6] = [
            |key| key.user = "bob".parse().unwrap(),
            |key| key.host = "laptop".parse().unwrap(),
            |key| key.identity = HostPublicKey::from_bytes([1; 32]),
            |key| key.service = "smtp".parse().unwrap(),
            |key| key.server.set_port(144),
            |key| key.server.set_ip([10, 77, 0, 3].into()),
        ];
        let reasons = [
            Refusal::ClientPolicy,
            Refusal::UnknownHost,
            Refusal::ServiceMoved,
            Refusal::ClientPolicy,
            Refusal::ServiceMoved,
            Refusal::ServiceMoved,
        ];
        for (change, reason) in others.into_iter().zip(reasons) {
            let mut other = permitted.clone();
            change(&mut other);
            let refused = permitted_until(&other, &configuration);
            assert_eq!(refused, Err(reason), "{other:?}");
        }
        let disabled = self::configuration("", Some("left")).checked;
        let refused = permitted_until(&permitted, &disabled);
        assert_eq!(refused, Err(Refusal::DisabledUser));
    }

    #[tokio::test]
    async fn one_session_that_is_being_opened_delays_no_other() {
        let (sessions, configuration) = (Sessions::default(), configuration("", None).checked);
        let keys = ["alice", "bob"].map(|name| SessionKey {
            user: name.parse().unwrap(),
            ..key(&configuration)
        });
        for key in &keys {
            drop(sessions.slot(key).lock().await);
        }
        for [waiting, free] in [[0, 1], [1, 0]] {
            let slot = sessions.slot(&keys[waiting]);
            let opening = slot.lock().await;
            let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
            sessions.for_each(move |key, _| told.send(key.clone()).unwrap());
            assert_eq!(seen.recv().await.as_ref(), Some(&keys[free]));
            assert!(seen.is_empty());
            drop(opening);
            assert_eq!(seen.recv().await.as_ref(), Some(&keys[waiting]));
        }
    }

    #[tokio::test]
    async fn a_session_is_forgotten_and_not_the_one_after_it() {
        let configuration = configuration("", None).checked;
        let (key, sessions) = (key(&configuration), Sessions::default());
        let [former, current] = [1, 2].map(|number| SessionId::from_bytes([number; _]));
        let session = Session {
            id: current,
            uid: 1001,
            quiet_until: None,
            chain: Chain::generate(1, [0; _], [0; _]),
            expires: 0,
            signed_by: None,
            by_agent: false,
        };
        *sessions.slot(&key).lock().await = Some(session);
        sessions.forget(&key, former).await;
        assert!(sessions.slot(&key).lock().await.is_some());
        sessions.forget(&key, current).await;
        assert!(sessions.slot(&key).lock().await.is_none());
    }
}
