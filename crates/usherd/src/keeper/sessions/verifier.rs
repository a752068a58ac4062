//! Records from the verifier. Each is checked against the keeper's own copy of the policy, and a
//! session is opened (`open`) only once the recorder has confirmed that the client signed it. So a
//! subverted verifier can neither invent a user, a service or a host, nor claim the presence of a
//! user who has not signed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use usher_daemon::events;
use usher_daemon::packet_async::{AsyncPacketSocket, PacketListener};
use usher_proto::keeper_record::{KeeperBody, KeeperReply, KeeperRequest, MAX_KEEPER_REQUEST};
use usher_proto::refusal::Refusal;
use usher_proto::session_request::Verdict;

use super::Sessions;
use super::table::Replies;
use crate::link::{how, write_link};

/// Time limit of opening a session. The client keeps the port of the first connection for this time plus the
/// time of an announcement: no announcement is made after this limit.
const OPENING: Duration = Duration::from_secs(10);
/// Replies that may wait for the verifier.
const REPLIES: usize = 4096;

impl Sessions {
    /// Accepts the verifier's connections, one at a time; a new one replaces one that hangs.
    ///
    /// # Errors
    /// Returns only when the listener fails.
    pub async fn serve(self: Arc<Self>, listener: OwnedFd, verifier: u32) -> io::Result<()> {
        let listener = PacketListener::new(listener)?;
        let mut present: Option<tokio::task::JoinHandle<()>> = None;
        loop {
            let connection = listener.accept_of(verifier, "verifier").await?;
            if let Some(task) = present.take() {
                task.abort();
            }
            let (replies, queue) = mpsc::channel(REPLIES);
            self.table.notices.send_to(replies.clone());
            tracing::info!(name: events::DAEMON_CONNECTED, "verifier connected");
            let sessions = Arc::clone(&self);
            // This task ends with the connection, and so does all its work except sessions being opened.
            present = Some(tokio::spawn(async move {
                let end = tokio::select! {
                    end = read_records(&sessions, &connection, replies) => end,
                    end = write_link(&connection, queue) => end,
                };
                tracing::warn!(name: events::DAEMON_GONE, reason = how(&end), "the verifier has gone");
            }));
        }
    }
}

async fn read_records(
    sessions: &Arc<Sessions>,
    connection: &AsyncPacketSocket,
    replies: Replies,
) -> io::Result<()> {
    loop {
        let packet = connection.receive(MAX_KEEPER_REQUEST).await?;
        if packet.bytes.is_empty() {
            return Ok(());
        }
        let KeeperRequest {
            request,
            host,
            body,
        } = KeeperRequest::decode(&packet.bytes).map_err(io::Error::other)?;
        let verdict = match body {
            KeeperBody::Open {
                authentication,
                first,
            } => match sessions
                .recording
                .permit(authentication.opening.session(), &host)
            {
                Ok(permit) => {
                    // Looking up an account and having the record kept may take long, so a task of its own
                    // does it. The permit lasts until the answer is on its way. The task finishes even if the
                    // verifier goes: a recorded session exists, and cannot be recorded again.
                    let (sessions, replies) = (Arc::clone(sessions), replies.clone());
                    tokio::spawn(async move {
                        let until = Instant::now() + OPENING;
                        let open = sessions.open(&host, &authentication, first, until);
                        let verdict = timeout_at(until, open).await;
                        let verdict = verdict.unwrap_or(Err(Refusal::KeeperUnavailable));
                        let is_open = verdict.is_ok();
                        if !answer_verifier(&replies, request, verdict.map(|()| None)).await
                            && is_open
                        {
                            sessions.abandon(&authentication.opening.session(), &host);
                        }
                        drop(permit);
                    });
                    continue;
                }
                Err(refusal) => Err(refusal),
            },
            KeeperBody::Session(session, asked) => sessions.request(session, &host, &asked),
        };
        answer_verifier(&replies, request, verdict).await;
    }
}

/// Sends an answer. Returns whether the verifier is still connected.
async fn answer_verifier(replies: &Replies, request: u64, verdict: Verdict) -> bool {
    let reply = KeeperReply::Answer { request, verdict };
    let sent = replies.send(reply.encode()).await.is_ok();
    if !sent {
        tracing::debug!(?reply, "the verifier went before its answer");
    }
    sent
}
