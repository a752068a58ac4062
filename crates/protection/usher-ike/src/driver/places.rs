//! The places of new SAs, by which the kernel sends. See `order.rs` of `usher-ipsec`.
//!
//! charon reports which host has begun to rekey an SA. If this host has, the other one has the keys of the
//! new SA; otherwise it may not have them yet. If both have begun at once, there are two new SAs, and one of
//! them ends. The charon of the host whose own SA stays reports the SA that it has granted, and then its own.
//! The charon of the host whose own SA ends reports only the SA that it has granted. So an SA that is granted
//! while this host asks waits for its place. Until then the kernel takes the younger of both, which the other
//! host has in either case.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Driver, KernelSad, by_list};
use crate::error::IkeError;
use crate::sas::{Come, Placed, Sas, come};
use crate::vici::Connection;

/// The time between two looks whether the former SA is gone for which two others have come.
const LOOKING: Duration = Duration::from_millis(50);

/// How long after the end of the former SA the granted one is placed: by then charon would have reported this
/// host's own.
const GONE: Duration = Duration::from_millis(250);

/// Most SAs that wait for their place. Further ones get none, as without this task: their rekeying may lose packets.
const MOST_CONTESTED: usize = 1_024;

/// The kernel whose SAs are placed.
pub(super) type Kernel = Arc<Mutex<Box<dyn KernelSad>>>;

/// charon's events, taken in a task of its own: an SA must be placed before the next rekeying of the same,
/// and charon's answers take their time.
pub(super) struct Events {
    have_come: Arc<Notify>,
    /// How many events have been taken. Counted while the kernel is locked.
    taken: Arc<AtomicU64>,
    task: JoinSet<IkeError>,
}

impl Events {
    /// Takes the events of this connection until it fails, or this is dropped.
    pub(super) fn take(mut events: Connection, kernel: Kernel) -> Self {
        let have_come = Arc::new(Notify::new());
        let has_come = Arc::clone(&have_come);
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&taken);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut contested = Contested::default();
            loop {
                tokio::select! {
                    event = events.event() => match event {
                        Ok(event) => {
                            {
                                let mut kernel = kernel.lock();
                                counted.fetch_add(1, Ordering::SeqCst);
                                for come in come(&event) {
                                    contested.come(come);
                                    by_list(place_come(&mut **kernel, come));
                                }
                            }
                            has_come.notify_one();
                        }
                        Err(error) => return error,
                    },
                    () = sleep(LOOKING), if !contested.0.is_empty() => {
                        contested.place(&mut **kernel.lock(), Instant::now());
                    }
                }
            }
        });
        Self {
            have_come,
            taken,
            task,
        }
    }

    /// How many events have been taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Waits until events have come.
    ///
    /// # Errors
    /// The error of the connection.
    pub(super) async fn have_come(&mut self) -> Result<(), IkeError> {
        tokio::select! {
            () = self.have_come.notified() => Ok(()),
            Some(ended) = self.task.join_next() => match ended {
                Ok(error) => Err(error),
                Err(broken) => resume_unwind(broken.into_panic()),
            },
        }
    }
}

/// Places an SA that has come.
fn place_come(kernel: &mut dyn KernelSad, come: Come) -> io::Result<()> {
    match come {
        Come::First(new) => kernel.place(new),
        Come::Asked { new, .. } => kernel.place_first(new),
        // The former SA of a second pair may have no place yet; the other host has that SA.
        Come::Granted { former, new } => {
            kernel.place_last(former)?;
            kernel.place_last(new)
        }
        Come::Contested { former, .. } => kernel.place_last(former),
    }
}

/// The SAs that were granted while this host asked for some: the former SA, the new one, and since when the
/// former one is gone.
#[derive(Debug, Default)]
struct Contested(Vec<(Placed, Placed, Option<Instant>)>);

impl Contested {
    fn come(&mut self, come: Come) {
        match come {
            Come::Contested { former, new } if self.0.len() < MOST_CONTESTED => {
                self.0.push((former, new, None));
            }
            // This host's own SA stays.
            Come::Asked { former: own, .. } => self.0.retain(|(former, ..)| *former != own),
            Come::First(_) | Come::Granted { .. } | Come::Contested { .. } => {}
        }
    }

    /// Places the granted SAs that stay: charon would have reported this host's own.
    fn place(&mut self, kernel: &mut dyn KernelSad, now: Instant) {
        self.0.retain_mut(|(former, new, gone)| {
            // Where the kernel fails, the next visit tries again.
            let is_gone = by_list(kernel.has(*former).map(|is_there| !is_there));
            if !is_gone {
                return true;
            }
            let is_pending = now < *gone.get_or_insert(now) + GONE;
            if !is_pending {
                by_list(kernel.place_first(*new));
            }
            is_pending
        });
    }
}

impl Driver {
    /// Places the SAs that are not placed yet, and takes the places of others away. Most are placed when their
    /// event comes; the clock may have been set since, and this process may be younger than they are. Does
    /// nothing if events have been taken since these were listed: the list may lack what has come.
    pub(super) fn place(&mut self, sas: &Sas, listed_at: u64, events: &Events) {
        let mut kernel = self.kernel.lock();
        if events.taken() != listed_at {
            return;
        }
        let known = sas.spis();
        by_list(kernel.keep_places(&known));
        for together in sas.placed() {
            by_list(place_only(&mut **kernel, &together));
        }
    }
}

/// Places one of these SAs if the kernel has no other of them. While it has several, their events decide.
fn place_only(kernel: &mut dyn KernelSad, sas: &[Placed]) -> io::Result<()> {
    let mut left = Vec::new();
    for sa in sas {
        if kernel.has(*sa)? {
            left.push(*sa);
        }
    }
    match left[..] {
        [only] => kernel.place(only),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sas::KernelSas;

    /// SAs by number in the order of their places.
    #[derive(Default)]
    struct Places {
        order: Vec<u32>,
        gone: Vec<u32>,
    }

    impl KernelSad for Places {
        fn list(&mut self) -> io::Result<KernelSas> {
            Ok(KernelSas::new())
        }

        fn has(&mut self, sa: Placed) -> io::Result<bool> {
            Ok(!self.gone.contains(&sa.spi))
        }

        fn place(&mut self, sa: Placed) -> io::Result<()> {
            if self.order.is_empty() {
                self.order.push(sa.spi);
            }
            Ok(())
        }

        fn place_last(&mut self, sa: Placed) -> io::Result<()> {
            if !self.order.contains(&sa.spi) {
                self.order.push(sa.spi);
            }
            Ok(())
        }

        fn place_first(&mut self, sa: Placed) -> io::Result<()> {
            self.order.insert(0, sa.spi);
            Ok(())
        }

        fn keep_places(&mut self, _: &KernelSas) -> io::Result<()> {
            Ok(())
        }
    }

    fn sa(spi: u32) -> Placed {
        Placed {
            to: [192, 0, 2, 1].into(),
            spi,
            is_ah: false,
        }
    }

    fn order(all: &[Come]) -> (Places, Contested) {
        let (mut places, mut contested) = (Places::default(), Contested::default());
        for come in all {
            contested.come(*come);
            place_come(&mut places, *come).expect("it is placed");
        }
        (places, contested)
    }

    #[test]
    fn what_was_asked_for_comes_first_and_what_was_granted_last() {
        let (first, former) = (Come::First(sa(1)), sa(1));
        let asked = Come::Asked { former, new: sa(2) };
        assert_eq!(order(&[first, asked]).0.order, [2, 1]);
        let granted = Come::Granted { former, new: sa(2) };
        assert_eq!(order(&[first, granted]).0.order, [1, 2]);
        assert_eq!(
            order(&[granted]).0.order,
            [1, 2],
            "the former one had no place"
        );
    }

    /// Both hosts have begun at once; one rekeys both pairs.
    #[test]
    fn the_former_sas_of_two_pairs_come_before_the_new_ones() {
        let granted = |former, new| Come::Granted {
            former: sa(former),
            new: sa(new),
        };
        let pairs = [Come::First(sa(1)), Come::First(sa(2))];
        let (places, _) = order(&[pairs[0], pairs[1], granted(2, 12), granted(1, 11)]);
        assert_eq!(places.order, [1, 2, 12, 11]);
    }

    #[test]
    fn of_two_new_sas_the_own_one_stays_if_charon_says_so() {
        let (first, former) = (Come::First(sa(1)), sa(1));
        let contested = Come::Contested { former, new: sa(2) };
        let asked = Come::Asked { former, new: sa(3) };
        let (places, contested) = order(&[first, contested, asked]);
        assert_eq!(places.order, [3, 1]);
        assert!(contested.0.is_empty());
    }

    #[test]
    fn of_two_new_sas_the_other_host_s_stays_if_charon_says_nothing() {
        let (first, former) = (Come::First(sa(1)), sa(1));
        let (mut places, mut contested) = order(&[first, Come::Contested { former, new: sa(2) }]);
        let now = Instant::now();
        contested.place(&mut places, now);
        contested.place(&mut places, now + GONE);
        assert_eq!(places.order, [1], "the former one is there");
        places.gone.push(1);
        contested.place(&mut places, now + GONE);
        assert_eq!(places.order, [1], "it has gone just now");
        contested.place(&mut places, now + GONE * 2);
        assert_eq!(places.order, [2, 1]);
        assert!(contested.0.is_empty());
    }
}
