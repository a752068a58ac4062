//! Services to which this process has connected with tokens: the next connections need not ask the signer.
//! The kernel still decides each time whether there is a ticket.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use usher_base::{HostName, ServiceName};

use super::sockets::{establish_within, family_of, socket_of};
use crate::token::{draw_token, prefer_lasting_source};

/// How long a connection with a token may take before it is announced instead: a router on the way may drop
/// SYNs with options that it does not know.
const TOKEN: Duration = Duration::from_secs(3);
/// How long the address of a service is used without asking the signer again.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Limit of remembered services; the oldest makes room.
const MOST: usize = 64;

struct Known {
    host: HostName,
    service: ServiceName,
    server: SocketAddr,
    since: Instant,
}

static KNOWN: RwLock<Vec<Known>> = RwLock::new(Vec::new());

/// Connects to a remembered service.
///
/// # Errors
/// The address at which a token has failed; none if there was no token.
pub(super) fn connect(
    host: &HostName,
    service: &ServiceName,
) -> Result<TcpStream, Option<SocketAddr>> {
    let server = find(host, service).ok_or(None)?;
    establish_with_token(server).map_err(|error| {
        // `connect_by_user` asks the signer next, and reports the signer's answer or the server's, not this
        // failure.
        forget(host, service);
        match error {
            TokenError::Draw => None,
            TokenError::Connect => Some(server),
        }
    })
}

/// Remembers a service that has accepted a token.
pub(super) fn remember(host: HostName, service: ServiceName, server: SocketAddr) {
    // The table may be locked, also for ever in a forked child: the next call tries again.
    let Ok(mut known) = KNOWN.try_write() else {
        return;
    };
    known.retain(|known| known.host != host || known.service != service);
    if known.len() >= MOST {
        known.remove(0);
    }
    known.push(Known {
        host,
        service,
        server,
        since: Instant::now(),
    });
}

fn find(host: &HostName, service: &ServiceName) -> Option<SocketAddr> {
    let known = KNOWN.try_read().ok()?;
    let found = known
        .iter()
        .find(|known| known.host == *host && known.service == *service)?;
    (found.since.elapsed() < REMEMBERED).then_some(found.server)
}

fn forget(host: &HostName, service: &ServiceName) {
    if let Ok(mut known) = KNOWN.try_write() {
        known.retain(|known| known.host != *host || known.service != *service);
    }
}

/// A failed connection with a token.
pub(super) enum TokenError {
    /// No token was available; nothing was sent.
    Draw,
    /// The token was not taken, or there is no way to the address.
    Connect,
}

/// Connects with a token of the user's ticket for this address. Makes few system calls, because all
/// connections after a user's first come this way. The address is known, so the socket can be of its family.
pub(super) fn establish_with_token(server: SocketAddr) -> Result<TcpStream, TokenError> {
    let socket = socket_of(family_of(server)).map_err(|_| TokenError::Draw)?;
    if server.is_ipv6() {
        prefer_lasting_source(socket.as_fd()).map_err(|_| TokenError::Draw)?;
    }
    draw_token(socket.as_fd(), server).map_err(|_| TokenError::Draw)?;
    establish_within(&socket, server, TOKEN).map_err(|_| TokenError::Connect)?;
    Ok(socket.into())
}
