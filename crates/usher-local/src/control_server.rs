//! The daemons' side of the control protocol: [`crate::control`].

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

use crate::control::{Answer, HEARD, MAX_CANDIDATE, MAX_REQUEST, Request};
use crate::packet_async::{SHORTAGE, is_shortage};
use crate::{lock_file, paths};

/// How long a request may take to arrive whole.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an earlier daemon of the same role may take to be gone. A process it was just starting
/// holds its lock until it executes.
const TAKEOVER: Duration = Duration::from_secs(3);

/// A bound control socket; tokio takes it over when the reactor runs. Holding it keeps a second
/// daemon of the same role from taking this one's sockets away.
#[derive(Debug)]
pub struct ControlSocket {
    listener: std::os::unix::net::UnixListener,
    lock: File,
}

/// Answers requests.
pub trait Answerer: Send + Sync + 'static {
    /// Carries out one request.
    fn answer(&self, request: Request) -> impl Future<Output = Answer> + Send;
}

impl ControlSocket {
    /// Binds the control socket of `role`, for root only, and makes its folder. Called before
    /// privileges are given up.
    ///
    /// # Errors
    /// When the folder or the socket cannot be made, or another daemon of this role runs.
    pub fn bind(role: &str) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = paths::control_socket(role);
        let folder = format!("{}/{role}", paths::RUNTIME_DIRECTORY);
        std::fs::create_dir_all(&folder)?;
        let lock = claim(role, &format!("{folder}/lock"))?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = std::os::unix::net::UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, lock })
    }

    /// Serves root's requests.
    ///
    /// # Errors
    /// Returns only when the listener fails.
    pub async fn serve(self, answerer: Arc<impl Answerer>) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener)?;
        let one_candidate = Arc::default();
        let _held_as_long_as_the_daemon_runs = self.lock;
        loop {
            let (stream, _) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_shortage(&error) => {
                    tokio::time::sleep(SHORTAGE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if stream.peer_cred()?.uid() != 0 {
                tracing::warn!("refused a control request of a user who is not root");
                continue;
            }
            let (answerer, one_candidate) = (Arc::clone(&answerer), Arc::clone(&one_candidate));
            tokio::spawn(async move {
                match exchange(stream, &*answerer, &one_candidate).await {
                    // It was asked and not waited for, which the one who asked knows.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        tracing::debug!(%error, "control request");
                    }
                    Err(error) => tracing::warn!(%error, "control request"),
                    Ok(()) => {}
                }
            });
        }
    }
}

/// Takes the role's lock, waiting a little for an earlier daemon to be gone.
fn claim(role: &str, path: &str) -> io::Result<File> {
    let lock = lock_file::open(path)?;
    let deadline = std::time::Instant::now() + TAKEOVER;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let message =
                    format!("another {role} runs; stop it first (systemctl stop usher-{role})");
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// `one_candidate` is held while a request's configuration is read and looked at: there is one in
/// memory at a time.
async fn exchange(
    stream: UnixStream,
    answerer: &impl Answerer,
    one_candidate: &Mutex<()>,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(MAX_REQUEST as u64));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await??;
    let answer = match serde_json::from_str(&line) {
        Ok(Request::WouldEnd { bytes, .. }) if bytes > MAX_CANDIDATE => Answer::Failed {
            reason: format!("a configuration of more than {MAX_CANDIDATE} bytes"),
        },
        Ok(Request::WouldEnd { bytes, .. }) => {
            write.write_all(&[HEARD]).await?;
            let _alone = one_candidate.lock().await;
            let candidate = tokio::time::timeout(PATIENCE, read_candidate(reader, bytes)).await??;
            answerer
                .answer(Request::WouldEnd { bytes, candidate })
                .await
        }
        Ok(request) => {
            write.write_all(&[HEARD]).await?;
            answerer.answer(request).await
        }
        Err(error) => Answer::Failed {
            reason: format!("not a request: {error}"),
        },
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    write.write_all(&text).await
}

/// Reads the configuration of this many bytes that follows a request.
async fn read_candidate(
    mut reader: BufReader<Take<OwnedReadHalf>>,
    bytes: u64,
) -> io::Result<Vec<u8>> {
    let buffered = reader.buffer().len() as u64;
    reader.get_mut().set_limit(bytes.saturating_sub(buffered));
    let mut candidate = Vec::new();
    reader.take(bytes).read_to_end(&mut candidate).await?;
    if candidate.len() as u64 != bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(candidate)
}
