//! Permits for the queues of sessions that are being opened, so that no session on record fails for lack of a
//! queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use usher_proto::refusal::Refusal;

use super::Key;

/// The permits of each queue.
#[derive(Default)]
pub struct Permits(Mutex<HashMap<Key, Permit>>);

/// A permit for one queue, until only its duplicate in [`Permits`] is left.
pub type Permit = Arc<()>;

impl Permits {
    /// Permits a queue, if there are fewer than `most`. There are `number` queues, for which `has` is true.
    ///
    /// # Errors
    /// [`Refusal::ListenerTableFull`] for a new queue when existing and permitted ones together reach `most`.
    pub fn take(
        &self,
        key: Key,
        has: impl Fn(Key) -> bool,
        number: usize,
        most: usize,
    ) -> Result<Permit, Refusal> {
        let mut permitted = self.0.lock();
        permitted.retain(|_, permit| Arc::strong_count(permit) > 1);
        if !has(key) && !permitted.contains_key(&key) {
            let coming = permitted.keys().filter(|key| !has(**key)).count();
            if number + coming >= most {
                return Err(Refusal::ListenerTableFull);
            }
        }
        Ok(Arc::clone(permitted.entry(key).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_queues_are_permitted_than_there_may_be() {
        let permits = Permits::default();
        // One of at most three queues exists.
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
