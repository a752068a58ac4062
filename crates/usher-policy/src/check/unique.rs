//! "At most once", with the place of the first.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Location;

pub(super) struct Unique<K>(BTreeMap<K, Location>);

impl<K> Default for Unique<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Unique<K> {
    /// Takes the key, or returns where it was taken before.
    pub(super) fn claim(&mut self, key: K, location: Location) -> Option<Location> {
        let first = *self.0.entry(key).or_insert(location);
        (first != location).then_some(first)
    }

    /// The keys.
    pub(super) fn into_keys(self) -> BTreeSet<K> {
        self.0.into_keys().collect()
    }
}
