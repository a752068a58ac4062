//! Waiting in tests.

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time that anything may take. It is generous even on an emulated machine with busy
/// processors: anything slower hangs, and timing decides no test.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The interval between two checks.
const PAUSE: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// Waits until a condition holds.
///
/// # Errors
/// The error of a check; or when the condition does not hold within [`PATIENCE`].
pub fn eventually(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    eventual(what, || Ok(holds()?.then_some(())))
}

/// Waits until there is a value, and returns it.
///
/// # Errors
/// As [`eventually`].
pub fn eventual<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("it never came to be that {what}").into());
        }
        sleep(PAUSE);
    }
}

/// Runs an attempt that must finish before a deadline some seconds ahead: eight, and more if this
/// machine needs longer. A failure before the deadline is a failure.
///
/// # Errors
/// The error of an attempt, which gets the seconds as its argument.
pub fn in_time<T>(
    mut attempt: impl FnMut(u32) -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    for seconds in [8, 30] {
        let begun = Instant::now();
        match attempt(seconds) {
            // A time in whole seconds may be one earlier.
            Err(_) if begun.elapsed() + SECOND >= SECOND * seconds => {}
            done => return done,
        }
    }
    attempt(100)
}
