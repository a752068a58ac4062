//! "At most once", with the place of the first.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::PolicyErrorKind;
use crate::report::Reporter;
use crate::source::Location;
use crate::tree::Item;

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

    /// Takes the key of a list's item; none, and reported, when it is listed already.
    pub(super) fn list(&mut self, key: K, item: &Item, reporter: &mut Reporter<'_>) -> Option<()> {
        let Some(first) = self.claim(key, item.location) else {
            return Some(());
        };
        let found = item.shown();
        reporter.report_repeated(item.location, first, |first| PolicyErrorKind::ListedTwice {
            found,
            first,
        });
        None
    }

    /// The keys.
    pub(super) fn into_keys(self) -> BTreeSet<K> {
        self.0.into_keys().collect()
    }
}
