//! Keys that may stand at most once, each with the place at which it stood first.

use std::collections::{BTreeMap, BTreeSet};

use crate::faults::StatementMistake;
use crate::item::Item;
use crate::mistake::{Found, Mistake};
use crate::report::Reporter;
use crate::source::{Location, Place};

/// Keys, each with the place at which it was taken first.
#[derive(Debug)]
pub struct Unique<K>(BTreeMap<K, Location>);

impl<K> Default for Unique<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Unique<K> {
    /// Takes the key, or returns where it was taken before.
    pub fn claim(&mut self, key: K, location: Location) -> Option<Location> {
        let first = *self.0.entry(key).or_insert(location);
        (first != location).then_some(first)
    }

    /// Takes the key of an item; none where it was taken before, which is reported with that place.
    pub fn take<M: Mistake>(
        &mut self,
        key: K,
        item: &Item,
        reporter: &Reporter<'_>,
        taken: impl FnOnce(Place) -> M,
    ) -> Option<()> {
        match self.claim(key, item.location) {
            None => Some(()),
            Some(first) => reporter.refuse(item.location, taken(reporter.place(first))),
        }
    }

    /// Takes the key of a list's item; none, and reported, when it is listed already.
    pub fn list(&mut self, key: K, item: &Item, reporter: &Reporter<'_>) -> Option<()> {
        self.take(key, item, reporter, |first| {
            let found = Found(item.shown());
            StatementMistake::ListedTwice { found, first }
        })
    }

    /// The keys.
    pub fn into_keys(self) -> BTreeSet<K> {
        self.0.into_keys().collect()
    }
}
