//! Announcing a connection: opening the user's session when there is none, taking the next chain
//! element, telling the server; and withdrawing what was announced.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_kernel::ticket::TicketKey;
use usher_local::clock::unix_time;
use usher_policy::Host;
use usher_proto::connection::ConnectionTuple;
use usher_proto::frame::ClientBody;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::{SessionId, session_id};
use usher_proto::session_request::{Announcement, SessionRequest};
use usher_proto::statement::Statement;
use usher_proto::token::{TokenChain, TokenKey, TokenSlot};

use super::chains::random;
use super::closing::{close, close_replaced};
use super::guards::Guarded;
use super::relay::Pending;
use super::sessions::{Session, SessionKey, is_permitted, permitted_until, purpose};
use super::signing::Pen;
use super::tickets::{Grant, Turn};
use super::{Signer, keys};

/// How long a session is asked for; the server may make it shorter.
pub const SESSION: u64 = 8 * 3600;
/// A session that ends sooner than this is renewed rather than used.
const RENEW: u64 = 5;
/// How often an announcement is tried when the channel breaks or the server has lost the session.
const ATTEMPTS: u32 = 8;
/// How long one answer is waited for, and how long the server may take to announce what it was asked
/// to.
pub const ANSWER: Duration = Duration::from_secs(10);
/// How long a connection may take to begin once it is announced: as long as the announcement lives
/// on the server.
pub const CONNECT: Duration = Duration::from_secs(10);
/// Pause before another try: 50 ms, doubled each time, so that a daemon that is restarted on the
/// way is waited for (6 s in all), and one that does not come back is not waited for long.
const PAUSE: Duration = Duration::from_millis(50);

/// A session's place: for whom, and with what.
#[derive(Clone)]
pub struct Place {
    /// What it is for.
    pub key: SessionKey,
    /// The local user.
    pub uid: u32,
    /// The server's host.
    pub host: Host,
}

impl Place {
    /// Whose tickets are for it.
    pub fn ticket_key(&self) -> TicketKey {
        TicketKey {
            uid: self.uid,
            server: self.key.server,
        }
    }

    /// Whether the configuration in force permits it.
    pub fn is_permitted(&self, signer: &Signer) -> bool {
        is_permitted(&self.key, &signer.configuration.get().checked)
    }
}

/// Announces a connection in the user's session, opening one if need be; a new one is followed by a
/// ticket for `uid`. Its guard stands from before that until the caller lifts it.
///
/// # Errors
/// The server's refusal, or this host's.
pub async fn announce(
    signer: &Arc<Signer>,
    place: &Place,
    guarded: &mut Guarded,
) -> Result<SessionId, Refusal> {
    let mut refusal = Refusal::VerifierUnavailable;
    for attempt in 0..ATTEMPTS {
        let (mut asked, mut used) = (false, None);
        match attempt_once(signer, place, guarded, &mut asked, &mut used).await {
            Ok((session, by_agent)) => {
                if !by_agent {
                    renew_for_tokens(signer, place);
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
            signer.sessions.forget(&place.key, used).await;
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
    place: &Place,
    guarded: &Guarded,
    asked: &mut bool,
    used: &mut Option<SessionId>,
) -> Result<(SessionId, bool), Refusal> {
    let arrived = Instant::now();
    let slot = signer.sessions.slot(&place.key);
    let mut slot = match slot.try_lock() {
        Ok(slot) => slot,
        Err(_) => {
            // A session is being opened, and somebody may have to touch something for it.
            let lent = signer.loans.is_lent(place.uid);
            let _waiting = lent.then(|| signer.loans.wait(place.uid)).transpose()?;
            slot.lock().await
        }
    };
    // Permitted when it was asked for; it may have waited.
    if !place.is_permitted(signer) {
        return Err(Refusal::ClientPolicy);
    }
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
        let pending = signer.relay.ask(&place.host, place.uid, session, asked)?;
        // The element is on its way in order: others may announce while this one waits.
        drop(slot);
        return answer(pending).await.map(|_| (session, by_agent));
    }
    *slot = None;
    if signer.loans.has_not_signed(place.uid, arrived) {
        // Asked while this one waited: not once more for each that did.
        return Err(Refusal::AgentRefused);
    }
    let (session, openable) = open(signer, place, Some(guarded), asked).await?;
    let (id, by_agent) = (session.id, session.by_agent);
    *slot = Some(session);
    let turn = signer.tickets.claim_for_new_session(place.ticket_key());
    drop(slot);
    if let Some(turn) = turn {
        // Aside: the connection that is being made need not wait for it.
        let (signer, place) = (Arc::clone(signer), place.clone());
        tokio::spawn(async move {
            let replaced = ask_for_tokens(&signer, &place, openable).await;
            drop(turn);
            if let Some(replaced) = replaced {
                close_replaced(&signer, place, replaced);
            }
        });
    }
    Ok((id, by_agent))
}

/// A session without a ticket, where tokens did not pass for a while: the next one may have them.
fn renew_for_tokens(signer: &Arc<Signer>, place: &Place) {
    if let Some(turn) = signer.tickets.claim(place.ticket_key()) {
        renew(signer, place.clone(), turn);
    }
}

/// Opens a session and a ticket, aside, in the place of those that are nearly used up. Not of users
/// who sign by an agent: each time that they are asked to touch something, a connection of theirs
/// waits for it. Their next session opens when this one's tokens and elements are used up.
pub fn renew(signer: &Arc<Signer>, place: Place, turn: Turn) {
    let signer = Arc::clone(signer);
    tokio::spawn(async move {
        if let Err(refusal) = try_to_renew(&signer, &place, turn).await {
            tracing::info!(user = %place.key.user, host = %place.key.host,
                service = %place.key.service, reason = refusal.name(),
                "a session is not renewed for its tokens: {refusal}");
        }
    });
}

/// On failure the session in place goes on.
async fn try_to_renew(signer: &Arc<Signer>, place: &Place, turn: Turn) -> Result<(), Refusal> {
    let configuration = signer.configuration.get();
    if keys::is_agents(
        &place.key.user,
        purpose(&place.key, &configuration.checked.policy),
    ) {
        return Ok(());
    }
    turn.has_come().await;
    let (session, openable) = open(signer, place, None, &mut false).await?;
    let slot = signer.sessions.slot(&place.key);
    let former = slot.lock().await.replace(session).map(|former| former.id);
    let replaced = ask_for_tokens(signer, place, openable).await;
    drop(turn);
    // One and the same, unless another has been opened meanwhile.
    for session in former
        .into_iter()
        .chain(replaced.filter(|_| replaced != former))
    {
        close_replaced(signer, place.clone(), session);
    }
    Ok(())
}

/// What is left of an opened session to ask tokens with.
pub struct Openable {
    session: SessionId,
    chain: TokenChain,
    expires: u64,
}

/// Opens a session, with its first connection where there is one. `asked`: the user's agent was
/// asked to sign, and the user perhaps to touch something.
///
/// # Errors
/// As [`announce`].
pub async fn open(
    signer: &Signer,
    place: &Place,
    first: Option<&Guarded>,
    asked: &mut bool,
) -> Result<(Session, Openable), Refusal> {
    let key = &place.key;
    let configuration = signer.configuration.get();
    let policy = &configuration.checked.policy;
    let (purpose, until) = (purpose(key, policy), permitted_until(key, policy));
    // Looked at before the key is read: one that is replaced in between counts as the former.
    let signed_by = keys::stamp(&key.user, purpose);
    // Before the statement is dated: an agent may have to be waited for.
    let pen = Pen::take(signer, place, purpose).await?;
    let by_agent = pen.is_agent();
    let (mut chain, tokens) = signer.chains.take()?;
    let now = unix_time();
    let statement = Statement {
        user: key.user.clone(),
        service: key.service.clone(),
        client_host_key: signer.host_key,
        server_host_key: key.host_key,
        server: key.server,
        issued: now,
        expires: pen.latest(now + SESSION).min(until),
        nonce: random()?,
        chain_anchor: chain.anchor(),
        token_anchor: tokens.anchor(),
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    };
    let announced = match first {
        Some(guarded) => Some(Announcement {
            element: chain.next().ok_or(Refusal::ChainExhausted)?,
            connection: guarded.connection,
        }),
        None => None,
    };
    if !place.is_permitted(signer) {
        return Err(Refusal::ClientPolicy);
    }
    *asked |= by_agent;
    let signed = pen.sign(signer, place, &statement).await;
    let authenticator = signed.inspect_err(|_| {
        if by_agent {
            signer.loans.not_signed(place.uid);
        }
    })?;
    // An agent takes its time.
    if !place.is_permitted(signer) {
        return Err(Refusal::ClientPolicy);
    }
    let id = session_id(&authenticator.statement);
    if let Some(guarded) = first {
        guarded.stand(signer, None)?;
    }
    let asked = ClientBody::Open {
        authenticator,
        first: announced,
    };
    let pending = signer.relay.send(&place.host, place.uid, asked)?;
    let answered = answer(pending).await;
    let outcome = answered.as_ref().map(drop).map_err(|refusal| *refusal);
    signer.clocks.note(&key.host, outcome, None, unix_time());
    answered?;
    if let Some(guarded) = first {
        // Whoever clears up after this process can withdraw it.
        guarded.stand(signer, Some(id))?;
    }
    tracing::info!(user = %key.user, host = %key.host, service = %key.service, session = %id,
        "session opened");
    let session = Session {
        id,
        uid: place.uid,
        chain,
        quiet_until: None,
        expires: statement.expires,
        signed_by,
        by_agent,
    };
    let openable = Openable {
        session: id,
        chain: tokens,
        expires: statement.expires,
    };
    Ok((session, openable))
}

/// Has the session's connections carry tokens, where both kernels do. Gives the session whose
/// ticket was replaced.
async fn ask_for_tokens(signer: &Signer, place: &Place, asked: Openable) -> Option<SessionId> {
    let granted = tokens(signer, place, &asked).await;
    if !place.is_permitted(signer) {
        close(&signer.relay, place.clone(), asked.session);
        signer.sessions.forget(&place.key, asked.session).await;
        return None;
    }
    // Nothing is waited for between that and issuing.
    match granted {
        Ok((slot, key)) => {
            let grant = Grant {
                session: asked.session,
                slot,
                key,
                chain: asked.chain,
                expires: asked.expires,
            };
            signer.tickets.issue(place.clone(), grant)
        }
        Err(refusal) => {
            tracing::info!(user = %place.key.user, host = %place.key.host,
                service = %place.key.service, reason = refusal.name(),
                "connections are announced one by one: no tokens: {refusal}");
            None
        }
    }
}

async fn tokens(
    signer: &Signer,
    place: &Place,
    asked: &Openable,
) -> Result<(TokenSlot, TokenKey), Refusal> {
    let key = TokenKey::from_bytes(random()?);
    let wanted = SessionRequest::Tokens(key.clone());
    let pending = signer
        .relay
        .ask(&place.host, place.uid, asked.session, wanted)?;
    let slot = answer(pending).await?.ok_or(Refusal::Malformed)?;
    Ok((slot, key))
}

/// Waits for an answer, so long and no longer.
pub async fn answer(pending: Pending) -> Result<Option<TokenSlot>, Refusal> {
    tokio::time::timeout(ANSWER, pending.verdict())
        .await
        .unwrap_or(Err(Refusal::VerifierUnavailable))
}

/// Withdraws an announcement and waits for the server's word, so that the caller may let go of
/// the port. Without an answer it waits as long as an announcement lives on the server.
pub async fn withdraw(
    signer: &Signer,
    place: &Place,
    session: SessionId,
    connection: ConnectionTuple,
) {
    let answered = ask_to_withdraw(signer, &place.host, place.uid, session, connection).await;
    if let Err(refusal) = answered {
        tracing::info!(host = %place.host.name, %refusal, "withdrawal unanswered; waiting it out");
        tokio::time::sleep(ANSWER).await;
    }
}

/// Has the server take an announcement back: of its host's, in this session. When it has answered,
/// nothing that was announced before stands.
///
/// # Errors
/// When it has not answered.
pub async fn ask_to_withdraw(
    signer: &Signer,
    host: &Host,
    uid: u32,
    session: SessionId,
    connection: ConnectionTuple,
) -> Result<(), Refusal> {
    let asked = SessionRequest::Withdraw(connection);
    let pending = signer.relay.ask(host, uid, session, asked)?;
    answer(pending).await.map(drop)
}
