//! Quotas: a limited number of places, of which no user can take so many that none are left for others.

use std::collections::HashMap;
use std::hash::Hash;

/// The owners of a number of places. Each owner may have `most` places, and no more than one part in
/// `parts` of the free ones. So an owner without a place gets one as long as one is free, and a few
/// greedy owners leave many free.
#[derive(Debug)]
pub struct Shares<K> {
    free: usize,
    most: usize,
    parts: usize,
    taken: HashMap<K, usize>,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// All of `places` are free.
    pub fn new(places: usize, most: usize, parts: usize) -> Self {
        Self {
            free: places,
            most,
            parts,
            taken: HashMap::new(),
        }
    }

    /// Takes a place, which the caller must return. False: this owner's share is used up for now.
    pub fn take(&mut self, who: &K) -> bool {
        let share = self.most.min(self.free.div_ceil(self.parts));
        if self.taken.get(who).copied().unwrap_or_default() >= share {
            return false;
        }
        *self.taken.entry(who.clone()).or_default() += 1;
        self.free -= 1;
        true
    }

    /// Returns a taken place.
    pub fn give_back(&mut self, who: &K) {
        if let Some(taken) = self.taken.get_mut(who) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(who);
            }
            self.free += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_so_many_and_no_more_and_another_has_as_many() {
        let mut shares = Shares::new(1000, 3, 2);
        for who in ["alice", "bob"] {
            assert!((0..3).all(|_| shares.take(&who)));
            assert!(!shares.take(&who));
        }
        shares.give_back(&"alice");
        assert!(shares.take(&"alice") && !shares.take(&"alice"));
    }

    #[test]
    fn many_who_ask_for_all_leave_room_for_one_who_has_none() {
        let mut shares = Shares::new(16_384, 512, 32);
        for _ in 0..512 {
            for who in 1..200 {
                shares.take(&who);
            }
        }
        assert!(shares.taken.values().all(|&taken| taken >= 64));
        let newcomers = (0..64).filter(|_| shares.take(&0)).count();
        assert!(newcomers >= 32, "{newcomers}");
    }

    #[test]
    fn the_last_place_is_for_who_has_none_and_all_come_back() {
        let mut shares = Shares::new(4, 4, 4);
        assert!((0..4).all(|who| shares.take(&who)));
        assert!(!shares.take(&9));
        // A place that was not taken is not returned.
        shares.give_back(&9);
        assert_eq!(shares.free, 0);
        (0..4).for_each(|who| shares.give_back(&who));
        assert_eq!((shares.free, shares.taken.len()), (4, 0));
    }
}
