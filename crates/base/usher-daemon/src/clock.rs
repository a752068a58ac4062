//! The time by which keys, certificates and sessions expire.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; 0 where the clock stands before that.
#[must_use]
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
