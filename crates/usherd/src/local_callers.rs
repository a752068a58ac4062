//! Sockets that every process of this host may connect to. One user's requests cannot keep others
//! waiting: each user has a limited number of places, and descriptors that a process sends are
//! closed apart from the daemon's own work.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use usher_daemon::packet::Peer;
use usher_daemon::packet_async::{AsyncPacketSocket, PacketListener};
use usher_proto::refusal::Refusal;

/// The pause after a failed accept.
const SHORTAGE: Duration = Duration::from_millis(50);

/// The number of threads that close received descriptors, and of those that one user may keep.
const CLOSING_THREADS: usize = 512;
const CLOSING_THREADS_OF_USER: usize = 16;
/// The time that a process may take to read an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A listening socket open to every process.
pub struct LocalCallers {
    listener: PacketListener,
    under_way: Arc<UnderWay>,
    closing: Handle,
    overloaded: Vec<u8>,
}

impl LocalCallers {
    /// Each user may have `limit` connections; the next one gets the packet `overloaded` and is
    /// closed.
    ///
    /// # Errors
    /// When the reactor cannot take the descriptor.
    pub fn new(listener: OwnedFd, limit: usize, overloaded: Vec<u8>) -> io::Result<Self> {
        Ok(Self {
            listener: PacketListener::new(listener)?,
            under_way: Arc::new(UnderWay::new(limit)),
            closing: closing_threads()?,
            overloaded,
        })
    }

    /// Waits for a connection that has a permit.
    pub async fn accept(&self) -> LocalCaller {
        loop {
            let (socket, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors: connections under way will return theirs.
                    tracing::warn!(%error, "cannot take a caller's request");
                    tokio::time::sleep(SHORTAGE).await;
                    continue;
                }
            };
            let (permit, closers) = UnderWay::take(&self.under_way, peer.uid);
            let refused = permit.is_none();
            let caller = LocalCaller {
                held: Some(Held {
                    socket,
                    descriptors: Vec::new(),
                    permit,
                    closers,
                }),
                peer,
                sender: None,
                closing: self.closing.clone(),
            };
            if refused {
                caller.log_refusal(Refusal::Overloaded);
                caller.send(&self.overloaded, &[]).await;
                continue;
            }
            return caller;
        }
    }
}

/// A connected process.
pub struct LocalCaller {
    held: Option<Held>,
    /// Its credentials when it connected.
    pub peer: Peer,
    /// The process that sent the last packet, if the listener reports senders.
    pub sender: Option<i32>,
    closing: Handle,
}

struct Held {
    socket: AsyncPacketSocket,
    descriptors: Vec<OwnedFd>,
    permit: Option<Permit>,
    /// The user's closing threads.
    closers: Arc<Semaphore>,
}

impl LocalCaller {
    fn held(&self) -> &Held {
        self.held
            .as_ref()
            .unwrap_or_else(|| unreachable!("taken when dropped only"))
    }

    /// Logs its refusal.
    pub fn log_refusal(&self, refusal: Refusal) {
        let Peer { uid, pid } = self.peer;
        tracing::info!(
            uid,
            pid,
            reason = refusal.name(),
            "refused a process: {refusal}"
        );
    }

    /// The descriptors received with the packets so far.
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.held().descriptors
    }

    /// Receives a packet of at most `limit` bytes; empty: the process has closed. Its descriptors stay
    /// open until the connection ends.
    ///
    /// # Errors
    /// As recvmsg(2); `InvalidData` for a packet beyond its limits.
    pub async fn receive(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let (packet, within) = self.held().socket.receive_any(limit).await?;
        self.sender = packet.sender;
        if let Some(held) = &mut self.held {
            held.descriptors.extend(packet.descriptors);
        }
        if within {
            Ok(packet.bytes)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a packet over its limits",
            ))
        }
    }

    /// Sends a packet with descriptors. Ignores a process that does not wait for it, or does not read
    /// it soon.
    pub async fn send(&self, packet: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        let sent = self.held().socket.send_with(packet, descriptors);
        match tokio::time::timeout(ANSWER, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a caller did not wait for its answer"),
            Err(_) => tracing::debug!("a caller does not read its answer"),
        }
    }
}

impl Drop for LocalCaller {
    fn drop(&mut self) {
        // Closing a process's descriptors, received or still waiting, may take as long as the process
        // likes (SO_LINGER, its own file system). So it happens neither on the reactor's thread nor on
        // one that the daemon's own work needs, and the process keeps its permit until then.
        if let Some(held) = self.held.take() {
            let closing = self.closing.clone();
            tokio::spawn(async move {
                // The semaphore is never closed.
                let closer = held.closers.acquire_owned().await.ok();
                closing.spawn_blocking(move || {
                    drop((held.socket, held.descriptors));
                    drop((closer, held.permit));
                });
            });
        }
    }
}

/// Threads that close received descriptors, apart from the runtime's own.
fn closing_threads() -> io::Result<Handle> {
    static CLOSING: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = CLOSING.get() {
        return Ok(runtime.handle().clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(CLOSING_THREADS)
        .thread_name("closing")
        .build()?;
    Ok(CLOSING.get_or_init(|| runtime).handle().clone())
}

/// The number of each user's connections, and the users' closing threads.
struct UnderWay {
    limit: usize,
    users: Mutex<HashMap<u32, (usize, Arc<Semaphore>)>>,
}

/// A permit for one of a user's connections, given back when dropped.
struct Permit {
    all: Arc<UnderWay>,
    uid: u32,
}

impl UnderWay {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            users: Mutex::default(),
        }
    }

    /// A permit, if one is left, and the user's closing threads.
    fn take(all: &Arc<Self>, uid: u32) -> (Option<Permit>, Arc<Semaphore>) {
        let mut users = all.users.lock();
        let (count, closers) = users
            .entry(uid)
            .or_insert_with(|| (0, Arc::new(Semaphore::new(CLOSING_THREADS_OF_USER))));
        let closers = Arc::clone(closers);
        if *count >= all.limit {
            return (None, closers);
        }
        *count += 1;
        drop(users);
        let permit = Permit {
            all: Arc::clone(all),
            uid,
        };
        (Some(permit), closers)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut users = self.all.users.lock();
        if let Some((count, _)) = users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_at_the_limit_is_refused_and_another_user_is_not() {
        let under_way = Arc::new(UnderWay::new(3));
        let mut places: Vec<_> = (0..3)
            .filter_map(|_| UnderWay::take(&under_way, 1000).0)
            .collect();
        assert_eq!(places.len(), 3);
        assert!(UnderWay::take(&under_way, 1000).0.is_none());
        assert!(UnderWay::take(&under_way, 1001).0.is_some());
        places.pop();
        assert!(UnderWay::take(&under_way, 1000).0.is_some());
    }
}
