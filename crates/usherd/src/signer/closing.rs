//! Closes sessions at their servers. When a ticket is taken back, its session is closed: tokens
//! that are drawn, or held back on the way, are then void.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_proto::refusal::{Fault, Refusal};
use usher_proto::session_id::SessionId;
use usher_proto::session_request::SessionRequest;

use super::Signer;
use super::relay::{ANSWER, Relay};
use super::sessions::{Pair, SESSION, Session, SessionKey};

/// Pause before the next attempt, doubled each time, and its limit.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Handles a ticket whose tokens do not pass on the path: forgets its session, so that the next connection is
/// announced in another one, and closes the session. Does nothing if the ticket is already gone.
pub async fn suspend(signer: &Signer, uid: u32, server: std::net::SocketAddr, number: u32) {
    let Some((pair, session)) = signer.tickets.suspend(uid, server, number) else {
        return;
    };
    signer.sessions.forget(&pair.key, session).await;
    close(&signer.relay, pair, session);
}

/// Closes a session that another has replaced, once its last tokens have arrived.
pub fn close_replaced(signer: &Arc<Signer>, pair: Pair, session: SessionId) {
    let signer = Arc::clone(signer);
    tokio::spawn(async move {
        tokio::time::sleep(ANSWER).await;
        // The ticket still exists if the other session was granted no tokens.
        signer.tickets.ended(session);
        close(&signer.relay, pair, session);
    });
}

/// After each reload, moves new connections of users whose key was replaced to sessions of the new
/// key. Existing connections continue.
pub async fn leave_former_keys(signer: Arc<Signer>) {
    loop {
        signer.reloaded.notified().await;
        let all = Arc::clone(&signer);
        signer
            .sessions
            .for_each(move |key, session| leave_former_key(&all, key, session));
    }
}

fn leave_former_key(signer: &Arc<Signer>, key: &SessionKey, session: &mut Option<Session>) {
    let configuration = signer.configuration.get();
    let policy = &configuration.checked.policy;
    let present = signer.stamp(key, policy);
    let Some(Session { id, uid, .. }) = session.take_if(|session| session.signed_by != present)
    else {
        return;
    };
    tracing::info!(user = %key.user, host = %key.host, service = %key.service, session = %id,
        "a session is left, its user has another key now");
    signer.tickets.ended(id);
    if let Some(host) = policy.hosts.get(&key.host).cloned() {
        let key = key.clone();
        close_replaced(signer, Pair { key, uid, host }, id);
    }
}

/// Closes a session in the background: tries until the server has answered or the session has
/// expired. Its connections continue.
pub fn close(relay: &Arc<Relay>, pair: Pair, session: SessionId) {
    let relay = Arc::clone(relay);
    tokio::spawn(async move {
        let begun = Instant::now();
        let mut pause = PAUSE;
        while let Err(refusal) = try_to_close(&relay, &pair, session).await {
            let again = matches!(refusal.fault(), Fault::Capacity | Fault::Host);
            if !again || begun.elapsed().as_secs() > SESSION {
                return tracing::info!(host = %pair.host.name, %session, %refusal,
                    "a session is not closed; it has ended or expires");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
}

/// Closes a session that the server may have opened although this signer has no answer. Asks once, and does
/// not wait: waiting tasks for a host that is down would pile up. A session that is not closed expires.
pub fn close_unused(relay: &Relay, pair: &Pair, session: SessionId) {
    if let Err(refusal) = relay.ask(&pair.host, pair.uid, session, SessionRequest::Close) {
        tracing::debug!(host = %pair.host.name, %session, %refusal, "an unused session expires");
    }
}

async fn try_to_close(relay: &Arc<Relay>, pair: &Pair, session: SessionId) -> Result<(), Refusal> {
    let pending = relay.ask(&pair.host, pair.uid, session, SessionRequest::Close)?;
    pending.verdict().await.map(drop)
}
