//! Opens a session: a signature, the server's answer, and tokens if both kernels support them.

use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_proto::frame::ClientBody;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::{SessionId, session_id};
use usher_proto::session_request::{Announcement, SessionRequest};
use usher_proto::statement::Statement;
use usher_proto::token::{TokenChain, TokenKey, TokenSlot};

use super::Signer;
use super::chains::random;
use super::closing::close;
use super::gates::Gated;
use super::lease::Lease;
use super::sessions::{Pair, SESSION, Session, purpose};
use super::signing::ReadyKey;
use super::tickets::Grant;

/// The part of an opened session that is needed to request tokens.
pub struct Openable {
    session: SessionId,
    chain: TokenChain,
    expires: u64,
}

/// How far the opening of a session has come.
#[derive(Default)]
pub struct Opening {
    /// The user's agent was asked to sign, perhaps by touching a security key.
    pub asked: bool,
    /// The session that the server has been asked to open.
    pub opened: Option<SessionId>,
}

/// Opens a session, with its first connection if there is one.
pub async fn open_connection(
    signer: &Signer,
    lease: &Lease,
    first: Option<&Gated>,
    opening: &mut Opening,
) -> Result<(Session, Openable), Refusal> {
    let (pair, key) = (&lease.pair, &lease.pair.key);
    let configuration = signer.configuration.get();
    let policy = &configuration.checked.policy;
    let purpose = purpose(key, policy);
    // Read the stamp before the key: a key that is replaced in between counts as the former one.
    let signed_by = signer.keys.stamp(&key.user, purpose);
    // Take the key before dating the statement: waiting for an agent may take long.
    let user_key = ReadyKey::take(signer, pair, purpose).await?;
    let (by_agent, unused) = (user_key.is_agent(), user_key.unused());
    let server_host_key = signer.relay.key(&pair.host, pair.uid).await?;
    let (mut chain, tokens) = signer.chains.take()?;
    let now = unix_time();
    let statement = Statement {
        user: key.user.clone(),
        service: key.service.clone(),
        client_host_key: signer.host_key,
        server_host_key,
        server: key.server,
        issued: now,
        expires: user_key.latest(now + SESSION).min(lease.until()),
        nonce: random()?,
        chain_anchor: chain.anchor(),
        token_anchor: tokens.anchor(),
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    };
    let announced = match first {
        Some(gated) => Some(Announcement {
            element: chain.next().ok_or(Refusal::ChainExhausted)?,
            connection: gated.connection,
        }),
        None => None,
    };
    lease.check()?;
    opening.asked = by_agent;
    let signed = user_key.sign(&key.user, &statement).await;
    let authenticator = signed.inspect_err(|_| {
        if by_agent {
            signer.loans.not_signed(pair.uid);
        }
    })?;
    // An agent may have taken its time.
    lease.check()?;
    let id = session_id(&authenticator.statement);
    if let Some(gated) = first {
        gated.stand(signer, None)?;
    }
    let asked = ClientBody::Open {
        authenticator,
        first: announced,
    };
    let pending = signer.relay.send(&pair.host, pair.uid, asked)?;
    opening.opened = Some(id);
    let answered = pending.verdict().await;
    let answered = answered.map_err(|refusal| ReadyKey::reason(unused, refusal));
    let outcome = answered.as_ref().map(drop).map_err(|refusal| *refusal);
    signer.clocks.note(&key.host, outcome, None, unix_time());
    answered?;
    match first {
        // Enter the session in the gate, so that the next signer can withdraw the announcement if this one
        // ends. If that fails, the gate ends by the time of its former entry: the connection is announced,
        // and may not be refused. The caller checks the lease, because it has to withdraw the connection.
        Some(gated) => {
            if let Err(refusal) = gated.stand(signer, Some(id)) {
                tracing::warn!(connection = %gated.connection, %refusal,
                    "cannot note the session of a connection");
            }
        }
        // The server may have taken its time.
        None => lease
            .check()
            .inspect_err(|_| close(&signer.relay, pair.clone(), id))?,
    }
    tracing::info!(name: events::SESSION_OPENED, user = %key.user, host = %key.host, service = %key.service, session = %id,
        "session opened");
    let session = Session {
        id,
        uid: pair.uid,
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

/// Requests tokens for the session's connections, if both kernels support them. Returns the session
/// whose ticket was replaced.
pub async fn ask_for_tokens(signer: &Signer, lease: &Lease, asked: Openable) -> Option<SessionId> {
    let granted = tokens(signer, &lease.pair, &asked).await;
    let pair = &lease.pair;
    if lease.check().is_err() {
        close(&signer.relay, pair.clone(), asked.session);
        signer.sessions.forget(&pair.key, asked.session).await;
        return None;
    }
    // Nothing is awaited between the check of the lease and the ticket.
    match granted {
        Ok((slot, key)) => {
            let grant = Grant {
                session: asked.session,
                slot,
                key,
                chain: asked.chain,
                expires: asked.expires,
            };
            signer.tickets.issue(pair.clone(), grant)
        }
        Err(refusal) => {
            tracing::info!(user = %pair.key.user, host = %pair.key.host,
                service = %pair.key.service, reason = refusal.name(),
                "connections are announced one by one: no tokens: {refusal}");
            None
        }
    }
}

async fn tokens(
    signer: &Signer,
    pair: &Pair,
    asked: &Openable,
) -> Result<(TokenSlot, TokenKey), Refusal> {
    let key = TokenKey::from_bytes(random()?);
    let wanted = SessionRequest::Tokens(key.clone());
    let pending = signer
        .relay
        .ask(&pair.host, pair.uid, asked.session, wanted)?;
    let slot = pending.verdict().await?.ok_or(Refusal::Malformed)?;
    Ok((slot, key))
}
