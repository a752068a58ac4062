//! Announcing a connection: opening the user's session when there is none, taking the next chain
//! element, telling the server; and withdrawing what was announced.

use std::net::SocketAddr;
use std::time::Duration;

use usher_policy::Host;
use usher_proto::authenticator::Authenticator;
use usher_proto::chain::{Chain, ChainElement};
use usher_proto::connection::ConnectionTuple;
use usher_proto::frame::{Announcement, ClientFrame};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::{SessionId, session_id};
use usher_proto::statement::Statement;

use super::relay::Pending;
use super::sessions::{Session, SessionKey};
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

/// Announces `connection` in the user's session, opening one if need be. `doubt`: it may stand
/// announced although this failed, since an answer was lost.
///
/// # Errors
/// The server's refusal, or this host's.
pub async fn announce(
    signer: &Signer,
    key: &SessionKey,
    host: &Host,
    connection: ConnectionTuple,
    doubt: &mut bool,
) -> Result<SessionId, Refusal> {
    let mut refusal = Refusal::VerifierUnavailable;
    for attempt in 0..ATTEMPTS {
        match attempt_once(signer, key, host, connection).await {
            Ok(session) => return Ok(session),
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
            | Refusal::ChainGap => *signer.sessions.slot(key).lock().await = None,
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
    signer: &Signer,
    key: &SessionKey,
    host: &Host,
    connection: ConnectionTuple,
) -> Result<SessionId, Refusal> {
    let slot = signer.sessions.slot(key);
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
        let pending = signer.relay.send(host, |request| {
            ClientFrame::Announce {
                request,
                session,
                announcement,
            }
            .encode()
        })?;
        // The element is on its way in order: others may announce while this one waits.
        drop(slot);
        return answer(pending).await.map(|()| session);
    }
    *slot = None;
    let (statement, mut chain) = new_statement(signer, key, host, connection.server)?;
    let element = chain.next().ok_or(Refusal::ChainExhausted)?;
    let authenticator = sign(key, &statement)?;
    let id = session_id(&authenticator.statement);
    let pending = open(signer, host, authenticator, element, connection)?;
    answer(pending).await?;
    tracing::info!(user = %key.user, host = %key.host, service = %key.service, session = %id,
        "session opened");
    *slot = Some(Session {
        id,
        chain,
        expires: statement.expires,
    });
    Ok(id)
}

fn open(
    signer: &Signer,
    host: &Host,
    authenticator: Authenticator,
    element: ChainElement,
    connection: ConnectionTuple,
) -> Result<Pending, Refusal> {
    let first = Announcement {
        element,
        connection,
    };
    signer.relay.send(host, |request| {
        ClientFrame::Open {
            request,
            authenticator,
            first,
        }
        .encode()
    })
}

fn new_statement(
    signer: &Signer,
    key: &SessionKey,
    host: &Host,
    server: SocketAddr,
) -> Result<(Statement, Chain), Refusal> {
    let chain = Chain::generate(CHAIN_LENGTH, random()?, random()?);
    let now = unix_time();
    let statement = Statement {
        user: key.user.clone(),
        service: key.service.clone(),
        client_host_key: signer.host_key,
        server_host_key: host.key,
        server,
        issued: now,
        expires: now + SESSION,
        nonce: random()?,
        chain_anchor: chain.anchor(),
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    };
    Ok((statement, chain))
}

fn sign(key: &SessionKey, statement: &Statement) -> Result<Authenticator, Refusal> {
    Authenticator::sign(statement, &keys::load(&key.user)?).map_err(|error| {
        tracing::warn!(user = %key.user, %error, "cannot sign");
        Refusal::NoPrivateKey
    })
}

fn random() -> Result<[u8; 16], Refusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "the kernel gives no random numbers");
        Refusal::SignerUnavailable
    })?;
    Ok(bytes)
}

async fn answer(pending: Pending) -> Result<(), Refusal> {
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
