//! The numbers socket of a daemon: the account that watches the host (the exporter's) reads the daemon's
//! numbers there, as one JSON line, [`NumbersView`], at each connection. The daemon reads nothing from the
//! socket, so this account can ask for nothing else. The daemon serves one connection after the other.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

use crate::control::{NumbersView, Status};
use crate::control_server::{Answers, Failed};
use crate::packet::in_place;
use crate::packet_async::accept_stream;
use crate::role::Role;

/// How long the same numbers are sent before they are collected again: collecting reads the tables of the
/// kernel, and the watcher decides how often it connects.
const FRESH: Duration = Duration::from_secs(1);

/// The daemon's pause before each connection, so that a watcher who connects without end takes little of the
/// daemon's time.
const PACE: Duration = Duration::from_millis(20);

/// How long the watcher may take to receive the numbers.
const PATIENCE: Duration = Duration::from_secs(2);

/// A bound numbers socket.
#[derive(Debug)]
pub(crate) struct NumbersSocket {
    listener: StdListener,
    watcher: u32,
}

impl NumbersSocket {
    /// Binds a role's numbers socket for this uid. Without a uid, removes the socket that an earlier daemon
    /// has left. The daemon can work without being watched: if the socket cannot be made, a warning says so,
    /// and the daemon runs without it.
    pub(crate) fn bind(role: &Role, watcher: Option<u32>) -> Option<Self> {
        let path = role.numbers_socket();
        let Some(watcher) = watcher else {
            // There may be none.
            let _ = std::fs::remove_file(path);
            return None;
        };
        match Self::bind_at(Path::new(&path), watcher) {
            Ok(listener) => Some(Self { listener, watcher }),
            Err(error) => {
                tracing::warn!(
                    path,
                    %error,
                    "cannot make the numbers socket, so the exporter takes this daemon for down: after an \
                     update run systemctl daemon-reload, and restart the daemon"
                );
                None
            }
        }
    }

    fn bind_at(path: &Path, watcher: u32) -> io::Result<StdListener> {
        let listener = in_place(path, |path| {
            let listener = StdListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            std::os::unix::fs::chown(path, Some(watcher), None)?;
            Ok(listener)
        })?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Sends the watcher the daemon's numbers, at each of its connections. If the listener fails, a warning says
    /// so, and nothing is sent any more.
    pub(crate) async fn serve<D: Answers<Status>>(self, daemon: &D) -> Infallible {
        let Err(error) = self.serve_while_it_works(daemon).await;
        tracing::warn!(%error, "cannot send numbers to the exporter any more: restart the daemon");
        std::future::pending().await
    }

    async fn serve_while_it_works<D: Answers<Status>>(self, daemon: &D) -> io::Result<Infallible> {
        let listener = UnixListener::from_std(self.listener)?;
        let mut collected: Option<(Instant, Vec<u8>)> = None;
        loop {
            tokio::time::sleep(PACE).await;
            let (stream, uid) = accept_stream(&listener).await?;
            // The second barrier, behind the file's mode.
            if uid != self.watcher && uid != 0 {
                tracing::warn!(uid, "refused to send numbers to another user");
                continue;
            }
            let line = match collected.take() {
                Some((at, line)) if at.elapsed() < FRESH => (at, line),
                _ => match collect(daemon).await {
                    Ok(line) => (Instant::now(), line),
                    Err(Failed(reason)) => {
                        tracing::warn!("cannot collect the numbers: {reason}");
                        continue;
                    }
                },
            };
            if let Err(error) = send(stream, &line.1).await {
                tracing::debug!(%error, "cannot send the numbers");
            }
            collected = Some(line);
        }
    }
}

async fn collect<D: Answers<Status>>(daemon: &D) -> Result<Vec<u8>, Failed> {
    let status = daemon.answer(Status {}).await?;
    let mut line = serde_json::to_vec(&NumbersView::from(status))?;
    line.push(b'\n');
    Ok(line)
}

async fn send(mut stream: UnixStream, line: &[u8]) -> io::Result<()> {
    tokio::time::timeout(PATIENCE, stream.write_all(line)).await?
}
