//! Connections that have not yet shown a known host's key. Anybody can make them, so their number and their
//! time are limited. When there are too many, the *oldest* is dropped: a genuine handshake takes
//! milliseconds, so it is not the oldest for long.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Limit of half-open connections in all.
pub const TOTAL: usize = 512;
/// Limit of half-open connections of one address.
pub const PER_ADDRESS: usize = 64;
/// The time that a handshake may take.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The half-open connections, oldest first.
#[derive(Default)]
pub struct HalfOpen {
    entries: Mutex<VecDeque<HalfOpenConnection>>,
    next: AtomicU64,
    dropped: AtomicU64,
}

struct HalfOpenConnection {
    number: u64,
    address: IpAddr,
    task: AbortHandle,
}

impl HalfOpen {
    /// A number for the next connection to enter.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters a connection; drops the oldest of its address, or of all, if there are too many.
    pub fn enter(&self, number: u64, address: IpAddr, task: AbortHandle) {
        let mut entries = self.entries.lock();
        entries.push_back(HalfOpenConnection {
            number,
            address,
            task,
        });
        let same = entries
            .iter()
            .filter(|entry| entry.address == address)
            .count();
        let victim = if same > PER_ADDRESS {
            entries.iter().position(|entry| entry.address == address)
        } else if entries.len() > TOTAL {
            Some(0)
        } else {
            None
        };
        if let Some(entry) = victim.and_then(|position| entries.remove(position)) {
            entry.task.abort();
            // Reported at powers of two: a flood must not also flood the log.
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(address = %entry.address, dropped, "too many half-open control connections; the oldest was closed");
            }
        }
    }

    /// Removes a connection that has become a channel, or has ended.
    pub fn leave(&self, number: u64) {
        self.entries.lock().retain(|entry| entry.number != number);
    }

    /// The number of half-open connections.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// The number of half-open connections that were closed to make room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(half_open: &HalfOpen, address: [u8; 4]) -> tokio::task::JoinHandle<()> {
        let task = tokio::spawn(std::future::pending());
        half_open.enter(
            half_open.number(),
            IpAddr::from(address),
            task.abort_handle(),
        );
        task
    }

    #[tokio::test]
    async fn a_crowded_address_loses_its_own_oldest_and_nobody_elses() {
        let half_open = HalfOpen::default();
        let other = enter(&half_open, [10, 0, 0, 2]);
        let first = enter(&half_open, [10, 0, 0, 1]);
        let rest: Vec<_> = (0..PER_ADDRESS)
            .map(|_| enter(&half_open, [10, 0, 0, 1]))
            .collect();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!other.is_finished());
        assert!(rest.iter().all(|task| !task.is_finished()));
        assert_eq!((half_open.len(), half_open.dropped()), (PER_ADDRESS + 1, 1));
    }

    #[tokio::test]
    async fn many_addresses_together_lose_the_oldest_of_all() {
        let half_open = HalfOpen::default();
        let first = enter(&half_open, [10, 0, 0, 0]);
        let _rest: Vec<_> = (0..TOTAL)
            .map(|n| enter(&half_open, [10, 1, (n / 50) as u8, (n % 50) as u8]))
            .collect();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(half_open.len(), TOTAL);
    }
}
