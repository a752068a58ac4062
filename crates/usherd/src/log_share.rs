//! Each user's share of a daemon's log: whoever may connect to its sockets can make it write.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one user within [`WINDOW`].
const LINES: u32 = 60;
const WINDOW: Duration = Duration::from_secs(60);

/// What each user has written lately. As large as the number of users who did.
#[derive(Debug, Default)]
pub struct LogShares(Mutex<HashMap<u32, Window>>);

#[derive(Debug)]
struct Window {
    begun: Instant,
    lines: u32,
}

impl LogShares {
    /// Whether a line about this user is to be written. The first one that is not is announced.
    pub fn admit(&self, uid: u32) -> bool {
        self.admit_at(uid, Instant::now())
    }

    fn admit_at(&self, uid: u32, now: Instant) -> bool {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !windows.contains_key(&uid) {
            windows.retain(|_, window| now.duration_since(window.begun) < WINDOW);
        }
        let fresh = || Window {
            begun: now,
            lines: 0,
        };
        let window = windows.entry(uid).or_insert_with(fresh);
        if now.duration_since(window.begun) >= WINDOW {
            *window = fresh();
        }
        window.lines = window.lines.saturating_add(1);
        if window.lines == LINES + 1 {
            tracing::warn!(
                uid,
                "{LINES} refusals of one user within {WINDOW:?}: further ones are not written"
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
        for _ in 0..LINES {
            assert!(shares.admit_at(1000, now));
        }
        assert!(!shares.admit_at(1000, now));
        assert!(shares.admit_at(1001, now));
        assert!(!shares.admit_at(1000, now + WINDOW - Duration::from_millis(1)));
        assert!(shares.admit_at(1000, now + WINDOW));
        assert!(shares.admit_at(1002, now + WINDOW * 3));
        assert_eq!(shares.0.lock().unwrap().len(), 1);
    }
}
