//! Quotas: a limited number of places, of which no user can take so many that none are left for others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// The owners of a number of places. Each owner may have `most` places, and no more than one part in
/// `parts` of the free ones. So an owner without a place gets one as long as one is free, and a few
/// greedy owners leave many free.
#[derive(Debug)]
pub struct Shares<K>(Arc<Mutex<State<K>>>);

#[derive(Debug)]
struct State<K> {
    free: usize,
    most: usize,
    parts: usize,
    taken: HashMap<K, usize>,
}

/// A taken place, which is free again when dropped.
#[derive(Debug)]
pub struct Share<K: Eq + Hash> {
    all: Arc<Mutex<State<K>>>,
    owner: K,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// All of `places` are free.
    pub fn new(places: usize, most: usize, parts: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: places,
            most,
            parts,
            taken: HashMap::new(),
        })))
    }

    /// Takes a place. None: this owner's share is used up for now.
    pub fn take(&self, owner: K) -> Option<Share<K>> {
        let mut state = self.0.lock();
        let share = state.most.min(state.free.div_ceil(state.parts));
        if state.taken.get(&owner).copied().unwrap_or_default() >= share {
            return None;
        }
        *state.taken.entry(owner.clone()).or_default() += 1;
        state.free -= 1;
        let all = Arc::clone(&self.0);
        Some(Share { all, owner })
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        state.free += 1;
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

    #[test]
    fn an_owner_has_its_limit_and_another_owner_as_many() {
        let shares = Shares::new(1000, 3, 2);
        let mut all: Vec<_> = ["alice", "bob"]
            .into_iter()
            .flat_map(|owner| {
                let three: Vec<_> = (0..3).map(|_| shares.take(owner).unwrap()).collect();
                assert!(shares.take(owner).is_none());
                three
            })
            .collect();
        all.remove(0);
        let again = shares.take("alice");
        assert!(again.is_some() && shares.take("alice").is_none());
    }

    #[test]
    fn many_greedy_owners_leave_room_for_a_newcomer() {
        let shares = Shares::new(16_384, 512, 32);
        let rounds = (0..512).flat_map(|_| 1..200);
        let _taken: Vec<_> = rounds.filter_map(|owner| shares.take(owner)).collect();
        assert!(shares.0.lock().taken.values().all(|&taken| taken >= 64));
        let newcomers: Vec<_> = (0..64).filter_map(|_| shares.take(0)).collect();
        assert!(newcomers.len() >= 32, "{}", newcomers.len());
    }

    #[test]
    fn the_last_place_is_for_a_newcomer_and_all_come_back() {
        let shares = Shares::new(4, 4, 4);
        let taken: Vec<_> = (0..4).map(|owner| shares.take(owner).unwrap()).collect();
        assert!(shares.take(9).is_none());
        drop(taken);
        let state = shares.0.lock();
        assert_eq!((state.free, state.taken.len()), (4, 0));
    }
}
