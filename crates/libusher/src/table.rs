//! Tables of the whole process, which threads hold for microseconds. In a child that was forked
//! meanwhile nobody lets go of them: that is an error here and not a hang.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::service::ServiceError;

/// How long another thread may hold a table.
const HELD: Duration = Duration::from_secs(1);

/// The table, when it is free.
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
