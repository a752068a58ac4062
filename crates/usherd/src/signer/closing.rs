//! Closing sessions at their servers. Whoever takes a ticket back has its session closed: tokens
//! that are drawn, or held back on the way, are good for nothing then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_policy::Host;
use usher_proto::frame::ClientFrame;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Signer;
use super::announcement::{ANSWER, SESSION, answer};
use super::relay::Relay;

/// Pause before another try, doubled each time, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Tokens of this ticket do not pass on the way: forgets its session, so that the next connection
/// is announced in another, and has it closed. Nothing when the ticket has gone already.
pub async fn suspend(signer: &Signer, uid: u32, server: std::net::SocketAddr, number: u32) {
    let Some((place, session)) = signer.tickets.suspend(uid, server, number) else {
        return;
    };
    signer.sessions.forget(&place.key, session).await;
    close(&signer.relay, place.host, session);
}

/// Has a session closed that another has replaced, once its last tokens have arrived.
pub fn close_replaced(signer: &Arc<Signer>, host: Host, session: SessionId) {
    let signer = Arc::clone(signer);
    tokio::spawn(async move {
        tokio::time::sleep(ANSWER).await;
        // Still there when the other one was granted none.
        signer.tickets.ended(session);
        close(&signer.relay, host, session);
    });
}

/// After each reload: new connections of users whose key has been replaced are announced in sessions
/// of the new one; those that there are go on.
pub async fn leave_former_keys(signer: Arc<Signer>) {
    loop {
        signer.reloaded.notified().await;
        let configuration = signer.configuration();
        for (key, session) in signer
            .sessions
            .take_of_former_keys(&configuration.1.policy)
            .await
        {
            tracing::info!(user = %key.user, host = %key.host, service = %key.service, %session,
                "a session is left, its user has another key now");
            signer.tickets.ended(session);
            if let Some(host) = configuration.1.policy.hosts.get(&key.host) {
                close_replaced(&signer, host.clone(), session);
            }
        }
    }
}

/// Has a session closed, aside: tried until the server has answered or the session has expired. Its
/// connections go on.
pub fn close(relay: &Arc<Relay>, host: Host, session: SessionId) {
    let relay = Arc::clone(relay);
    tokio::spawn(async move {
        let begun = Instant::now();
        let mut pause = PAUSE;
        while let Err(refusal) = try_to_close(&relay, &host, session).await {
            let again = matches!(
                refusal,
                Refusal::VerifierUnavailable | Refusal::KeeperUnavailable | Refusal::Overloaded
            );
            if !again || begun.elapsed().as_secs() > SESSION {
                return tracing::info!(host = %host.name, %session, %refusal,
                    "a session is not closed; it has ended or expires");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
}

async fn try_to_close(relay: &Arc<Relay>, host: &Host, session: SessionId) -> Result<(), Refusal> {
    let pending = relay.send(host, |request| {
        ClientFrame::Close { request, session }.encode()
    })?;
    answer(pending).await.map(drop)
}
