//! Closing sessions at their servers. Whoever takes a ticket back has its session closed: tokens
//! that are drawn, or held back on the way, are good for nothing then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_proto::refusal::{Fault, Refusal};
use usher_proto::session_id::SessionId;
use usher_proto::session_request::SessionRequest;

use super::relay::{ANSWER, Relay};
use super::sessions::{Pair, SESSION, Session, SessionKey, purpose};
use super::{Signer, keys};

/// Pause before another try, doubled each time, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Tokens of this ticket do not pass on the way: forgets its session, so that the next connection
/// is announced in another, and has it closed. Nothing when the ticket has gone already.
pub async fn suspend(signer: &Signer, uid: u32, server: std::net::SocketAddr, number: u32) {
    let Some((pair, session)) = signer.tickets.suspend(uid, server, number) else {
        return;
    };
    signer.sessions.forget(&pair.key, session).await;
    close(&signer.relay, pair, session);
}

/// Has a session closed that another has replaced, once its last tokens have arrived.
pub fn close_replaced(signer: &Arc<Signer>, pair: Pair, session: SessionId) {
    let signer = Arc::clone(signer);
    tokio::spawn(async move {
        tokio::time::sleep(ANSWER).await;
        // Still there when the other one was granted none.
        signer.tickets.ended(session);
        close(&signer.relay, pair, session);
    });
}

/// After each reload: new connections of users whose key has been replaced are announced in sessions
/// of the new one; those that there are go on.
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
    let present = keys::stamp(&key.user, purpose(key, policy));
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

/// Has a session closed, aside: tried until the server has answered or the session has expired. Its
/// connections go on.
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

async fn try_to_close(relay: &Arc<Relay>, pair: &Pair, session: SessionId) -> Result<(), Refusal> {
    let pending = relay.ask(&pair.host, pair.uid, session, SessionRequest::Close)?;
    pending.verdict().await.map(drop)
}
