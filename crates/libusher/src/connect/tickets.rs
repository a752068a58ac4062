//! Where this process has connected with tokens: the next connections there need no word with the
//! signer. Whether there is a ticket still is the kernel's word at each of them.

use std::net::{SocketAddr, TcpStream};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use usher_proto::name::{HostName, ServiceName};

use super::{TokenError, establish_with_token};

/// How long the signer is not asked again where a service is.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Services that are remembered; the oldest makes room.
const MOST: usize = 64;

struct Known {
    host: HostName,
    service: ServiceName,
    server: SocketAddr,
    since: Instant,
}

static KNOWN: RwLock<Vec<Known>> = RwLock::new(Vec::new());

/// What came of connecting where tokens have passed before.
pub(super) enum Attempt {
    /// Connected.
    Done(TcpStream),
    /// Nothing is remembered, or there is no token to be had: the signer is to be asked.
    None,
    /// A token was sent and not taken: the signer is to be asked and told so.
    Failed,
}

/// Connects where tokens have passed before.
pub(super) fn connect(host: &HostName, service: &ServiceName) -> Attempt {
    let Some(server) = find(host, service) else {
        return Attempt::None;
    };
    // The signer's answer on a failure, or the server's, is the one that is told.
    match establish_with_token(server) {
        Ok(connected) => Attempt::Done(connected),
        Err(error) => {
            forget(host, service);
            match error {
                TokenError::Draw => Attempt::None,
                TokenError::Connect => Attempt::Failed,
            }
        }
    }
}

/// Tokens have passed on the way there.
pub(super) fn remember(host: HostName, service: ServiceName, server: SocketAddr) {
    // Not at hand in a child that was forked meanwhile, nor while others write: then next time.
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
