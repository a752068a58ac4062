//! Places that another program has just left.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Attaches a program. The kernel frees a place some time after a program has left it (an RCU grace
/// period), so this tries again, at most for this long, while the place is busy.
///
/// # Errors
/// That of the last attempt.
pub(crate) fn when_free<T>(
    limit: Duration,
    mut attach: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match attach() {
            Err(error) if is_busy(&error) && begun.elapsed() < limit => sleep(PAUSE),
            attached => return attached,
        }
    }
}

/// Whether another program has the place.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}
