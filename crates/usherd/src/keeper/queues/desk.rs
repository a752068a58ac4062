//! Matches queues with a waiting connection to processes that wait for one: a queue offers itself, and
//! a process takes the oldest offer and so reserves the user.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use usher_proto::calls::{RESERVATION_SIZE, ReservationId};
use usher_proto::refusal::Refusal;

use super::queue::Queue;

/// The time for which a user stays reserved.
const KEPT: Duration = Duration::from_secs(30);

/// A queue with a waiting connection.
pub struct Offer {
    pub queue: Arc<Queue>,
    /// Answered when a process serves the queue; dropped if none does.
    pub served: oneshot::Sender<()>,
    /// Whether a process has taken the offer.
    taken: Arc<AtomicBool>,
}

/// The result of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A process serves the queue.
    Served,
    /// A process took the offer and let its reservation lapse.
    Lapsed,
    /// No process took the offer in time.
    Untaken,
}

/// The offers of one service, oldest first.
#[derive(Clone)]
struct Counter {
    offering: mpsc::Sender<Offer>,
    taking: Arc<tokio::sync::Mutex<mpsc::Receiver<Offer>>>,
}

/// A user reserved for a process.
struct Reserved {
    offer: Offer,
    reserver: i32,
    lapse: tokio::task::AbortHandle,
}

/// A descriptor of a process (pidfd), readable when it has ended.
pub type ProcessEnd = Arc<AsyncFd<OwnedFd>>;

/// All offers and reservations. Bounded by the number of queues: each has one offer at a time.
#[derive(Default)]
pub struct Desk {
    counters: Mutex<HashMap<u32, Counter>>,
    reserved: Mutex<HashMap<ReservationId, Reserved>>,
}

impl Desk {
    fn counter(&self, service: u32) -> Counter {
        self.counters
            .lock()
            .entry(service)
            .or_insert_with(|| {
                let (offering, taking) = mpsc::channel(1);
                Counter {
                    offering,
                    taking: Arc::new(tokio::sync::Mutex::new(taking)),
                }
            })
            .clone()
    }

    /// Offers a queue of a service and waits until a process serves it. A process must take the offer within
    /// `patience`.
    pub async fn offer(&self, service: u32, queue: Arc<Queue>, patience: Duration) -> Outcome {
        let (served, outcome) = oneshot::channel();
        let taken = Arc::new(AtomicBool::new(false));
        let offer = Offer {
            queue,
            served,
            taken: Arc::clone(&taken),
        };
        let counter = self.counter(service);
        // The receiver lives in the counter that we hold, so sending does not fail.
        let served = async { counter.offering.send(offer).await.is_ok() && outcome.await.is_ok() };
        tokio::pin!(served);
        let is_served = match timeout(patience, &mut served).await {
            Ok(is_served) => is_served,
            // The process has its own time limit to become the user.
            Err(_) if taken.load(Ordering::Relaxed) => served.await,
            Err(_) => return Outcome::Untaken,
        };
        if is_served {
            Outcome::Served
        } else {
            Outcome::Lapsed
        }
    }

    /// Waits for an offer of a service.
    pub async fn take(&self, service: u32) -> Offer {
        let counter = self.counter(service);
        let mut taking = counter.taking.lock().await;
        loop {
            match taking.recv().await {
                // The offer was withdrawn, or its queue removed, while it waited here.
                Some(offer) if offer.served.is_closed() => {}
                Some(offer) => {
                    offer.taken.store(true, Ordering::Relaxed);
                    return offer;
                }
                // We hold a sender, so the channel is never closed.
                None => unreachable!("a counter keeps its own sender"),
            }
        }
    }

    /// Reserves the user of an offer for a process and its children, as long as the process lives.
    ///
    /// # Errors
    /// [`Refusal::KeeperUnavailable`] when the kernel returns no random numbers.
    pub fn reserve(
        self: &Arc<Self>,
        offer: Offer,
        reserver: i32,
        end: ProcessEnd,
    ) -> Result<ReservationId, Refusal> {
        let mut bytes = [0; RESERVATION_SIZE];
        getrandom::fill(&mut bytes).map_err(|error| {
            tracing::error!(%error, "the kernel returns no random numbers");
            Refusal::KeeperUnavailable
        })?;
        let id = ReservationId::from_bytes(bytes);
        // Hold the lock until the reservation is entered, so that its lapse finds it.
        let mut reserved = self.reserved.lock();
        let lapse = tokio::spawn(lapse(Arc::clone(self), id, reserver, end)).abort_handle();
        let reservation = Reserved {
            offer,
            reserver,
            lapse,
        };
        reserved.insert(id, reservation);
        Ok(id)
    }

    /// The queue of a reservation, and the process that made it.
    pub fn reservation(&self, id: &ReservationId) -> Option<(Arc<Queue>, i32)> {
        let reserved = self.reserved.lock();
        let reservation = reserved.get(id)?;
        Some((Arc::clone(&reservation.offer.queue), reservation.reserver))
    }

    /// Takes a reservation, which can be used once.
    pub fn claim(&self, id: &ReservationId) -> Option<Offer> {
        let reservation = self.reserved.lock().remove(id)?;
        reservation.lapse.abort();
        Some(reservation.offer)
    }
}

/// Ends a reservation after its time, or with the process that made it.
async fn lapse(desk: Arc<Desk>, id: ReservationId, reserver: i32, end: ProcessEnd) {
    let ended = tokio::select! {
        _ = end.readable() => true,
        () = tokio::time::sleep(KEPT) => false,
    };
    if let Some(offer) = desk.claim(&id) {
        tracing::warn!(service = %offer.queue.service, user = %offer.queue.account.name,
            pid = reserver, reserver_ended = ended, "a reserved user was not served; offered again");
    }
}
