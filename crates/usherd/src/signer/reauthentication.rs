//! Notices of servers. Authenticates users again when a server asks: sends another element of the session's
//! chain, if the configuration in force still permits the session. Otherwise the signer does not answer, and
//! the server ends the session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_base::HostName;
use usher_daemon::events;
use usher_policy::Host;
use usher_proto::program_end::ProgramEnd;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Notice, SessionRequest};

use super::Signer;
use super::closing::close_replaced;
use super::lease::Use;
use super::open::{Opening, open_connection};
use super::relay::PendingAnswer;
use super::sessions::{HeldSession, Pair, is_permitted};

/// The shortest interval between two answers to a server about one session. A correct server asks at most
/// once a second.
const PACE: Duration = Duration::from_millis(500);
/// The time for which a server is not answered after the replacement of a session with a used-up
/// chain has failed: users are not asked to sign again and again for connections that are not made.
const PAUSE: Duration = Duration::from_secs(300);

/// Handles a host's notice about a session.
pub fn hear(signer: &Arc<Signer>, host: &HostName, notice: Notice) {
    match notice {
        Notice::SessionEnded { session, reason } => {
            tracing::info!(name: events::SESSION_ENDED, %host, %session, %reason, "session ended by the server");
            signer.sessions.ended(host, session);
            signer.tickets.ended(session);
        }
        Notice::Reauthenticate { session } => reauthenticate(signer, host, session),
        Notice::ProgramEnded {
            session,
            client,
            end,
        } => note_failure(signer, host, session, (client, end)),
    }
}

/// Notes that the program for a connection has failed, if the session is one of this host's users with the
/// server.
fn note_failure(
    signer: &Arc<Signer>,
    host: &HostName,
    id: SessionId,
    (client, end): (SocketAddr, ProgramEnd),
) {
    if let Some(pair) = signer.tickets.pair_of(host, id) {
        return signer.failures.note(&pair.key, pair.uid, client, end);
    }
    // A notice about a session whose slot is in use is dropped: nothing waits here at a server's word.
    let Some(mut held) = signer.sessions.hold(host, id) else {
        return;
    };
    if let Some(uid) = held.session().map(|session| session.uid) {
        signer.failures.note(&held.key, uid, client, end);
    }
}

/// Answers a server that wants an element of this session. Does not wait for a session whose slot
/// is in use: the server asks again.
fn reauthenticate(signer: &Arc<Signer>, host: &HostName, id: SessionId) {
    let configuration = signer.configuration.get();
    let Some(host) = configuration.checked.policy.hosts.get(host) else {
        return;
    };
    let Some(mut held) = signer.sessions.hold(&host.name, id) else {
        return tracing::debug!(host = %host.name, session = %id, "asked for a session that is not here");
    };
    let now = Instant::now();
    if let Some(session) = held.session() {
        if session.quiet_until.is_some_and(|until| now < until) {
            return;
        }
        session.quiet_until = Some(now + PACE);
    }
    if !is_permitted(&held.key, &configuration.checked)
        || signer
            .stamp(&held.key, &configuration.checked.policy)
            .is_none()
    {
        return tracing::info!(host = %host.name, session = %id, user = %held.key.user,
            "not authenticated again: this host's policy no longer permits the session");
    }
    let next = held
        .session()
        .and_then(|session| Some((session.uid, session.chain.next()?)));
    let Some((uid, element)) = next else {
        return replace(signer, host.clone(), held);
    };
    let asked = SessionRequest::Reauthenticate(element);
    let sent = signer.relay.ask(host, uid, id, asked);
    let (signer, host) = (Arc::clone(signer), host.name.clone());
    tokio::spawn(async move { settle(&signer, &host, id, sent).await });
}

async fn settle(
    signer: &Signer,
    host: &HostName,
    id: SessionId,
    sent: Result<PendingAnswer, Refusal>,
) {
    let answered = match sent {
        Ok(pending) => pending.verdict().await,
        Err(refusal) => Err(refusal),
    };
    match answered {
        Ok(_) => {}
        Err(refusal) if refusal.ends_session() => {
            tracing::info!(%host, session = %id, reason = refusal.name(),
                "a session is of no use any longer: {refusal}");
            signer.sessions.ended(host, id);
        }
        // The server asks again.
        Err(refusal) => tracing::info!(%host, session = %id, reason = refusal.name(),
            "not authenticated again: {refusal}"),
    }
}

/// Replaces a session whose chain is used up by a new one, with another signature.
fn replace(signer: &Arc<Signer>, host: Host, mut held: HeldSession) {
    let signer = Arc::clone(signer);
    tokio::spawn(async move {
        let Some(former) = held.session().map(|session| (session.id, session.uid)) else {
            return;
        };
        let pair = Pair {
            key: held.key.clone(),
            uid: former.1,
            host: host.clone(),
        };
        // Sign even if the user has to touch a security key for it: live connections depend on the session.
        let opened = match signer.lease(pair.clone(), Use::Session) {
            Ok(lease) => open_connection(&signer, &lease, None, &mut Opening::default()).await,
            Err(refusal) => Err(refusal),
        };
        match opened {
            Ok((session, _)) => {
                held.replace(session);
                close_replaced(&signer, pair, former.0);
            }
            Err(refusal) => {
                if let Some(session) = held.session() {
                    session.quiet_until = Some(Instant::now() + PAUSE);
                }
                tracing::info!(host = %host.name, session = %former.0, reason = refusal.name(),
                    "a session whose chain is used up is not renewed: {refusal}");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::Receiver;
    use usher_proto::chain::Chain;
    use usher_proto::frame::{ClientBody, ClientFrame, FrameBuffer};
    use usher_proto::host_key::HostPublicKey;
    use usher_proto::relay::RelayRequest;
    use usher_proto::session_id::session_id;
    use usher_proto::ssh_key::LineEnding;
    use usher_proto::ssh_key::private::{Ed25519Keypair, PrivateKey};

    use super::super::keys::Keys;
    use super::super::relay::tests::{answer, connect};
    use super::super::sessions::Session;
    use super::super::sessions::tests::{configuration, pair};
    use super::*;
    use crate::ports::ReservedPorts;
    use crate::signer::tickets::Tickets;

    /// The number and the contents of the next request to the server.
    async fn next(courier: &mut Receiver<Vec<u8>>) -> (u64, ClientBody) {
        let packet = courier.recv().await.unwrap();
        let RelayRequest::Forward { frame, .. } = RelayRequest::decode(&packet).unwrap();
        let mut buffer = FrameBuffer::new();
        buffer.push(&frame);
        let ClientFrame { request, body } =
            ClientFrame::decode(&buffer.next().unwrap().unwrap()).unwrap();
        (request, body)
    }

    /// Whether alice's session, whose chain is used up, is replaced if a configuration that disables the user
    /// `disabled` comes in force before the server has answered.
    async fn is_replaced(disabled: Option<&str>) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let text = key.to_openssh(LineEnding::LF).unwrap();
        std::fs::write(folder.path().join("alice"), text).unwrap();
        let signer = Signer::new(
            HostPublicKey::from_bytes([9; 32]),
            configuration("", None),
            Keys::at(folder.path()),
            Tickets::default(),
            ReservedPorts::default(),
            None,
        );
        let signer = Arc::new(signer.unwrap());
        let mut courier = connect(&signer.relay);
        let key = pair(&signer.configuration.get().checked).key;
        let mut chain = Chain::generate(1, [0; _], [0; _]);
        while chain.next().is_some() {}
        let former = SessionId::from_bytes([1; _]);
        *signer.sessions.slot(&key).lock().await = Some(Session {
            id: former,
            uid: 1001,
            chain,
            quiet_until: None,
            expires: u64::MAX,
            signed_by: None,
            by_agent: false,
        });
        hear(
            &signer,
            &key.host,
            Notice::Reauthenticate { session: former },
        );
        let (request, ClientBody::Open { authenticator, .. }) = next(&mut courier).await else {
            panic!("no session is opened");
        };
        let opened = session_id(&authenticator.statement);
        signer.put_in_force(configuration("", disabled));
        answer(&signer.relay, request, Ok(None));
        let (_, ClientBody::Session(closed, SessionRequest::Close)) = next(&mut courier).await
        else {
            panic!("no session is closed");
        };
        let slot = signer.sessions.slot(&key);
        let present = slot.lock().await.as_ref().map(|session| session.id);
        let replaced = closed == former;
        let expected = if replaced {
            (former, Some(opened))
        } else {
            (opened, None)
        };
        assert_eq!((closed, present), expected);
        replaced
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_cancels_the_replacement_of_a_session() {
        assert!(is_replaced(None).await);
        assert!(!is_replaced(Some("left")).await);
    }
}
