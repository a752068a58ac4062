//! Control channels: one TLS connection per client host, with many users on it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_log::{AuthenticationRecord, Record};
use usher_proto::authenticator::Authenticator;
use usher_proto::frame::{ClientBody, ClientFrame, FrameBuffer, ServerFrame};
use usher_proto::host_key::HostPublicKey;
use usher_proto::keeper_record::KeeperBody;
use usher_proto::opening::Authentication;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::{SessionId, session_id};
use usher_proto::session_request::Announcement;
use usher_proto::statement::Statement;
use usher_proto::token::TokenSlot;

use super::Verifier;
use super::authenticate::authenticate;
use super::half_open::PATIENCE;
use super::standing::Standing;
use crate::link::{Pending, how};
use crate::opening::Claim;
use crate::tls;

/// A channel that sends no whole frame for this long is closed; clients ping three times as often.
const SILENCE: Duration = Duration::from_secs(70);
/// The time that the peer may take to read an answer.
const WRITE: Duration = Duration::from_secs(10);
/// Limit of answers that may wait for a slow reader; then the channel is closed.
const ANSWERS: usize = 1024;
/// Limit of requests of one channel that may wait for the keeper's verdict or for the peer to read it; more
/// are refused with [`Refusal::Overloaded`].
const UNDER_WAY: usize = 1024;

/// An open channel, as the rest of the verifier sees it. Dropping it closes the channel.
pub struct OpenChannel {
    /// Key that the peer host has proven to hold.
    pub key: HostPublicKey,
    number: u64,
    answers: mpsc::Sender<ServerFrame>,
    task: tokio::task::AbortHandle,
}

impl OpenChannel {
    /// Sends the client host an unrequested frame.
    pub fn tell(&self, told: ServerFrame) {
        // A full queue means that the peer does not read, and its channel is about to be closed. The peer
        // learns of a session's end at its next announcement, and is asked for an element again.
        if self.answers.try_send(told).is_err() {
            tracing::debug!(?told, "could not tell the client host");
        }
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections. Handshakes run on `handshakes`, where they wait for the keeper's signature; this
/// task's own thread serves the channels.
///
/// # Errors
/// None: if the listener fails, as without free descriptors, this task waits and tries again.
pub async fn serve(
    verifier: Arc<Verifier>,
    acceptor: TlsAcceptor,
    listener: TcpListener,
    handshakes: Handle,
) -> io::Result<()> {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let address = peer.ip().to_canonical();
        let number = verifier.half_open.number();
        // Enter the task before it can run, so that it cannot leave before it is entered.
        let (start, started) = tokio::sync::oneshot::channel::<()>();
        let task = handshakes.spawn({
            let (verifier, acceptor) = (Arc::clone(&verifier), acceptor.clone());
            let serving = Handle::current();
            async move {
                if started.await.is_ok() {
                    handshake(verifier, acceptor, stream, address, number, serving).await;
                }
            }
        });
        verifier
            .half_open
            .enter(number, address, task.abort_handle());
        // The task waits only for this, so it exists unless it was just aborted.
        let _ = start.send(());
    }
}

async fn handshake(
    verifier: Arc<Verifier>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: IpAddr,
    number: u64,
    serving: Handle,
) {
    let outcome = timeout(PATIENCE, async {
        stream.set_nodelay(true)?;
        // A courier that tries several addresses of this host abandons the connections that come later.
        if !matches!(stream.peek(&mut [0]).await, Ok(1..)) {
            return Ok(None);
        }
        acceptor.accept(stream).await.map(Some)
    })
    .await;
    verifier.half_open.leave(number);
    let stream = match outcome {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => {
            return tracing::debug!(%address, "a control connection ended before its first byte");
        }
        Ok(Err(error)) => {
            let error = tls::explained(&error);
            return tracing::info!(name: events::HOST_REFUSED, %address, %error, "refused a control connection");
        }
        Err(_) => {
            return tracing::info!(name: events::HOST_REFUSED, %address,
                "refused a control connection: handshake too slow");
        }
    };
    let (_, session) = stream.get_ref();
    let Some(key) = tls::peer_key(session.peer_certificates()) else {
        return tracing::warn!(name: events::HOST_REFUSED, %address,
            "refused a control connection without a host key");
    };
    if session.alpn_protocol() != Some(tls::ALPN) {
        return tracing::info!(name: events::HOST_REFUSED, %address, reason = Refusal::UnknownVersion.name(),
            "refused a control connection of another protocol version");
    }
    // Hold the lock until the channel is entered, so that no reload in between misses the channel.
    let mut channels = verifier.channels.lock();
    let configuration = verifier.configuration.get();
    let Some(host) = configuration
        .checked
        .policy
        .host_by_key(&key)
        .map(|host| host.name.clone())
    else {
        return tracing::info!(name: events::HOST_REFUSED, %address, key = %key.fingerprint(),
            "refused an unknown host");
    };
    let (answers, queue) = mpsc::channel(ANSWERS);
    // One channel per host, the newest: a host that has lost its side makes a new one before this side
    // has noticed. The former channel sends the keeper nothing more, so it cannot announce again what
    // this one withdraws.
    drop(channels.remove(&host));
    let channel = Channel {
        standing: Standing::new(Arc::clone(&verifier), host.clone()),
        verifier: Arc::clone(&verifier),
        host: host.clone(),
        key,
        answers: answers.clone(),
        under_way: Arc::new(Semaphore::new(UNDER_WAY)),
    };
    let task = serving.spawn(async move { channel.run(stream, queue, number).await });
    let handle = OpenChannel {
        key,
        number,
        answers,
        task: task.abort_handle(),
    };
    tracing::info!(name: events::CHANNEL_OPEN, %host, %address, "control channel open");
    channels.insert(host, handle);
}

struct Channel {
    standing: Standing,
    verifier: Arc<Verifier>,
    host: HostName,
    key: HostPublicKey,
    answers: mpsc::Sender<ServerFrame>,
    under_way: Arc<Semaphore>,
}

impl Channel {
    async fn run(
        self,
        stream: TlsStream<TcpStream>,
        queue: mpsc::Receiver<ServerFrame>,
        number: u64,
    ) {
        let (read, write) = tokio::io::split(stream);
        let outcome = tokio::select! {
            outcome = self.read(read) => outcome,
            outcome = write_answers(write, queue) => outcome,
        };
        tracing::info!(name: events::CHANNEL_LOST, host = %self.host, reason = how(&outcome),
            "control channel closed");
        let mut channels = self.verifier.channels.lock();
        if channels
            .get(&self.host)
            .is_some_and(|present| present.number == number)
        {
            channels.remove(&self.host);
        }
    }

    async fn read(&self, mut read: ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
        let mut buffer = FrameBuffer::new();
        let mut chunk = vec![0; 16 * 1024];
        let mut deadline = tokio::time::Instant::now() + SILENCE;
        loop {
            let length = tokio::time::timeout_at(deadline, read.read(&mut chunk)).await??;
            if length == 0 {
                return Ok(());
            }
            buffer.push(&chunk[..length]);
            loop {
                let payload = match buffer.next() {
                    Ok(Some(payload)) => payload,
                    Ok(None) => break,
                    Err(error) => return Err(self.malformed(error)),
                };
                // Only a whole frame counts as a sign of life.
                deadline = tokio::time::Instant::now() + SILENCE;
                let frame = ClientFrame::decode(&payload).map_err(|error| self.malformed(error))?;
                self.serve(frame);
            }
        }
    }

    fn malformed(&self, error: usher_base::DecodeError) -> io::Error {
        let refusal = Refusal::from(error);
        tracing::warn!(host = %self.host, reason = refusal.name(), %error,
            "refused a frame; the channel is closed");
        io::Error::other(error)
    }

    /// Serves one frame. Records go to the keeper in the order of the frames; a separate task waits for
    /// the verdicts.
    fn serve(&self, ClientFrame { request, body }: ClientFrame) {
        let asked = match body {
            ClientBody::Ping => return self.reply(ServerFrame::Pong { request }),
            ClientBody::Open {
                authenticator,
                first,
            } => self.pass_on(request, || self.authenticate(authenticator, first)),
            ClientBody::Session(session, asked) => self.pass_on(request, || {
                self.standing.note(session, &asked);
                Ok((session, KeeperBody::Session(session, asked)))
            }),
        };
        if let Err(refusal) = asked {
            self.verifier.refused.count(refusal);
            let verdict = Err(refusal);
            self.reply(ServerFrame::Answer { request, verdict });
        }
    }

    /// Sends the keeper a request about a session, if there is room for it.
    fn pass_on(
        &self,
        request: u64,
        body: impl FnOnce() -> Result<(SessionId, KeeperBody), Refusal>,
    ) -> Result<(), Refusal> {
        let permit = Arc::clone(&self.under_way).try_acquire_owned();
        let permit = permit.map_err(|_| Refusal::Overloaded)?;
        let (session, body) = body()?;
        let pending = self.verifier.ask_keeper(self.host.clone(), body)?;
        self.answer_later(permit, request, session, pending);
        Ok(())
    }

    /// The session that a valid authenticator opens, and the request to the keeper.
    fn authenticate(
        &self,
        authenticator: Authenticator,
        first: Option<Announcement>,
    ) -> Result<(SessionId, KeeperBody), Refusal> {
        let claim = Claim {
            host: &self.host,
            host_keys: std::slice::from_ref(&self.key),
            own_key: &self.verifier.host_key,
            now: unix_time(),
        };
        let configuration = self.verifier.configuration.get();
        let clocks = &self.verifier.clocks;
        let statement = Statement::decode(&authenticator.statement).map_err(Refusal::from);
        let granted = statement.as_ref().map_err(|refusal| *refusal);
        let granted = granted.and_then(|statement| {
            authenticate(&configuration.checked, &claim, &authenticator, statement)
        });
        let (opening, public_key) = granted.inspect_err(|&refusal| {
            // The statement is unproven, so the line counts against the host, not against a user whom it may
            // only claim.
            let statement = statement.as_ref().ok();
            let ahead = statement.map(|said| said.issued.wrapping_sub(claim.now).cast_signed());
            clocks.note(&self.host, Err(refusal), ahead, claim.now);
            let user = statement.map(|said| said.user.to_string());
            let service = statement.map(|said| said.service.to_string());
            tracing::info!(name: events::SESSION_REFUSED, host = %self.host, claimed_user = user, service,
                reason = refusal.name(), "refused a session: {refusal}");
        })?;
        clocks.note(&self.host, Ok(()), None, claim.now);
        let session = session_id(&authenticator.statement);
        if let Some(first) = &first {
            self.standing.announced(first.connection, session);
        }
        let record = Record::Authentication(AuthenticationRecord {
            authenticator,
            public_key,
        });
        let authentication = Box::new(Authentication {
            opening,
            record: record.encode(),
        });
        let body = KeeperBody::Open {
            authentication,
            first,
        };
        Ok((session, body))
    }

    /// Answers when the keeper's verdict has arrived.
    fn answer_later(
        &self,
        permit: OwnedSemaphorePermit,
        request: u64,
        session: SessionId,
        pending: Pending<Option<TokenSlot>>,
    ) {
        let (answers, host) = (self.answers.clone(), self.host.clone());
        let verifier = Arc::clone(&self.verifier);
        tokio::spawn(async move {
            let verdict = pending.verdict().await;
            if let Err(refusal) = verdict {
                verifier.refused.count(refusal);
                tracing::info!(name: events::SESSION_REFUSED, %host, %session, reason = refusal.name(),
                    "refused: {refusal}");
            }
            let answer = ServerFrame::Answer { request, verdict };
            if answers.send(answer).await.is_err() {
                tracing::debug!(%host, "the channel closed before its answer");
            }
            drop(permit);
        });
    }

    fn reply(&self, frame: ServerFrame) {
        if self.answers.try_send(frame).is_err() {
            // The peer sends requests and does not read answers. The time limit of writing ends its channel.
            tracing::debug!(host = %self.host, "answers pile up; one was dropped");
        }
    }
}

async fn write_answers(
    mut write: WriteHalf<TlsStream<TcpStream>>,
    mut queue: mpsc::Receiver<ServerFrame>,
) -> io::Result<()> {
    while let Some(frame) = queue.recv().await {
        let mut bytes = frame.encode();
        while let Ok(frame) = queue.try_recv() {
            bytes.extend_from_slice(&frame.encode());
        }
        timeout(WRITE, async {
            write.write_all(&bytes).await?;
            write.flush().await
        })
        .await??;
    }
    Ok(())
}
