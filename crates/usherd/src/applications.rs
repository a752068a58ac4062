//! Sockets that every process of this host may connect to. Nobody's requests keep the others
//! waiting: each user has so many places, and what a process has sent along is closed apart from
//! the daemon's own work. Nobody's refusals fill the log either.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use usher_local::packet::Peer;
use usher_local::packet_async::{AsyncPacketSocket, PacketListener};
use usher_proto::refusal::Refusal;

use crate::log_share::LogShares;

/// Pause when no connection can be taken.
const SHORTAGE: Duration = Duration::from_millis(50);

/// A listening socket for everybody.
pub struct Applications {
    listener: PacketListener,
    under_way: Arc<UnderWay>,
    log: Arc<LogShares>,
    overloaded: Vec<u8>,
}

impl Applications {
    /// Each user may have `limit` connections; the next one is answered with the packet
    /// `overloaded` and closed.
    ///
    /// # Errors
    /// When the reactor cannot take the descriptor.
    pub fn new(listener: OwnedFd, limit: usize, overloaded: Vec<u8>) -> io::Result<Self> {
        Ok(Self {
            listener: PacketListener::new(listener)?,
            under_way: Arc::new(UnderWay::new(limit)),
            log: Arc::default(),
            overloaded,
        })
    }

    /// Waits for a connection that has a place.
    pub async fn accept(&self) -> Application {
        loop {
            let (socket, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors: those under way give theirs back.
                    tracing::warn!(%error, "cannot take an application's request");
                    tokio::time::sleep(SHORTAGE).await;
                    continue;
                }
            };
            let place = UnderWay::take(&self.under_way, peer.uid);
            let refused = place.is_none();
            let application = Application {
                held: Some(Held {
                    socket,
                    descriptors: Vec::new(),
                    place,
                }),
                peer,
                sender: None,
                log: Arc::clone(&self.log),
            };
            if refused {
                application.log_refusal(Refusal::Overloaded);
                application.send(&self.overloaded, &[]).await;
                continue;
            }
            return application;
        }
    }
}

/// A connected process.
pub struct Application {
    held: Option<Held>,
    /// Who it was when it connected.
    pub peer: Peer,
    /// Which process sent the last packet, where the listener tells senders.
    pub sender: Option<i32>,
    log: Arc<LogShares>,
}

struct Held {
    socket: AsyncPacketSocket,
    descriptors: Vec<OwnedFd>,
    place: Option<Place>,
}

impl Application {
    fn held(&self) -> &Held {
        self.held
            .as_ref()
            .unwrap_or_else(|| unreachable!("taken when dropped only"))
    }

    /// Whether a line about it is to be written: as long as its user's share of the log lasts.
    pub fn has_log_share(&self) -> bool {
        self.log.admit(self.peer.uid)
    }

    /// Says in the log that it is refused.
    pub fn log_refusal(&self, refusal: Refusal) {
        if self.has_log_share() {
            let (uid, pid) = (self.peer.uid, self.peer.pid);
            tracing::info!(
                uid,
                pid,
                reason = refusal.name(),
                "refused a process: {refusal}"
            );
        }
    }

    /// The descriptors that came along with the packets so far.
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.held().descriptors
    }

    /// Receives a packet of at most `limit` bytes; empty: the process has closed. Its descriptors
    /// are kept until the connection ends.
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

    /// Sends a packet with descriptors. A process that does not wait for it is no matter of ours.
    pub async fn send(&self, packet: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        if let Err(error) = self.held().socket.send_with(packet, descriptors).await {
            tracing::debug!(%error, "an application did not wait for its answer");
        }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        // Closing what an application has sent, taken or still waiting, takes as long as it likes
        // (SO_LINGER, a file system of its own): not on the reactor's thread, and its place is its
        // own until then.
        if let Some(held) = self.held.take() {
            tokio::task::spawn_blocking(move || {
                drop((held.socket, held.descriptors));
                drop(held.place);
            });
        }
    }
}

/// How many connections each user has.
struct UnderWay {
    limit: usize,
    counts: Mutex<HashMap<u32, usize>>,
}

/// A place among a user's connections; given back when dropped.
struct Place(Arc<UnderWay>, u32);

impl UnderWay {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            counts: Mutex::default(),
        }
    }

    fn take(all: &Arc<Self>, uid: u32) -> Option<Place> {
        let mut counts = all.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid).or_default();
        if *count >= all.limit {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Place(Arc::clone(all), uid))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
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
            .filter_map(|_| UnderWay::take(&under_way, 1000))
            .collect();
        assert_eq!(places.len(), 3);
        assert!(UnderWay::take(&under_way, 1000).is_none());
        assert!(UnderWay::take(&under_way, 1001).is_some());
        places.pop();
        assert!(UnderWay::take(&under_way, 1000).is_some());
    }
}
