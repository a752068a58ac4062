//! Each user's share of a daemon's log: any process that may connect to its sockets can make it write.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usher_proto::refusal::Refusal;

/// Most lines about one user and one reason within [`WINDOW`].
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);

/// The recent lines about each user. Its size is at most the number of users times reasons.
#[derive(Debug, Default)]
pub struct LogShares(Mutex<HashMap<(u32, Refusal), Window>>);

#[derive(Debug)]
struct Window {
    begun: Instant,
    lines: u32,
}

impl LogShares {
    /// Whether to write a line about a refusal of this user. The first omitted one is announced. One
    /// reason does not hide another.
    pub fn admit(&self, uid: u32, refusal: Refusal) -> bool {
        self.admit_at((uid, refusal), Instant::now())
    }

    fn admit_at(&self, about: (u32, Refusal), now: Instant) -> bool {
        let mut windows = self.0.lock();
        if !windows.contains_key(&about) {
            windows.retain(|_, window| now.duration_since(window.begun) < WINDOW);
        }
        let fresh = || Window {
            begun: now,
            lines: 0,
        };
        let window = windows.entry(about).or_insert_with(fresh);
        if now.duration_since(window.begun) >= WINDOW {
            *window = fresh();
        }
        window.lines = window.lines.saturating_add(1);
        if window.lines == LINES + 1 {
            let (uid, refusal) = about;
            tracing::warn!(
                uid,
                reason = refusal.name(),
                "{LINES} refusals within {WINDOW:?}: further ones are not written"
            );
        }
        window.lines <= LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_written_a_share_writes_no_more_for_a_while_and_another_does() {
        let shares = LogShares::default();
        let now = Instant::now();
        let (one, other) = ((1000, Refusal::Malformed), (1001, Refusal::Malformed));
        for _ in 0..LINES {
            assert!(shares.admit_at(one, now));
        }
        assert!(!shares.admit_at(one, now));
        assert!(shares.admit_at(other, now));
        assert!(shares.admit_at((1000, Refusal::NotThisAccount), now));
        assert!(!shares.admit_at(one, now + WINDOW - Duration::from_millis(1)));
        assert!(shares.admit_at(one, now + WINDOW));
        assert!(shares.admit_at((1002, Refusal::Malformed), now + WINDOW * 3));
        assert_eq!(shares.0.lock().len(), 1);
    }
}
