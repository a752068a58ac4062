//! A table with a copy of its contents in the process.

use std::collections::BTreeMap;
use std::fmt;

use crate::{KernelError, Plain, Table};

/// A table and the entries that this process has made.
///
/// A confined process cannot ask the kernel for all entries, so it keeps this copy. The copy also lets it
/// leave an unchanged entry alone: while an element is replaced, a program that has just found it may read
/// another element in its place.
pub struct Mirrored<K, V> {
    table: Table<K, V>,
    present: BTreeMap<K, V>,
}

impl<K, V> fmt::Debug for Mirrored<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(formatter)
    }
}

impl<K: Plain + Ord, V: Plain + PartialEq> Mirrored<K, V> {
    /// The table must be empty, and only this process may enter anything.
    #[must_use]
    pub fn new(table: Table<K, V>) -> Self {
        Self {
            table,
            present: BTreeMap::new(),
        }
    }

    /// Adds these entries.
    ///
    /// # Errors
    /// [`KernelError::Full`], or the kernel's error; some are entered then.
    pub fn enter(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        for (key, value) in wanted {
            if self.present.get(key) != Some(value) {
                self.table.set(key, value)?;
                self.present.insert(*key, *value);
            }
        }
        Ok(())
    }

    /// Like [`Mirrored::enter`], but all or none. For keys whose value is always the same.
    ///
    /// # Errors
    /// Like [`Mirrored::enter`]; no new entry is left then.
    pub fn enter_all(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        let former = self.present.clone();
        let entered = self.enter(wanted);
        if entered.is_err() {
            self.retain(&former)?;
        }
        entered
    }

    /// Adds these entries before removing any others. If the table has no room for both, removes
    /// the others first.
    ///
    /// # Errors
    /// Like [`Mirrored::enter`].
    pub fn enter_or_exchange(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        match self.enter(wanted) {
            Err(KernelError::Full(_)) => {
                self.retain(wanted)?;
                self.enter(wanted)
            }
            entered => entered,
        }
    }

    /// Removes all entries but these.
    ///
    /// # Errors
    /// The kernel's error; some are left then.
    pub fn retain(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        let former = self.present.keys().filter(|key| !wanted.contains_key(key));
        for key in former.copied().collect::<Vec<_>>() {
            self.table.remove(&key)?;
            self.present.remove(&key);
        }
        Ok(())
    }
}
