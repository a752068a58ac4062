//! Connections: how many, how long. One request each.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use usher_daemon::packet_async::SHORTAGE;

use super::Exporter;
use super::request::{self, LARGEST};

/// Connections at once. When there are so many, the next one is closed unanswered.
const CONNECTIONS: usize = 16;

/// How long a request may take to arrive, and how long its answer may take to be received.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the process ends.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(listener: std::net::TcpListener, exporter: Arc<Exporter>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(SHORTAGE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else {
            exporter.full.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%peer, "closed a connection: {CONNECTIONS} are open");
            continue;
        };
        let exporter = Arc::clone(&exporter);
        tokio::spawn(async move {
            match exchange(stream, &exporter).await {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    exporter.slow.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, "closed a connection: it is too slow");
                }
                Err(error) => tracing::debug!(%peer, %error, "cannot answer"),
                Ok(()) => {}
            }
            drop(permit);
        });
    }
}

async fn exchange(mut stream: TcpStream, exporter: &Exporter) -> io::Result<()> {
    let head = timeout(PATIENCE, read_head(&mut stream)).await??;
    // The daemons have a limit of their own.
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
