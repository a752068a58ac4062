//! Announcing a connection: opening the user's session when there is none, taking the next chain
//! element, telling the server; and withdrawing what was announced.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use usher_policy::Host;
use usher_proto::authenticator::Authenticator;
use usher_proto::chain::Chain;
use usher_proto::connection::ConnectionTuple;
use usher_proto::frame::{Announcement, ClientFrame};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::{SessionId, session_id};
use usher_proto::statement::Statement;
use usher_proto::token::{TokenChain, TokenKey, TokenSlot};

use super::relay::Pending;
use super::sessions::{Session, SessionKey};
use super::tickets::Grant;
use super::{Signer, keys};
use crate::start::unix_time;

/// Connections one signature is good for. Making the chain costs about 44 ns an element.
const CHAIN_LENGTH: u32 = 1024;
/// How long a session is asked for; the server may make it shorter.
const SESSION: u64 = 8 * 3600;
/// A session that ends sooner than this is renewed rather than used.
const RENEW: u64 = 5;
/// How often an announcement is tried when the channel breaks or the server has lost the session.
const ATTEMPTS: u32 = 8;
/// How long one answer is waited for.
const ANSWER: Duration = Duration::from_secs(10);
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
    /// The service's address and port there.
    pub server: SocketAddr,
}

/// Announces `connection` in the user's session, opening one if need be; a new one is followed by a
/// ticket for `uid`. `doubt`: it may stand announced although this failed, since an answer was lost.
///
/// # Errors
/// The server's refusal, or this host's.
pub async fn announce(
    signer: &Arc<Signer>,
    place: &Place,
    connection: ConnectionTuple,
    doubt: &mut bool,
) -> Result<SessionId, Refusal> {
    let mut refusal = Refusal::VerifierUnavailable;
    for attempt in 0..ATTEMPTS {
        match attempt_once(signer, place, connection).await {
            Ok(session) => {
                renew_for_tokens(signer, place);
                return Ok(session);
            }
            Err(error) => refusal = error,
        }
        match refusal {
            // The server does not know or no longer takes this session: open a new one.
            Refusal::UnknownSession
            | Refusal::SessionEnded
            | Refusal::Expired
            | Refusal::ChainExhausted
            | Refusal::ChainMismatch
            | Refusal::ChainReplayed
            | Refusal::ChainGap => *signer.sessions.slot(&place.key).lock().await = None,
            Refusal::VerifierUnavailable | Refusal::KeeperUnavailable => {
                *doubt = true;
                tokio::time::sleep(PAUSE * 2_u32.pow(attempt.min(4))).await;
            }
            _ => return Err(refusal),
        }
    }
    Err(refusal)
}

async fn attempt_once(
    signer: &Arc<Signer>,
    place: &Place,
    connection: ConnectionTuple,
) -> Result<SessionId, Refusal> {
    let slot = signer.sessions.slot(&place.key);
    let mut slot = slot.lock().await;
    let usable = slot
        .as_mut()
        .filter(|session| session.expires > unix_time() + RENEW);
    if let Some((session, element)) =
        usable.and_then(|session| session.chain.next().map(|element| (session.id, element)))
    {
        let announcement = Announcement {
            element,
            connection,
        };
        let pending = signer.relay.send(&place.host, |request| {
            ClientFrame::Announce {
                request,
                session,
                announcement,
            }
            .encode()
        })?;
        // The element is on its way in order: others may announce while this one waits.
        drop(slot);
        return answer(pending).await.map(|_| session);
    }
    *slot = None;
    signer.tickets.claim(place.uid, place.server);
    let (session, grant) = open(signer, place, Some(connection)).await?;
    let id = session.id;
    *slot = Some(session);
    drop(slot);
    // Aside: the connection that is being made need not wait for it.
    let (signer, place) = (Arc::clone(signer), place.clone());
    tokio::spawn(async move { ask_for_tokens(&signer, place, grant).await });
    Ok(id)
}

/// A session without a ticket, where tokens did not pass for a while: the next one may have them.
fn renew_for_tokens(signer: &Arc<Signer>, place: &Place) {
    if !signer.tickets.claim(place.uid, place.server) {
        return;
    }
    let (signer, place) = (Arc::clone(signer), place.clone());
    tokio::spawn(async move {
        if let Err(refusal) = renew(&signer, &place).await {
            tracing::info!(user = %place.key.user, host = %place.key.host,
                service = %place.key.service, reason = refusal.name(),
                "a session is not renewed for its tokens: {refusal}");
        }
    });
}

/// Opens a session and a ticket in the place of those that are nearly used up.
///
/// # Errors
/// The server's refusal, or this host's; the session in place goes on.
pub async fn renew(signer: &Arc<Signer>, place: &Place) -> Result<(), Refusal> {
    let (session, grant) = open(signer, place, None).await?;
    let slot = signer.sessions.slot(&place.key);
    let former = slot.lock().await.replace(session);
    ask_for_tokens(signer, place.clone(), grant).await;
    if let Some(former) = former {
        // Its connections go on; its last tokens may be on their way.
        tokio::time::sleep(ANSWER).await;
        close(signer, &place.host, former.id).await;
    }
    Ok(())
}

/// What is left of an opened session to ask tokens with.
struct Openable {
    session: SessionId,
    chain: TokenChain,
    expires: u64,
}

/// Opens a session, with its first connection where there is one.
async fn open(
    signer: &Signer,
    place: &Place,
    first: Option<ConnectionTuple>,
) -> Result<(Session, Openable), Refusal> {
    let key = &place.key;
    let mut chain = Chain::generate(CHAIN_LENGTH, random()?, random()?);
    let tokens = TokenChain::generate(CHAIN_LENGTH, random()?, chain.salt());
    let now = unix_time();
    let statement = Statement {
        user: key.user.clone(),
        service: key.service.clone(),
        client_host_key: signer.host_key,
        server_host_key: place.host.key,
        server: place.server,
        issued: now,
        expires: now + SESSION,
        nonce: random()?,
        chain_anchor: chain.anchor(),
        token_anchor: tokens.anchor(),
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    };
    let first = match first {
        Some(connection) => Some(Announcement {
            element: chain.next().ok_or(Refusal::ChainExhausted)?,
            connection,
        }),
        None => None,
    };
    let authenticator = sign(key, &statement)?;
    let id = session_id(&authenticator.statement);
    let pending = signer.relay.send(&place.host, |request| {
        ClientFrame::Open {
            request,
            authenticator,
            first,
        }
        .encode()
    })?;
    answer(pending).await?;
    tracing::info!(user = %key.user, host = %key.host, service = %key.service, session = %id,
        "session opened");
    let session = Session {
        id,
        chain,
        expires: statement.expires,
    };
    let openable = Openable {
        session: id,
        chain: tokens,
        expires: statement.expires,
    };
    Ok((session, openable))
}

/// Has the session's connections carry tokens, where both kernels do.
async fn ask_for_tokens(signer: &Signer, place: Place, asked: Openable) {
    if !signer.tickets.available() {
        return;
    }
    match tokens(signer, &place, &asked).await {
        Ok((slot, key)) => {
            let grant = Grant {
                session: asked.session,
                slot,
                key,
                chain: asked.chain,
                expires: asked.expires,
            };
            signer.tickets.issue(place, grant);
        }
        Err(refusal) => tracing::info!(user = %place.key.user, host = %place.key.host,
            service = %place.key.service, reason = refusal.name(),
            "connections are announced one by one: no tokens: {refusal}"),
    }
}

async fn tokens(
    signer: &Signer,
    place: &Place,
    asked: &Openable,
) -> Result<(TokenSlot, TokenKey), Refusal> {
    let key = TokenKey::from_bytes(random()?);
    let session = asked.session;
    let pending = signer.relay.send(&place.host, |request| {
        ClientFrame::Tokens {
            request,
            session,
            key: key.clone(),
        }
        .encode()
    })?;
    let slot = answer(pending).await?.ok_or(Refusal::Malformed)?;
    Ok((slot, key))
}

async fn close(signer: &Signer, host: &Host, session: SessionId) {
    let closed = match signer.relay.send(host, |request| {
        ClientFrame::Close { request, session }.encode()
    }) {
        Ok(pending) => answer(pending).await,
        Err(refusal) => Err(refusal),
    };
    if let Err(refusal) = closed {
        tracing::info!(host = %host.name, %session, %refusal,
            "a session that was replaced is not closed; it expires");
    }
}

fn sign(key: &SessionKey, statement: &Statement) -> Result<Authenticator, Refusal> {
    Authenticator::sign(statement, &keys::load(&key.user)?).map_err(|error| {
        tracing::warn!(user = %key.user, %error, "cannot sign");
        Refusal::NoPrivateKey
    })
}

fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "the kernel gives no random numbers");
        Refusal::SignerUnavailable
    })?;
    Ok(bytes)
}

async fn answer(pending: Pending) -> Result<Option<TokenSlot>, Refusal> {
    tokio::time::timeout(ANSWER, pending.verdict())
        .await
        .unwrap_or(Err(Refusal::VerifierUnavailable))
}

/// Withdraws an announcement and waits for the server's word, so that the caller may let go of
/// the port. Without an answer it waits as long as an announcement lives on the server.
pub async fn withdraw(
    signer: &Signer,
    host: &Host,
    session: SessionId,
    connection: ConnectionTuple,
) {
    let answered = match signer.relay.send(host, |request| {
        ClientFrame::Withdraw {
            request,
            session,
            connection,
        }
        .encode()
    }) {
        Ok(pending) => answer(pending).await,
        Err(refusal) => Err(refusal),
    };
    if let Err(refusal) = answered {
        tracing::info!(host = %host.name, %refusal, "withdrawal unanswered; waiting it out");
        tokio::time::sleep(ANSWER).await;
    }
}
