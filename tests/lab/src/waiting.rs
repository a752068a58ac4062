//! How long tests wait, and for what.

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take. Generous, also where the machine is emulated and others keep its
/// processors busy: what takes longer hangs, and time decides no test.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// Waits until it holds.
///
/// # Errors
/// What looking gives; that it has not come to hold within [`PATIENCE`].
pub fn eventually(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    eventual(what, || Ok(holds()?.then_some(())))
}

/// Waits until there is something, and gives it.
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

/// Does what has to be done before a time that is some seconds from then: eight, and more where this
/// machine took longer than that. A failure before the time is one.
///
/// # Errors
/// What an attempt gives, which is given the seconds.
pub fn in_time<T>(
    mut attempt: impl FnMut(u32) -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    for seconds in [8, 30] {
        let begun = Instant::now();
        match attempt(seconds) {
            // A time of whole seconds may be one earlier.
            Err(_) if begun.elapsed() + SECOND >= SECOND * seconds => {}
            done => return done,
        }
    }
    attempt(100)
}
