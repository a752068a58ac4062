//! Where this process has connected with tokens: the next connections there need no word with the
//! signer. Whether there is a ticket still is the kernel's word at each of them.

use std::net::{SocketAddr, TcpStream};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use usher_proto::name::{HostName, ServiceName};

use super::{establish_with_token, stream_socket};

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

/// Connects where tokens have passed before. None: the signer is to be asked.
pub(super) fn connect(host: &HostName, service: &ServiceName) -> Option<TcpStream> {
    let server = find(host, service)?;
    let socket = stream_socket().ok()?;
    match establish_with_token(&socket, server) {
        Ok(()) => Some(socket.into()),
        // The signer is asked; its answer, or the server's, is the one that is told.
        Err(_) => {
            forget(host, service);
            None
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
