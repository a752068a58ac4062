//! The daemons' side of control requests: [`crate::control`].

use std::fs::{File, TryLockError};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

use crate::control::{HEARD, MAX_CANDIDATE, MAX_REQUEST, Reply, Request, Status};
use crate::lock_file;
use crate::numbers::NumbersSocket;
use crate::packet::in_place;
use crate::packet_async::accept_stream;
use crate::role::{HasRole, RUNTIME_DIRECTORY, Role};

/// How long a request may take to arrive whole.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an earlier daemon of the same role may take to end. A child that it has just forked holds its
/// lock until the child executes a program.
const TAKEOVER: Duration = Duration::from_secs(3);

/// A daemon's answer to a request.
pub trait Answers<Q: Request>: Send + Sync {
    /// Carries the request out.
    ///
    /// # Errors
    /// The reason of a failure: nothing has changed then.
    fn answer(&self, request: Q) -> impl Future<Output = Result<Q::Answer, Failed>> + Send;
}

/// The reason of a failed request, for an administrator.
#[derive(Debug)]
pub struct Failed(pub(crate) String);

impl Failed {
    /// A failure for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// A role all of whose requests the daemon `D` answers. [`roles!`](crate::roles!) implements it.
pub trait Serves<D>: HasRole {
    /// Makes the daemon answer.
    ///
    /// # Errors
    /// When the connection fails.
    fn serve(daemon: &D, asked: ArrivedRequest<'_>) -> impl Future<Output = io::Result<()>> + Send;
}

/// A bound control socket of the role `R`; tokio takes it over when the reactor runs. As long as a daemon
/// holds this, a second daemon of its role cannot take its sockets away.
#[derive(Debug)]
pub struct ControlSocket<R> {
    listener: std::os::unix::net::UnixListener,
    numbers: Option<NumbersSocket>,
    lock: File,
    role: PhantomData<R>,
}

impl<R: HasRole> ControlSocket<R> {
    /// Binds the control socket, for root only, and makes its folder. `watcher`, if there is one, is the uid
    /// that may read the daemon's numbers, from a socket of its own; if that socket cannot be made, a warning
    /// says so. Call this before privileges are given up.
    ///
    /// # Errors
    /// When the folder or the socket cannot be made, or another daemon of this role runs.
    pub fn bind(watcher: Option<u32>) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = R::ROLE.control_socket();
        let folder = format!("{}/{}", RUNTIME_DIRECTORY, R::ROLE.name);
        std::fs::create_dir_all(&folder)?;
        let lock = claim(R::ROLE.name, &format!("{folder}/lock"))?;
        let listener = in_place(std::path::Path::new(&path), |path| {
            let listener = std::os::unix::net::UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        })?;
        listener.set_nonblocking(true)?;
        let numbers = NumbersSocket::bind(R::ROLE, watcher);
        Ok(Self {
            listener,
            numbers,
            lock,
            role: PhantomData,
        })
    }

    /// Serves root's requests, and the numbers.
    ///
    /// # Errors
    /// Returns only when the listener for requests fails.
    pub async fn serve<D>(self, daemon: Arc<D>) -> io::Result<()>
    where
        R: Serves<D>,
        D: Answers<Status> + 'static,
    {
        let _held_as_long_as_the_daemon_runs = self.lock;
        let requests = Self::serve_requests(self.listener, Arc::clone(&daemon));
        let Some(numbers) = self.numbers else {
            return requests.await;
        };
        tokio::select! {
            result = requests => result,
            never = numbers.serve(&*daemon) => match never {},
        }
    }

    async fn serve_requests<D>(
        listener: std::os::unix::net::UnixListener,
        daemon: Arc<D>,
    ) -> io::Result<()>
    where
        R: Serves<D>,
        D: Send + Sync + 'static,
    {
        let listener = UnixListener::from_std(listener)?;
        let one_candidate = Arc::default();
        loop {
            let (stream, uid) = accept_stream(&listener).await?;
            if uid != 0 {
                tracing::warn!("refused a control request of a user who is not root");
                continue;
            }
            let (daemon, one_candidate) = (Arc::clone(&daemon), Arc::clone(&one_candidate));
            tokio::spawn(async move {
                match exchange::<R, D>(stream, &daemon, &one_candidate).await {
                    // The caller has not waited for the answer.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        tracing::debug!(%error, "cannot answer a control request");
                    }
                    Err(error) => tracing::warn!(%error, "cannot answer a control request"),
                    Ok(()) => {}
                }
            });
        }
    }
}

/// Takes the role's lock. Waits a little for an earlier daemon to end.
fn claim(role: &str, path: &str) -> io::Result<File> {
    let lock = lock_file::open_lock_file(path)?;
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

/// A request that has arrived.
#[derive(Debug)]
pub struct ArrivedRequest<'a> {
    line: Line,
    reader: BufReader<Take<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    /// Held while a configuration is read and looked at, so that only one is in memory at a time.
    one_candidate: &'a Mutex<()>,
}

#[derive(Debug, Deserialize)]
struct Line {
    request: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl ArrivedRequest<'_> {
    /// Whether it is a request of this kind.
    #[must_use]
    pub fn is<Q: Request>(&self) -> bool {
        self.line.request == Q::NAME
    }

    /// Decodes this as a request of this kind, and sends the daemon's answer.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn answer<Q: Request>(mut self, daemon: &impl Answers<Q>) -> io::Result<()> {
        let fields = std::mem::take(&mut self.line.fields);
        let mut request: Q = match serde_json::from_value(Value::Object(fields)) {
            Ok(request) => request,
            Err(error) => return fail(self.writer, format!("not a request: {error}")).await,
        };
        let bytes = request.following();
        if bytes > MAX_CANDIDATE {
            let reason = format!("a configuration of more than {MAX_CANDIDATE} bytes");
            return fail(self.writer, reason).await;
        }
        self.writer.write_all(&[HEARD]).await?;
        let _alone = match bytes {
            0 => None,
            _ => Some(self.one_candidate.lock().await),
        };
        if bytes != 0 {
            let read = read_candidate(self.reader, bytes);
            request.attach(tokio::time::timeout(PATIENCE, read).await??);
        }
        let reply = match daemon.answer(request).await {
            Ok(answer) => Reply::Done(answer),
            Err(Failed(reason)) => Reply::Failed { reason },
        };
        reply_with(self.writer, &reply).await
    }

    /// Refuses a request that the role does not answer.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn refuse(self, role: &Role) -> io::Result<()> {
        let reason = format!(
            "the {} does not answer {:?}, only {}",
            role.name,
            self.line.request,
            role.answers.join(", ")
        );
        fail(self.writer, reason).await
    }
}

async fn exchange<R: Serves<D>, D>(
    stream: UnixStream,
    daemon: &D,
    one_candidate: &Mutex<()>,
) -> io::Result<()> {
    let (read, writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(MAX_REQUEST as u64));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await??;
    match serde_json::from_str(&line) {
        Ok(line) => {
            let asked = ArrivedRequest {
                line,
                reader,
                writer,
                one_candidate,
            };
            R::serve(daemon, asked).await
        }
        Err(error) => fail(writer, format!("not a request: {error}")).await,
    }
}

async fn fail(writer: OwnedWriteHalf, reason: String) -> io::Result<()> {
    reply_with(writer, &Reply::<()>::Failed { reason }).await
}

async fn reply_with<A: serde::Serialize>(
    mut writer: OwnedWriteHalf,
    reply: &Reply<A>,
) -> io::Result<()> {
    let mut text = serde_json::to_vec(reply)?;
    text.push(b'\n');
    writer.write_all(&text).await
}

/// Reads the configuration, of this many bytes, that follows a request.
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

/// Declares the roles of a system. Each has a type and a line of the table `ROLES`: the requests that it
/// answers on its control socket, and the fields of its [`Role`](crate::role::Role).
#[macro_export]
macro_rules! roles {
    ($($(#[$doc:meta])* $type:ident answers [$($request:ident),*] {
        $($field:ident: $value:expr,)*
        ..$defaults:ident
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub struct $type;

            impl $crate::role::HasRole for $type {
                const ROLE: &'static $crate::role::Role = &$crate::role::Role {
                    $($field: $value,)*
                    answers: &[$(<$request as $crate::control::Request>::NAME),*],
                    ..$defaults
                };
            }

            $(impl $crate::control::AnsweredBy<$type> for $request {})*

            impl<D> $crate::control_server::Serves<D> for $type
            where
                D: Send + Sync + 'static $(+ $crate::control_server::Answers<$request>)*,
            {
                async fn serve(
                    _daemon: &D,
                    asked: $crate::control_server::ArrivedRequest<'_>,
                ) -> std::io::Result<()> {
                    $(if asked.is::<$request>() {
                        return asked.answer::<$request>(_daemon).await;
                    })*
                    asked.refuse(<Self as $crate::role::HasRole>::ROLE).await
                }
            }
        )*

        /// All roles of the table, in its order.
        pub const ROLES: &[&$crate::role::Role] =
            &[$(<$type as $crate::role::HasRole>::ROLE),*];
    };
}
