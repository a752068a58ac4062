//! The exporter's connections: how many are open, and for how long. Each carries one request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};

use usher_daemon::packet_async::SHORTAGE;

use super::Exporter;
use super::request::{self, LARGEST};

/// Limit of open connections. At the limit, the oldest one without a request is closed for the next, so that
/// idle connections keep no one else from asking. If all have made a request, the next is closed unanswered.
const CONNECTIONS: usize = 16;

/// How long a request may take to arrive, and how long its answer may take to be received.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the process ends.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(listener: std::net::TcpListener, exporter: Arc<Exporter>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut open: Vec<Connection> = Vec::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(SHORTAGE).await;
                continue;
            }
        };
        open.retain(|one| !one.task.is_finished());
        if open.len() >= CONNECTIONS {
            exporter.full.fetch_add(1, Ordering::Relaxed);
            let oldest = open.iter().position(|one| !one.has_asked());
            tracing::debug!(%peer, makes_room = oldest.is_some(), "{CONNECTIONS} connections are open");
            match oldest {
                Some(oldest) => open.remove(oldest).task.abort(),
                None => continue,
            }
        }
        let has_asked = Arc::new(AtomicBool::new(false));
        let exporter = Arc::clone(&exporter);
        let asked = Arc::clone(&has_asked);
        let serving = tokio::spawn(async move {
            match exchange(stream, &exporter, &asked).await {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    exporter.slow.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, "closed a connection: it is too slow");
                }
                Err(error) => tracing::debug!(%peer, %error, "cannot answer"),
                Ok(()) => {}
            }
        });
        let task = serving.abort_handle();
        open.push(Connection { task, has_asked });
        // Let the new task read its request before later connections take its place.
        yield_now().await;
    }
}

/// A connection that is served.
struct Connection {
    task: AbortHandle,
    has_asked: Arc<AtomicBool>,
}

impl Connection {
    fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }
}

async fn exchange(
    mut stream: TcpStream,
    exporter: &Exporter,
    has_asked: &AtomicBool,
) -> io::Result<()> {
    let head = timeout(PATIENCE, read_head(&mut stream)).await??;
    has_asked.store(true, Ordering::Relaxed);
    // Asking the daemons has a time limit of its own.
    let answer = exporter.answer(request::decode(&head)).await;
    timeout(PATIENCE, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await?
}

/// The bytes up to the end of the head, or the first [`LARGEST`].
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !request::is_whole(&head) && head.len() <= LARGEST {
        match stream.read(&mut part).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&part[..length]),
        }
    }
    Ok(head)
}
