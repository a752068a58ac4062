//! usher-identify: passes the connections of a shared service on to a server of the service's account, which
//! listens at a local socket. It tells that server the user of each connection.
//!
//! The keeper starts it as the service's account, with the service's listener (`identify` of a `service`
//! block). It asks the keeper about each connection, as any program of the account may.
//!
//! Room: the service's listener, its connections, the socket of the server. It holds no privilege and no key,
//! opens no file and makes no socket of a network. With `http` it parses what clients and server send; with
//! `xclient` the server's first replies; with `proxy-protocol` nothing.
#![forbid(unsafe_code)]

mod http;
mod proxy_protocol;
mod smtp;

use std::fmt::Display;
use std::io;
use std::mem;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use hyper::header::HeaderName;
use listenfd::ListenFd;
use parking_lot::Mutex;
use smtp::Said;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use usher::{ConnectionInfo, ConnectionTuple, ServiceError, UserName, connection_info_by};
use usher_daemon::messages;
use usher_daemon::quota::{Exhausted, Quota, Taken};
use usher_relay::{Carriers, PIPES, abort, relay};
use usher_system::sandbox::{Ability, landlock, seccomp};
use usher_system::{SystemError, privileges};

/// Limit of connections; further ones are refused.
const CONNECTIONS: usize = 8192;
/// Limit for one user.
const CONNECTIONS_OF_USER: usize = 1024;
/// The same limits with HTTP/2, where each connection has many requests at a time.
const CONNECTIONS_OF_HTTP2: usize = 1024;
const CONNECTIONS_OF_USER_OF_HTTP2: usize = 128;
/// Limit of connections that are accepted and whose user is not yet known; more wait in the listener's queue.
const OPENING: usize = 512;
/// Limit of questions to the keeper at a time; more wait.
const QUESTIONS: usize = 64;
/// How long a connection waits while keeper or server is being restarted, and the pause between attempts.
const AWAY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// At most one warning is written in this time, because clients can cause any number.
const QUIET: Duration = Duration::from_secs(1);
/// The pause after a failure to accept: the system lacks descriptors or memory.
const SHORTAGE: Duration = Duration::from_millis(50);

/// Passes connections of a service on to a local server, with the user of each. The keeper starts it.
#[derive(Debug, Parser)]
#[command(name = "usher-identify", version)]
struct Arguments {
    /// The form in which the server gets the user's name
    #[arg(value_enum)]
    way: Way,
    /// The server's socket
    #[arg(value_name = "PATH")]
    socket: PathBuf,
    /// The header with the user's name, of http and http2
    #[arg(long, value_name = "NAME")]
    header: Option<HeaderName>,
}

/// The form in which a server gets the user's name.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Way {
    /// By a header of the PROXY protocol, version 2
    ProxyProtocol,
    /// By a header of each request of HTTP/1.1
    Http,
    /// By a header of each request of HTTP/2, without TLS
    Http2,
    /// By the command XCLIENT of SMTP
    Xclient,
}

/// The reason why usher-identify does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{0}: it is started by the keeper, for a `service` with `identify`")]
    NoListener(io::Error),
    #[error("http and http2 need --header")]
    NoHeader,
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
    #[error("cannot confine itself: {0}")]
    System(#[from] SystemError),
}

/// Why a connection was not passed on.
#[derive(Debug, thiserror::Error)]
enum Unserved {
    #[error("cannot find out its user: {0}")]
    Unknown(#[from] ServiceError),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error(
        "cannot reach the service's server at {}: {error}; does it run, and may this account use its socket?",
        .socket.display()
    )]
    NoServer { socket: PathBuf, error: io::Error },
    #[error(transparent)]
    Xclient(#[from] smtp::XclientError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct Server {
    socket: PathBuf,
    way: Told,
    connections: Quota<u32>,
    carriers: Carriers,
    warnings: Warnings,
}

/// The form in which the server gets the user's name, with the values that this form needs.
enum Told {
    ProxyProtocol,
    Http(HeaderName),
    Http2(HeaderName),
    Xclient,
}

/// Warnings about connections that are not served.
#[derive(Default)]
struct Warnings(Mutex<Recent>);

#[derive(Default)]
struct Recent {
    /// When the last one was written.
    last: Option<Instant>,
    /// The number of warnings that were not written since.
    unsaid: u64,
}

impl Warnings {
    /// Writes a warning, or counts it for the next one.
    fn say(&self, client: &dyn Display, error: &Unserved) {
        let mut recent = self.0.lock();
        if recent.last.is_some_and(|last| last.elapsed() < QUIET) {
            recent.unsaid += 1;
            return;
        }
        let unsaid = mem::take(&mut recent.unsaid);
        recent.last = Some(Instant::now());
        drop(recent);
        tracing::warn!(%client, %error, unsaid, "a connection is not served");
    }
}

/// A connection whose user is known.
struct Known {
    ends: ConnectionTuple,
    user: UserName,
    permit: Taken<u32>,
}

impl Known {
    /// The user and the header that names the user in HTTP requests.
    fn by(&self, header: &HeaderName) -> io::Result<http::User> {
        http::User::new(header.clone(), &self.user, self.ends.client)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    messages::to_standard_error();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            messages::end(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(
    Arguments {
        way,
        socket,
        header,
    }: Arguments,
) -> Result<(), StartError> {
    let listener = listener().map_err(StartError::NoListener)?;
    privileges::no_core_dumps()?;
    privileges::raise_descriptor_limit()?;
    // Neither sandbox blocks the local sockets of the keeper and the server.
    landlock(&[], &[])?;
    seccomp(&[Ability::Splice])?;
    let way = match (way, header) {
        (Way::ProxyProtocol, _) => Told::ProxyProtocol,
        (Way::Xclient, _) => Told::Xclient,
        (Way::Http, header) => Told::Http(header.ok_or(StartError::NoHeader)?),
        (Way::Http2, header) => Told::Http2(header.ok_or(StartError::NoHeader)?),
    };
    let connections = if let Told::Http2(_) = way {
        Quota::new(CONNECTIONS_OF_HTTP2, CONNECTIONS_OF_USER_OF_HTTP2)
    } else {
        Quota::new(CONNECTIONS, CONNECTIONS_OF_USER)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(QUESTIONS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = Arc::new(Server {
            socket,
            way,
            connections,
            carriers: Carriers::new(PIPES),
            warnings: Warnings::default(),
        });
        let opening = Arc::new(Semaphore::new(OPENING));
        loop {
            // The semaphore is never closed.
            let place = Arc::clone(&opening).acquire_owned().await.ok();
            match listener.accept().await {
                Ok((connection, _)) => {
                    tokio::spawn(serve(connection, place, Arc::clone(&server)));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    sleep(SHORTAGE).await;
                }
            }
        }
    })
}

/// The listener of the service (sd_listen_fds(3)).
fn listener() -> io::Result<TcpListener> {
    let passed_on = ListenFd::from_env().take_tcp_listener(0)?;
    let none = || io::Error::new(io::ErrorKind::NotFound, "no listener was passed on");
    let listener = passed_on.ok_or_else(none)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(connection: TcpStream, place: Option<OwnedSemaphorePermit>, server: Arc<Server>) {
    let client = connection.peer_addr();
    if let Err(error) = pass_on(connection, place, Arc::clone(&server)).await {
        let client = client.map_or_else(|_| "a client".to_owned(), |client| client.to_string());
        server.warnings.say(&client, &error);
    }
}

/// Passes one connection on. A connection that is not served ends by RST, so that the client does not take
/// its end for the server's answer. A served connection ends as client and server end it.
async fn pass_on(
    mut connection: TcpStream,
    place: Option<OwnedSemaphorePermit>,
    server: Arc<Server>,
) -> Result<(), Unserved> {
    let known = know(&connection, &server).await;
    drop(place);
    let known = known.inspect_err(|_| abort(&connection))?;
    let served = match &server.way {
        Told::Http(header) => {
            let user = known.by(header)?;
            http::serve(connection, user, Arc::clone(&server), known.permit).await
        }
        Told::Http2(header) => {
            let user = known.by(header)?;
            let remote = connect(&server.socket).await;
            let remote = remote.inspect_err(|_| abort(&connection))?;
            http::serve_http2(connection, remote, user, Arc::clone(&server), known.permit).await
        }
        Told::ProxyProtocol => {
            let opened = open(&known, &server).await;
            let remote = opened.inspect_err(|_| abort(&connection))?;
            relay(connection, remote, &server.carriers).await
        }
        Told::Xclient => {
            let introduced = introduce(&known, &server).await;
            let (remote, reply) = introduced.inspect_err(|_| abort(&connection))?;
            connection.write_all(&reply).await?;
            match remote {
                Some(remote) => relay(connection, remote, &server.carriers).await,
                None => Ok(()),
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
    Ok(())
}

/// Finds out who the user of a connection is.
async fn know(connection: &TcpStream, server: &Server) -> Result<Known, Unserved> {
    connection.set_nodelay(true)?;
    let ends = ConnectionTuple::new(connection.peer_addr()?, connection.local_addr()?)
        .map_err(io::Error::other)?;
    let info = ask(ends).await?;
    Ok(Known {
        ends,
        permit: server.connections.take(info.uid)?,
        user: info.user,
    })
}

/// Connects to the server and tells it the user, before the client's first byte.
async fn open(known: &Known, server: &Server) -> Result<UnixStream, Unserved> {
    let header = proxy_protocol::header(&known.ends, known.user.as_ref())?;
    let mut remote = connect(&server.socket).await?;
    remote.write_all(&header).await?;
    Ok(remote)
}

/// Like [`open`], for SMTP. Returns the connection with the server's greeting for the client; or none, with
/// the server's refusal.
async fn introduce(
    known: &Known,
    server: &Server,
) -> Result<(Option<UnixStream>, Vec<u8>), Unserved> {
    let mut remote = connect(&server.socket).await?;
    let said = smtp::introduce(&mut remote, known.user.as_ref(), known.ends.client).await?;
    Ok(match said {
        Said::Greeting(greeting) => (Some(remote), greeting),
        Said::Refusal(refusal) => (None, refusal),
    })
}

/// Asks the keeper who the user is. Tries again while the keeper is being restarted.
async fn ask(connection: ConnectionTuple) -> Result<ConnectionInfo, Unserved> {
    let until = Instant::now() + AWAY;
    loop {
        let asked = tokio::task::spawn_blocking(move || connection_info_by(connection));
        match asked.await.map_err(io::Error::other)? {
            Err(ServiceError::NoKeeper(_)) if Instant::now() < until => sleep(PAUSE).await,
            answer => return Ok(answer?),
        }
    }
}

/// Connects to the server. Tries again while the server is being restarted or its queue is full.
async fn connect(socket: &Path) -> Result<UnixStream, Unserved> {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    let until = Instant::now() + AWAY;
    loop {
        match UnixStream::connect(socket).await {
            Err(error)
                if matches!(error.kind(), ConnectionRefused | NotFound | WouldBlock)
                    && Instant::now() < until =>
            {
                sleep(PAUSE).await;
            }
            Err(error) => {
                let socket = socket.to_owned();
                return Err(Unserved::NoServer { socket, error });
            }
            Ok(remote) => return Ok(remote),
        }
    }
}
