//! Sockets that every process of this host may connect to. One user's requests cannot keep others
//! waiting: each user has a limited number of places, and descriptors that a process sends are
//! closed apart from the daemon's own work.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use usher_daemon::events;
use usher_daemon::packet::Peer;
use usher_daemon::packet_async::{AsyncPacketSocket, PacketListener, SHORTAGE};
use usher_daemon::quota::{Quota, Taken};
use usher_proto::refusal::Refusal;

/// The number of threads that close received descriptors, and how many of them one user may occupy.
const CLOSING_THREADS: usize = 512;
const CLOSING_THREADS_OF_USER: usize = 16;
/// The time that a process may take to read an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A listening socket open to every process.
pub struct LocalCallers {
    listener: PacketListener,
    quota: Quota<u32>,
    /// The closing threads of users who have connections.
    closers: Mutex<HashMap<u32, Weak<Semaphore>>>,
    closing: Handle,
    overloaded: Vec<u8>,
}

impl LocalCallers {
    /// Each user may have `limit` connections; the next one gets the packet `overloaded` and is
    /// closed.
    pub fn new(listener: OwnedFd, limit: usize, overloaded: Vec<u8>) -> io::Result<Self> {
        Ok(Self {
            listener: PacketListener::new(listener)?,
            quota: Quota::new(usize::MAX, limit),
            closers: Mutex::default(),
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
            let permit = self.quota.take(peer.uid).ok();
            let refused = permit.is_none();
            let caller = LocalCaller {
                held: Some(OpenCaller {
                    socket,
                    descriptors: Vec::new(),
                    permit,
                    closers: self.closers_of(peer.uid),
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

    fn closers_of(&self, uid: u32) -> Arc<Semaphore> {
        let mut all = self.closers.lock();
        if let Some(closers) = all.get(&uid).and_then(Weak::upgrade) {
            return closers;
        }
        all.retain(|_, closers| closers.strong_count() > 0);
        let closers = Arc::new(Semaphore::new(CLOSING_THREADS_OF_USER));
        all.insert(uid, Arc::downgrade(&closers));
        closers
    }
}

/// A connected process.
pub struct LocalCaller {
    held: Option<OpenCaller>,
    /// The process's credentials when it connected.
    pub peer: Peer,
    /// The process that sent the last packet, if the listener reports senders.
    pub sender: Option<i32>,
    closing: Handle,
}

struct OpenCaller {
    socket: AsyncPacketSocket,
    descriptors: Vec<OwnedFd>,
    permit: Option<Taken<u32>>,
    /// The user's closing threads.
    closers: Arc<Semaphore>,
}

impl LocalCaller {
    fn held(&self) -> &OpenCaller {
        self.held
            .as_ref()
            .unwrap_or_else(|| unreachable!("taken when dropped only"))
    }

    /// Logs that this process was refused.
    pub fn log_refusal(&self, refusal: Refusal) {
        let Peer { uid, pid } = self.peer;
        tracing::info!(
            name: events::PROCESS_REFUSED,
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

    /// Receives a packet of at most `limit` bytes. An empty one means that the process has closed the
    /// connection. Received descriptors stay open until the connection ends.
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

    /// Sends a packet with descriptors. Ignores a process that has gone, or reads nothing within [`ANSWER`].
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
