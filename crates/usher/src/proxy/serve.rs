//! One local connection: its user, the connection to the service as that user, and the bytes between them.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use usher::{connect_on_behalf, owner_at_the_proxy};
use usher_daemon::quota::{Exhausted, Quota, Taken};
use usher_policy::{Protocol, ProxyListener};
use usher_relay::{Carriers, PIPES, abort, relay};

use super::imap::{Capabilities, LoginFilter, MAX_GREETING, MAX_PIECE, Progress, is_preauth};

/// Limit of connections; more are refused.
const CONNECTIONS: usize = 4096;
/// Limit of one user's connections.
const CONNECTIONS_OF_USER: usize = 1024;
/// Limit of connections that are being opened; more wait. Lower than the signer's limit for one account.
pub const OPENING: usize = 448;
/// Limit of one user's connections that are being opened: all may wait for a host that does not answer.
const OPENING_OF_USER: usize = 112;
/// How long a connection waits for a permit to be opened, and how often it tries.
const QUEUEING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Patience = Patience {
    greeting: Duration::from_secs(60),
    login: Duration::from_secs(60),
};
const ENDED: &str = "the server has ended this connection";
/// Keepalive towards the server: the idle time before the first probe, the time between probes, and their
/// number. A client's own SO_KEEPALIVE ends at the proxy.
const IDLE: Duration = Duration::from_secs(120);
const PROBE: Duration = Duration::from_secs(15);
const PROBES: u32 = 8;

/// State that all connections share.
pub struct Server {
    connections: Quota<u32>,
    opening: Quota<u32>,
    carriers: Carriers,
}

impl Server {
    /// A server without connections.
    pub fn new() -> Self {
        Self {
            connections: Quota::new(CONNECTIONS, CONNECTIONS_OF_USER),
            opening: Quota::new(OPENING, OPENING_OF_USER),
            carriers: Carriers::new(PIPES),
        }
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.connections.taken()
    }
}

/// Accepts connections at one address, for the service that the policy has there at that time.
pub async fn listen(
    listener: Arc<TcpListener>,
    served: watch::Receiver<ProxyListener>,
    server: Arc<Server>,
) {
    loop {
        let local = match listener.accept().await {
            Ok((local, _)) => local,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (served, server) = (served.borrow().clone(), Arc::clone(&server));
        tokio::spawn(async move {
            if let Err(error) = serve(local, &served, &server).await {
                tracing::info!(host = %served.host, service = %served.service, %error, "connection ended");
            }
        });
    }
}

/// The user at the other end of a local connection.
struct User {
    uid: u32,
    name: String,
}

async fn serve(local: TcpStream, served: &ProxyListener, server: &Server) -> io::Result<()> {
    local.set_nodelay(true)?;
    let user = match user_of(&local, served).await {
        Ok(user) => user,
        Err(error) => {
            abort(&local);
            return Err(error);
        }
    };
    let (_permit, remote) = match open_service(&local, &user, served, server).await {
        Ok(opened) => opened,
        Err(Unopened::ClientLeft) => return Ok(()),
        Err(Unopened::Refused(reason)) => {
            tracing::info!(user = %user.name, host = %served.host, service = %served.service,
                %reason, "refused");
            return refuse(local, served.protocol, &reason).await;
        }
    };
    tracing::info!(user = %user.name, host = %served.host, service = %served.service, "connected");
    match served.protocol {
        Protocol::Raw => relay(local, remote, &server.carriers).await,
        Protocol::Imap => imap(local, remote, &user.name, &server.carriers, &PATIENCE).await,
    }
}

/// The user whose process made the other end. Only for messages, quotas and LOGIN: the signer asks the
/// kernel the same, and decides which user the server sees. A program that has closed its end already is
/// known to the signer only.
async fn user_of(local: &TcpStream, served: &ProxyListener) -> io::Result<User> {
    let (ours, theirs) = (local.local_addr()?, local.peer_addr()?);
    let (host, service) = (served.host.clone(), served.service.clone());
    let handle = local.as_fd().try_clone_to_owned()?;
    let found = tokio::task::spawn_blocking(move || {
        let owner = usher_system::connections::owner(theirs, ours).map_err(io::Error::other)?;
        let uid = match owner {
            Some(owner) => owner.uid,
            None => {
                owner_at_the_proxy(handle.as_fd(), &host, &service).map_err(io::Error::other)?
            }
        };
        nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid))?
            .map(|user| User {
                uid,
                name: user.name,
            })
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    });
    found.await.map_err(io::Error::other)?
}

/// The reason for a missing connection to the service.
enum Unopened {
    /// The client has left.
    ClientLeft,
    Refused(String),
}

impl<E: std::error::Error> From<E> for Unopened {
    fn from(error: E) -> Self {
        Self::Refused(error.to_string())
    }
}

/// Connects to the service as the user. The permit counts the connection.
async fn open_service(
    local: &TcpStream,
    user: &User,
    served: &ProxyListener,
    server: &Server,
) -> Result<(Taken<u32>, TcpStream), Unopened> {
    let permit = server.connections.take(user.uid)?;
    let opening = opening(server, user.uid).await?;
    let handle = local.as_fd().try_clone_to_owned()?;
    let (host, service) = (served.host.clone(), served.service.clone());
    let connecting = tokio::task::spawn_blocking(move || {
        // Held as long as the thread is in use.
        let _opening = opening;
        connect_on_behalf(handle.as_fd(), &host, &service)
    });
    let remote = tokio::select! {
        connected = connecting => connected??,
        _aborted = local.ready(Interest::ERROR) => return Err(Unopened::ClientLeft),
    };
    remote.set_nonblocking(true)?;
    remote.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(&remote, IDLE)?;
    sockopt::set_tcp_keepintvl(&remote, PROBE)?;
    sockopt::set_tcp_keepcnt(&remote, PROBES)?;
    sockopt::set_socket_keepalive(&remote, true)?;
    Ok((permit, TcpStream::from_std(remote)?))
}

/// Waits for a permit to open a connection.
async fn opening(server: &Server, uid: u32) -> Result<Taken<u32>, Exhausted> {
    let until = Instant::now() + QUEUEING;
    loop {
        match server.opening.take(uid) {
            Err(_) if Instant::now() < until => tokio::time::sleep(LOOK).await,
            outcome => return outcome,
        }
    }
}

/// Tells the client the reason, if its protocol can. Else aborts the connection: an orderly end would look
/// like an empty answer of the service.
async fn refuse(local: TcpStream, protocol: Protocol, reason: &str) -> io::Result<()> {
    match protocol {
        Protocol::Imap => bye(local, reason).await,
        Protocol::Raw => {
            abort(&local);
            Ok(())
        }
    }
}

async fn bye(mut local: TcpStream, reason: &str) -> io::Result<()> {
    let text = format!("* BYE Usher: {reason}\r\n");
    local.write_all(text.as_bytes()).await?;
    local.shutdown().await
}

async fn imap(
    mut local: TcpStream,
    remote: TcpStream,
    user: &str,
    carriers: &Carriers,
    patience: &Patience,
) -> io::Result<()> {
    let mut remote = BufReader::new(remote);
    match begin_relay(&mut local, &mut remote, user, patience).await {
        Ok(Begun::Served) => relay(local, remote.into_inner(), carriers).await,
        Ok(Begun::Left) => Ok(()),
        Ok(Begun::Refused(reason)) => {
            // The user has not logged out.
            abort(remote.get_ref());
            bye(local, &reason).await
        }
        Err(error) => {
            abort(&local);
            abort(remote.get_ref());
            Err(error)
        }
    }
}

/// Time limits before the relay begins.
struct Patience {
    /// The server's greeting.
    greeting: Duration,
    /// The client's login.
    login: Duration,
}

/// The outcome of the beginning of a connection.
enum Begun {
    /// The client is logged in and has its answers.
    Served,
    /// The client has left before that.
    Left,
    Refused(String),
}

/// Stands between client and server until the client has logged in, or need not.
async fn begin_relay(
    local: &mut TcpStream,
    remote: &mut BufReader<TcpStream>,
    user: &str,
    patience: &Patience,
) -> io::Result<Begun> {
    let mut greeting = Vec::new();
    let mut beginning = (&mut *remote).take(MAX_GREETING as u64);
    let greeted = tokio::select! {
        greeted = tokio::time::timeout(patience.greeting, beginning.read_until(b'\n', &mut greeting)) => greeted,
        aborted = local.ready(Interest::ERROR) => {
            aborted?;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    };
    match greeted {
        Ok(Ok(1..)) => {}
        Ok(Ok(0) | Err(_)) => return Ok(Begun::Refused(ENDED.into())),
        Err(_) => return Ok(Begun::Refused("the server sends no greeting".into())),
    }
    let mut others = Vec::new();
    if !is_preauth(&greeting) {
        // A server that wants a login itself, or refuses: the client must see that.
        local.write_all(&greeting).await?;
    } else {
        let capabilities = match Capabilities::in_greeting(&greeting) {
            Some(capabilities) => capabilities,
            None => {
                let asking = capabilities_of(remote, &mut others);
                match tokio::time::timeout(patience.greeting, asking).await {
                    Ok(Ok(capabilities)) => capabilities,
                    Ok(Err(_)) => return Ok(Begun::Refused(ENDED.into())),
                    Err(_) => {
                        let reason = "the server does not answer CAPABILITY";
                        return Ok(Begun::Refused(reason.into()));
                    }
                }
            }
        };
        let filter = LoginFilter::new(user, capabilities);
        local.write_all(&filter.greeting()).await?;
        let logged_in = tokio::select! {
            logged_in = tokio::time::timeout(patience.login, log_in(local, filter)) => logged_in,
            () = ended(remote) => return Ok(Begun::Refused(ENDED.into())),
        };
        match logged_in {
            Ok(Ok(Some(first))) => remote.write_all(&first).await?,
            Ok(Ok(None)) => return Ok(Begun::Left),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let limit = patience.login.as_secs();
                let reason = format!("the login took more than {limit} seconds");
                return Ok(Begun::Refused(reason));
            }
        }
    }
    others.extend_from_slice(remote.buffer());
    local.write_all(&others).await?;
    Ok(Begun::Served)
}

/// Asks a server for the capabilities that its greeting lacks. Its other responses go into `others`.
///
/// # Errors
/// When the connection breaks or ends, or the server says more than [`MAX_GREETING`] before its answer.
async fn capabilities_of(
    remote: &mut BufReader<TcpStream>,
    others: &mut Vec<u8>,
) -> io::Result<Capabilities> {
    remote.write_all(b"usher CAPABILITY\r\n").await?;
    let mut answer = remote.take(MAX_GREETING as u64);
    let mut found = Capabilities::default();
    loop {
        let mut line = Vec::new();
        answer.read_until(b'\n', &mut line).await?;
        if !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.starts_with(b"usher ") {
            return Ok(found);
        }
        match Capabilities::in_response(&line) {
            Some(capabilities) => found = capabilities,
            None => others.extend_from_slice(&line),
        }
    }
}

/// Returns when the server has ended the connection, as for a disabled user: a client that has not logged
/// in yet must learn that too. Other bytes of the server stay buffered.
async fn ended(remote: &mut BufReader<TcpStream>) {
    if let Ok([_, ..]) = remote.fill_buf().await {
        std::future::pending().await
    }
}

/// Speaks with the client until it has logged in. Returns the bytes that it already sent for the server.
async fn log_in(local: &mut TcpStream, mut filter: LoginFilter) -> io::Result<Option<Vec<u8>>> {
    let mut input = zeroize::Zeroizing::new(vec![0; MAX_PIECE]);
    loop {
        let length = local.read(&mut input).await?;
        if length == 0 {
            return Ok(None);
        }
        let mut output = Vec::new();
        let progress = filter.push(&input[..length], &mut output);
        local.write_all(&output).await?;
        match progress {
            Progress::Continue => {}
            Progress::LetThrough(first) => return Ok(Some(first)),
            Progress::End => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
