//! Announcing a connection: opening the user's session when there is none, taking the next chain
//! element, telling the server; and withdrawing what was announced.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_local::clock::unix_time;
use usher_proto::connection::ConnectionTuple;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Announcement, SessionRequest};

use super::Signer;
use super::closing::close_replaced;
use super::guards::Guarded;
use super::lease::Lease;
use super::open::{ask_for_tokens, open};
use super::relay::ANSWER;
use super::renewal::renew_for_tokens;
use super::sessions::Pair;

/// A session that ends sooner than this is renewed rather than used.
const RENEW: u64 = 5;
/// How often an announcement is tried when the channel breaks or the server has lost the session.
const ATTEMPTS: u32 = 8;
/// Pause before another try: 50 ms, doubled each time, so that a daemon that is restarted on the
/// way is waited for (6 s in all), and one that does not come back is not waited for long.
const PAUSE: Duration = Duration::from_millis(50);

/// Announces a connection in the user's session, opening one if need be; a new one is followed by a
/// ticket for `uid`. Its guard stands from before that until the caller lifts it.
///
/// # Errors
/// The server's refusal, or this host's.
pub async fn announce(
    signer: &Arc<Signer>,
    lease: &Lease,
    guarded: &mut Guarded,
) -> Result<SessionId, Refusal> {
    let mut refusal = Refusal::VerifierUnavailable;
    for attempt in 0..ATTEMPTS {
        let (mut asked, mut used) = (false, None);
        match attempt_once(signer, lease, guarded, &mut asked, &mut used).await {
            Ok((session, by_agent)) => {
                if !by_agent {
                    renew_for_tokens(signer, &lease.pair);
                }
                return Ok(session);
            }
            Err(error) => refusal = error,
        }
        if refusal.ends_session() {
            // Of a session that was to be opened, the next try says the same.
            let Some(used) = used else {
                return Err(refusal);
            };
            // Another one may have opened the next meanwhile.
            signer.sessions.forget(&lease.pair.key, used).await;
        } else if refusal.is_unanswered() {
            guarded.doubt();
            // The user is not asked once more for each attempt: the program tries again.
            if asked {
                return Err(refusal);
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(attempt.min(4))).await;
        } else {
            return Err(refusal);
        }
    }
    Err(refusal)
}

/// `used`: the session that was open already.
async fn attempt_once(
    signer: &Arc<Signer>,
    lease: &Lease,
    guarded: &Guarded,
    asked: &mut bool,
    used: &mut Option<SessionId>,
) -> Result<(SessionId, bool), Refusal> {
    let (arrived, pair) = (Instant::now(), &lease.pair);
    let slot = signer.sessions.slot(&pair.key);
    let mut slot = match slot.try_lock() {
        Ok(slot) => slot,
        Err(_) => {
            // A session is being opened, and somebody may have to touch something for it.
            let lent = signer.loans.is_lent(pair.uid);
            let _waiting = lent.then(|| signer.loans.wait(pair.uid)).transpose()?;
            slot.lock().await
        }
    };
    // Permitted when it was asked for; it may have waited.
    lease.check()?;
    let usable = slot
        .as_mut()
        .filter(|session| session.expires > unix_time() + RENEW);
    if let Some((session, by_agent, element)) = usable.and_then(|session| {
        let element = session.chain.next()?;
        Some((session.id, session.by_agent, element))
    }) {
        *used = Some(session);
        let announcement = Announcement {
            element,
            connection: guarded.connection,
        };
        guarded.stand(signer, Some(session))?;
        let asked = SessionRequest::Announce(announcement);
        let pending = signer.relay.ask(&pair.host, pair.uid, session, asked)?;
        // The element is on its way in order: others may announce while this one waits.
        drop(slot);
        return pending.verdict().await.map(|_| (session, by_agent));
    }
    *slot = None;
    if signer.loans.has_not_signed(pair.uid, arrived) {
        // Asked while this one waited: not once more for each that did.
        return Err(Refusal::AgentRefused);
    }
    let (session, openable) = open(signer, lease, Some(guarded), asked).await?;
    let (id, by_agent) = (session.id, session.by_agent);
    *slot = Some(session);
    let permit = signer.tickets.claim_for_new_session(pair.ticket_key());
    drop(slot);
    if let Some(permit) = permit {
        // Aside: the connection that is being made need not wait for it.
        let (signer, lease) = (Arc::clone(signer), lease.clone());
        tokio::spawn(async move {
            let replaced = ask_for_tokens(&signer, &lease, openable).await;
            drop(permit);
            if let Some(replaced) = replaced {
                close_replaced(&signer, lease.pair.clone(), replaced);
            }
        });
    }
    Ok((id, by_agent))
}

/// Withdraws an announcement and waits for the server's word, so that the caller may let go of
/// the port. Without an answer it waits as long as an announcement lives on the server.
pub async fn withdraw(
    signer: &Signer,
    pair: &Pair,
    session: SessionId,
    connection: ConnectionTuple,
) {
    let relay = &signer.relay;
    let withdrawn = relay.withdraw(&pair.host, pair.uid, session, connection);
    if let Err(refusal) = withdrawn.await {
        tracing::info!(host = %pair.host.name, %refusal, "withdrawal unanswered; waiting it out");
        tokio::time::sleep(ANSWER).await;
    }
}
