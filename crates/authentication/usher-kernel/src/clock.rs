//! Times of the programs: nanoseconds since boot, including suspension (`bpf_ktime_get_boot_ns`).

use std::time::Duration;

/// The present time.
pub(crate) fn boot_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Seconds and nanoseconds are not negative on this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The end of a period of this length from `now` on; never, if that is beyond the clock's end.
pub(crate) fn after(now: u64, time: Duration) -> u64 {
    now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
