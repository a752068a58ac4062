//! Quotas: a limited number of places. No user can take so many that none are left for others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// A number of places. Each owner may have a limited number of them.
#[derive(Debug)]
pub struct Quota<K>(Arc<Mutex<State<K>>>);

#[derive(Debug)]
struct State<K> {
    places: usize,
    most: usize,
    /// An owner may have at most 1/`parts` of the free places; none: all of them.
    parts: Option<usize>,
    all: usize,
    taken: HashMap<K, usize>,
}

/// A taken place, which is free again when dropped.
#[derive(Debug)]
pub struct Taken<K: Eq + Hash> {
    quota: Arc<Mutex<State<K>>>,
    owner: K,
}

/// The limit that has been reached.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Exhausted {
    /// This owner has as many places as one owner may have.
    #[error("you have too many connections ({0})")]
    Owner(usize),
    /// All places are taken.
    #[error("all users together have too many connections ({0})")]
    All(usize),
}

impl<K: Eq + Hash + Clone> Quota<K> {
    /// `places`, of which one owner may have at most `most`.
    #[must_use]
    pub fn new(places: usize, most: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            places,
            most,
            parts: None,
            all: 0,
            taken: HashMap::new(),
        })))
    }

    /// Limits an owner also to one part in `parts` of the free places. So an owner without a place gets one
    /// as long as one is free, and a few greedy owners leave many free.
    #[must_use]
    pub fn in_parts(self, parts: usize) -> Self {
        self.0.lock().parts = Some(parts);
        self
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn take(&self, owner: K) -> Result<Taken<K>, Exhausted> {
        let mut state = self.0.lock();
        let taken = state.taken.get(&owner).copied().unwrap_or_default();
        let free = state.places - state.all;
        if taken >= state.most {
            return Err(Exhausted::Owner(taken));
        }
        if free == 0 {
            return Err(Exhausted::All(state.all));
        }
        if state
            .parts
            .is_some_and(|parts| taken >= free.div_ceil(parts))
        {
            return Err(Exhausted::Owner(taken));
        }
        state.taken.insert(owner.clone(), taken + 1);
        state.all += 1;
        let quota = Arc::clone(&self.0);
        Ok(Taken { quota, owner })
    }

    /// The number of taken places.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.lock().all
    }
}

impl<K: Eq + Hash> Drop for Taken<K> {
    fn drop(&mut self) {
        let mut state = self.quota.lock();
        state.all -= 1;
        if let Some(taken) = state.taken.get_mut(&self.owner) {
            *taken -= 1;
            if *taken == 0 {
                state.taken.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Threat model: A63
    #[test]
    fn an_owner_has_its_limit_and_all_have_theirs() {
        let quota = Quota::new(3, 2);
        let first = quota.take(1).unwrap();
        let _second = quota.take(1).unwrap();
        assert_eq!(quota.take(1).err(), Some(Exhausted::Owner(2)));
        let _other = quota.take(2).unwrap();
        assert_eq!(quota.take(2).err(), Some(Exhausted::All(3)));
        drop(first);
        let _again = quota.take(2).unwrap();
        assert_eq!(quota.taken(), 3);
    }

    #[test]
    fn many_greedy_owners_leave_room_for_a_newcomer() {
        let quota = Quota::new(16_384, 512).in_parts(32);
        let rounds = (0..512).flat_map(|_| 1..200);
        let _taken: Vec<_> = rounds.filter_map(|owner| quota.take(owner).ok()).collect();
        assert!(quota.0.lock().taken.values().all(|&taken| taken >= 64));
        let newcomers: Vec<_> = (0..64).filter_map(|_| quota.take(0).ok()).collect();
        assert!(newcomers.len() >= 32, "{}", newcomers.len());
    }

    #[test]
    fn the_last_place_is_for_a_newcomer_and_all_come_back() {
        let quota = Quota::new(4, 4).in_parts(4);
        let taken: Vec<_> = (0..4).map(|owner| quota.take(owner).unwrap()).collect();
        assert!(quota.take(9).is_err());
        drop(taken);
        assert_eq!((quota.taken(), quota.0.lock().taken.len()), (0, 0));
    }
}
