//! Process-wide tables, which threads lock for microseconds. A child that was forked meanwhile has them
//! locked for ever; that is an error here, not a hang.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::service_error::ServiceError;

/// How long another thread may lock a table.
const HELD: Duration = Duration::from_secs(1);

/// Locks the table.
///
/// # Errors
/// [`ServiceError::ForkedInside`].
pub(crate) fn lock<T>(table: &Mutex<T>) -> Result<MutexGuard<'_, T>, ServiceError> {
    let begun = Instant::now();
    loop {
        match table.try_lock() {
            Ok(held) => return Ok(held),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if begun.elapsed() > HELD => {
                return Err(ServiceError::ForkedInside);
            }
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}
