//! One local connection: whose it is, the connection to the service as that user, and the bytes
//! between them.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use usher::{ConnectError, connect_on_behalf};
use usher_policy::{Protocol, ProxyListener};

use super::imap::{LoginFilter, MAX_GREETING, Progress, is_preauth};

/// Connections at one time; the next ones wait to be accepted.
pub const CONNECTIONS: usize = 1024;
/// How long a client may take to log in.
const LOGIN: Duration = Duration::from_secs(60);

/// Accepts at one address.
pub async fn listen(listener: TcpListener, served: ProxyListener, limit: Arc<Semaphore>) {
    loop {
        let Ok(place) = Arc::clone(&limit).acquire_owned().await else {
            return;
        };
        let local = match listener.accept().await {
            Ok((local, _)) => local,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let served = served.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(local, &served).await {
                tracing::info!(host = %served.host, service = %served.service, %error, "connection ended");
            }
            drop(place);
        });
    }
}

async fn serve(local: TcpStream, served: &ProxyListener) -> io::Result<()> {
    local.set_nodelay(true)?;
    let user = user_of(&local).await?;
    let handle = local.as_fd().try_clone_to_owned()?;
    let (host, service) = (served.host.clone(), served.service.clone());
    let remote =
        tokio::task::spawn_blocking(move || connect_on_behalf(handle.as_fd(), &host, &service))
            .await
            .map_err(io::Error::other)?;
    let remote = match remote {
        Ok(remote) => remote,
        Err(error) => return refuse(local, served.protocol, &user, &error).await,
    };
    remote.set_nonblocking(true)?;
    remote.set_nodelay(true)?;
    let remote = TcpStream::from_std(remote)?;
    tracing::info!(%user, host = %served.host, service = %served.service, "connected");
    match served.protocol {
        Protocol::Raw => relay(local, remote).await,
        Protocol::Imap => imap(local, remote, &user).await,
    }
}

/// The name of the user whose process holds the other end. For messages and for LOGIN only: whom
/// the server sees, the signer decides by the same question.
async fn user_of(local: &TcpStream) -> io::Result<String> {
    let (ours, theirs) = (local.local_addr()?, local.peer_addr()?);
    let found = tokio::task::spawn_blocking(move || {
        let owner = usher_kernel::connections::owner(theirs, ours).map_err(io::Error::other)?;
        let owner = owner.ok_or(io::ErrorKind::NotConnected)?;
        nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(owner.uid))?
            .map(|user| user.name)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    });
    found.await.map_err(io::Error::other)?
}

/// Tells the client why there is nothing, where its protocol has words for it.
async fn refuse(
    mut local: TcpStream,
    protocol: Protocol,
    user: &str,
    error: &ConnectError,
) -> io::Result<()> {
    tracing::info!(%user, %error, "refused");
    if protocol == Protocol::Imap {
        local
            .write_all(format!("* BYE Usher: {error}\r\n").as_bytes())
            .await?;
        local.shutdown().await?;
    }
    Ok(())
}

async fn relay(mut local: TcpStream, mut remote: TcpStream) -> io::Result<()> {
    tokio::io::copy_bidirectional(&mut local, &mut remote)
        .await
        .map(|_| ())
}

async fn imap(mut local: TcpStream, remote: TcpStream, user: &str) -> io::Result<()> {
    let mut remote = BufReader::new(remote);
    let mut greeting = Vec::new();
    (&mut remote)
        .take(MAX_GREETING as u64)
        .read_until(b'\n', &mut greeting)
        .await?;
    if !is_preauth(&greeting) {
        // A server that wants to log in itself, or says why it does not serve: not ours to hide.
        local.write_all(&greeting).await?;
    } else {
        local.write_all(&LoginFilter::greeting()).await?;
        let logged_in = tokio::select! {
            logged_in = tokio::time::timeout(LOGIN, log_in(&mut local, user)) => Some(logged_in??),
            () = ended(&mut remote) => None,
        };
        match logged_in {
            Some(Some(first)) => remote.write_all(&first).await?,
            Some(None) => return Ok(()),
            None => {
                local
                    .write_all(b"* BYE the server has ended this connection\r\n")
                    .await?;
                return local.shutdown().await;
            }
        }
    }
    let waiting = remote.buffer().to_vec();
    local.write_all(&waiting).await?;
    relay(local, remote.into_inner()).await
}

/// Returns when the server has ended the connection, as it does when the user is disabled: a client
/// that has not logged in yet must learn it, too. What the server says meanwhile stays buffered.
async fn ended(remote: &mut BufReader<TcpStream>) {
    if let Ok([_, ..]) = remote.fill_buf().await {
        std::future::pending().await
    }
}

/// Speaks with the client until it is in; gives what it has already sent to the server.
async fn log_in(local: &mut TcpStream, user: &str) -> io::Result<Option<Vec<u8>>> {
    let mut filter = LoginFilter::new(user);
    let mut input = zeroize::Zeroizing::new(vec![0; 4096]);
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
