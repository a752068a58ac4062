//! Permits for queues that sessions being opened need, so that a session that is on record does not
//! fail for want of a queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use usher_proto::refusal::Refusal;

use super::Key;

/// The permits of each queue.
#[derive(Default)]
pub struct Permits(Arc<Mutex<HashMap<Key, usize>>>);

/// A permit for one queue, until it is dropped.
pub struct Permit {
    all: Arc<Mutex<HashMap<Key, usize>>>,
    key: Key,
}

impl Permits {
    /// Permits a queue. `number` queues are there already, and `most` may be; `has` says which.
    ///
    /// # Errors
    /// [`Refusal::ListenerTableFull`] for another queue when these and the permitted ones are as many.
    pub fn take(
        &self,
        key: Key,
        has: impl Fn(Key) -> bool,
        number: usize,
        most: usize,
    ) -> Result<Permit, Refusal> {
        let mut permitted = self.0.lock();
        if !has(key) && !permitted.contains_key(&key) {
            let coming = permitted.keys().filter(|key| !has(**key)).count();
            if number + coming >= most {
                return Err(Refusal::ListenerTableFull);
            }
        }
        *permitted.entry(key).or_default() += 1;
        Ok(Permit {
            all: Arc::clone(&self.0),
            key,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut permitted = self.all.lock();
        if let Some(count) = permitted.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                permitted.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_queues_are_permitted_than_there_may_be() {
        let permits = Permits::default();
        // One of three is there.
        let take = |uid| permits.take((1, uid), |key| key == (1, 1000), 1, 3);
        let _there = take(1000).unwrap();
        let first = take(1001).unwrap();
        let again = take(1001).unwrap();
        let _other = take(1002).unwrap();
        assert_eq!(take(1003).err(), Some(Refusal::ListenerTableFull));
        assert!(take(1000).is_ok());
        drop(first);
        assert_eq!(take(1003).err(), Some(Refusal::ListenerTableFull));
        drop(again);
        assert!(take(1003).is_ok());
    }
}
