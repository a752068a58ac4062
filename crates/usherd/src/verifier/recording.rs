//! No session without a record: what a client has signed is kept by the recorder before anything is
//! announced in the session, or the session ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use usher_log::Record;
use usher_proto::keeper_record::KeeperRequest;
use usher_proto::name::HostName;
use usher_proto::recorder::RecorderRequest;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Verifier;

/// How long the disk may take over a record.
const KEEPING: Duration = Duration::from_secs(10);
/// How long a session waits for a recorder that is being restarted, and how often it looks.
const RESTART: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// Has an opened session's authenticator kept.
pub async fn keep(verifier: &Verifier, record: &Record) -> Result<(), Refusal> {
    let record = record.encode();
    let begun = Instant::now();
    loop {
        let sent = verifier.recorder.send(|request| {
            let record = record.clone();
            RecorderRequest { request, record }.encode()
        });
        let kept = match sent {
            Ok(sent) => timeout(KEEPING, sent.verdict())
                .await
                .unwrap_or(Err(Refusal::RecorderUnavailable))
                .map(drop),
            Err(refusal) => Err(refusal),
        };
        // One that has just died is back soon, and may get a record twice.
        let again = kept == Err(Refusal::RecorderUnavailable) && !verifier.recorder.is_connected();
        if !again || begun.elapsed() > RESTART {
            return kept;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Ends a session that is not on record. Nothing can be announced in it until the keeper has heard
/// of that, which is waited for once and then aside.
pub async fn end_unrecorded(verifier: Arc<Verifier>, session: SessionId, host: HostName) {
    if !is_closed(&verifier, session, &host).await {
        tokio::spawn(async move {
            while !is_closed(&verifier, session, &host).await {
                tokio::time::sleep(RESTART).await;
            }
        });
    }
}

async fn is_closed(verifier: &Verifier, session: SessionId, host: &HostName) -> bool {
    let closing = verifier.ask_keeper(|request| KeeperRequest::Close {
        request,
        session,
        host: host.clone(),
    });
    let closed = match closing {
        Ok(closing) => closing.verdict().await,
        Err(refusal) => Err(refusal),
    };
    let closed = matches!(
        closed,
        Ok(_) | Err(Refusal::UnknownSession | Refusal::SessionEnded)
    );
    if closed {
        verifier.unrecorded().remove(&session);
    }
    closed
}
