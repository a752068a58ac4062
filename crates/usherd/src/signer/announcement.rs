//! Announces a connection: opens the user's session if there is none, takes the next chain element
//! and sends it to the server. Also withdraws announcements.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_base::ConnectionTuple;
use usher_daemon::clock::unix_time;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Announcement, SessionRequest};

use super::Signer;
use super::closing::{close_replaced, close_unused};
use super::gates::Gated;
use super::lease::Lease;
use super::open::{Opening, ask_for_tokens, open_connection};
use super::relay::ANSWER;
use super::renewal::renew_for_tokens;
use super::sessions::Pair;

/// A session that ends within this many seconds is renewed instead of used.
const RENEW: u64 = 5;
/// Number of attempts when the channel breaks or the server has lost the session.
const ATTEMPTS: u32 = 8;
/// Pause before the next attempt: 50 ms, doubled each time, so that a restarted daemon is waited
/// for (6 s in all), and one that does not come back does not delay the caller for long.
const PAUSE: Duration = Duration::from_millis(50);
/// After this time a host that does not answer is given up: it must not hold a caller for a minute.
const TRYING: Duration = Duration::from_secs(15);

/// Announces a connection in the user's session. If there is no session, opens one, and then requests a
/// ticket. The connection's gate stands from before the announcement until the caller lifts it.
pub async fn announce(
    signer: &Arc<Signer>,
    lease: &Lease,
    gated: &mut Gated,
) -> Result<SessionId, Refusal> {
    let mut unanswered = Unanswered::default();
    let announced = attempt_all(signer, lease, gated, &mut unanswered).await;
    for session in unanswered.opened {
        close_unused(&signer.relay, &lease.pair, session);
    }
    let (session, by_agent) = announced?;
    if !by_agent {
        renew_for_tokens(signer, &lease.pair);
    }
    Ok(session)
}

/// Sessions of attempts whose answer was lost, or comes too late.
#[derive(Default)]
struct Unanswered {
    /// Sessions in which the connection may be announced.
    announced: HashSet<SessionId>,
    /// Sessions that the server may have opened.
    opened: Vec<SessionId>,
}

/// Returns the session, and whether the user's agent signed for it.
async fn attempt_all(
    signer: &Arc<Signer>,
    lease: &Lease,
    gated: &mut Gated,
    unanswered: &mut Unanswered,
) -> Result<(SessionId, bool), Refusal> {
    let mut refusal = Refusal::VerifierUnavailable;
    let mut number = 0;
    let until = Instant::now() + TRYING;
    while number < ATTEMPTS {
        let mut attempt = Attempt::default();
        match attempt_once(signer, lease, gated, &mut attempt).await {
            Ok(announced) => return Ok(announced),
            Err(error) => refusal = error,
        }
        if refusal.ends_session() {
            // If a new session was refused, another attempt would be too.
            let Some(used) = attempt.used else {
                return Err(refusal);
            };
            // Another task may have opened the next session meanwhile.
            signer.sessions.forget(&lease.pair.key, used).await;
            number += 1;
        } else if refusal.is_unanswered() {
            gated.doubt();
            let session = attempt.used.or(attempt.opening.opened);
            unanswered.announced.extend(session);
            unanswered.opened.extend(attempt.opening.opened);
            // Do not ask the user again for each attempt: the program may try again.
            if attempt.opening.asked || Instant::now() >= until {
                return Err(refusal);
            }
            if number == 0 {
                tracing::info!(host = %lease.pair.host.name, connection = %gated.connection,
                    %refusal, "no answer yet; trying again");
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(number.min(4))).await;
            number += 1;
        } else if refusal == Refusal::AlreadyAnnounced
            && !unanswered.announced.is_empty()
            && !attempt.opening.asked
        {
            // A former attempt has announced the connection, and its answer came too late.
            let Pair { host, uid, .. } = &lease.pair;
            for session in unanswered.announced.drain() {
                let withdrawn = signer.relay.withdraw(host, *uid, session, gated.connection);
                if withdrawn.await.is_err() {
                    return Err(refusal);
                }
            }
        } else {
            return Err(refusal);
        }
    }
    Err(refusal)
}

#[derive(Default)]
struct Attempt {
    /// The open session that this attempt has used.
    used: Option<SessionId>,
    opening: Opening,
}

async fn attempt_once(
    signer: &Arc<Signer>,
    lease: &Lease,
    gated: &Gated,
    attempt: &mut Attempt,
) -> Result<(SessionId, bool), Refusal> {
    let (arrived, pair) = (Instant::now(), &lease.pair);
    let slot = signer.sessions.slot(&pair.key);
    let mut slot = match slot.try_lock() {
        Ok(slot) => slot,
        Err(_) => {
            // A session is being opened, and the user may have to touch a security key for it.
            let _waiting = signer.loans.wait(pair.uid)?;
            slot.lock().await
        }
    };
    // The lease was valid at the request, but this task may have waited.
    lease.check()?;
    let usable = slot
        .as_mut()
        .filter(|session| session.expires > unix_time() + RENEW);
    if let Some((session, by_agent, element)) = usable.and_then(|session| {
        let element = session.chain.next()?;
        Some((session.id, session.by_agent, element))
    }) {
        attempt.used = Some(session);
        let announcement = Announcement {
            element,
            connection: gated.connection,
        };
        gated.stand(signer, Some(session))?;
        let asked = SessionRequest::Announce(announcement);
        let pending = signer.relay.ask(&pair.host, pair.uid, session, asked)?;
        // The element was sent in order: other tasks may announce while this one waits.
        drop(slot);
        return pending.verdict().await.map(|_| (session, by_agent));
    }
    *slot = None;
    if signer.loans.has_not_signed(pair.uid, arrived) {
        // The user was asked while this task waited, and is not asked again for each waiting task.
        return Err(Refusal::AgentRefused);
    }
    let (session, openable) =
        open_connection(signer, lease, Some(gated), &mut attempt.opening).await?;
    let (id, by_agent) = (session.id, session.by_agent);
    *slot = Some(session);
    let permit = signer.tickets.claim_for_new_session(pair.ticket_key());
    drop(slot);
    if let Some(permit) = permit {
        // In the background: the new connection need not wait for tokens.
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

/// Withdraws an announcement and waits for the server's answer, so that the caller may release the
/// port. Without an answer it waits as long as an announcement lives on the server.
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
