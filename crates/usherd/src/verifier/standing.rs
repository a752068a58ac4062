//! A channel's announcements that are not withdrawn. They are withdrawn when the channel ends, because
//! its client may have died, and then nothing keeps the announced ports.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usher_base::{ConnectionTuple, HostName};
use usher_proto::keeper_record::KeeperBody;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::SessionRequest;

use super::Verifier;

/// The time that an announcement may be on its way to the keeper and then stand there.
const STANDS: Duration = Duration::from_secs(20);
/// Limit of remembered announcements of one channel. Further ones stand until they expire.
const REMEMBERED: usize = 16_384;

/// A channel's announcements that may stand. They are withdrawn when this value is dropped, with the channel.
pub struct Standing {
    verifier: Arc<Verifier>,
    host: HostName,
    announced: Mutex<HashMap<ConnectionTuple, (SessionId, Instant)>>,
}

impl Standing {
    /// The empty set of a new channel of this host.
    pub fn new(verifier: Arc<Verifier>, host: HostName) -> Self {
        Self {
            verifier,
            host,
            announced: Mutex::default(),
        }
    }

    /// Notes a request before it goes to the keeper.
    pub fn note(&self, session: SessionId, asked: &SessionRequest) {
        match asked {
            SessionRequest::Announce(announcement) => {
                self.announced(announcement.connection, session);
            }
            SessionRequest::Withdraw(connection) => {
                let mut announced = self.announced.lock();
                let its = announced.get(connection);
                if its.is_some_and(|(announcer, _)| *announcer == session) {
                    announced.remove(connection);
                }
            }
            SessionRequest::Close
            | SessionRequest::Tokens(_)
            | SessionRequest::Reauthenticate(_) => {}
        }
    }

    /// Notes an announcement before it goes to the keeper.
    pub fn announced(&self, connection: ConnectionTuple, session: SessionId) {
        let mut announced = self.announced.lock();
        if announced.len() >= REMEMBERED {
            announced.retain(|_, (_, since)| since.elapsed() < STANDS);
            if announced.len() >= REMEMBERED {
                return;
            }
        }
        announced.insert(connection, (session, Instant::now()));
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut announced = std::mem::take(&mut *self.announced.lock());
        announced.retain(|_, (_, since)| since.elapsed() < STANDS);
        if !announced.is_empty() {
            tracing::info!(host = %self.host, count = announced.len(),
                "what an ended channel had announced is withdrawn");
        }
        for (connection, (session, _)) in announced {
            let withdraw = KeeperBody::Session(session, SessionRequest::Withdraw(connection));
            let asked = self.verifier.ask_keeper(self.host.clone(), withdraw);
            // No client waits for this verdict.
            if let Err(refusal) = asked {
                tracing::warn!(host = %self.host, %connection, reason = refusal.name(),
                    "cannot withdraw an announcement of an ended channel: it stands until its time \
                     is over");
            }
        }
    }
}
