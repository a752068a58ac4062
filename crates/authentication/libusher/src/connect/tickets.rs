//! Services to which this process has connected with tokens: the next connections need not ask the signer.
//! The kernel still decides each time whether there is a ticket.

use std::net::{SocketAddr, TcpStream};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use usher_base::{HostName, ServiceName};

use super::{TokenError, establish_with_token};

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

/// Connects to a remembered service. There is no token for another one.
pub(super) fn connect(host: &HostName, service: &ServiceName) -> Result<TcpStream, TokenError> {
    let server = find(host, service).ok_or(TokenError::Draw)?;
    // On a failure, the caller gets the answer of the signer or the server.
    establish_with_token(server).inspect_err(|_| forget(host, service))
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
