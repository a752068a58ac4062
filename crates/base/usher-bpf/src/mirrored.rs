//! A table of which a process knows what is in it.

use std::collections::BTreeMap;
use std::fmt;

use crate::{KernelError, Plain, Table};

/// A table and what this process has entered.
///
/// A confined process cannot ask the kernel for all entries. And an entry that stays is not written
/// again: while an element is replaced, a program that has just found it may read another one's in
/// its place.
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
    /// The table is empty, and only this process enters anything.
    #[must_use]
    pub fn new(table: Table<K, V>) -> Self {
        Self {
            table,
            present: BTreeMap::new(),
        }
    }

    /// Enters these beside the others.
    ///
    /// # Errors
    /// [`KernelError::Full`], or what the kernel says; some are entered then.
    pub fn enter(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        for (key, value) in wanted {
            if self.present.get(key) != Some(value) {
                self.table.set(key, value)?;
                self.present.insert(*key, *value);
            }
        }
        Ok(())
    }

    /// As [`Mirrored::enter`], all or none. For keys whose value is always the same.
    ///
    /// # Errors
    /// As [`Mirrored::enter`]; none of these is entered then that was not there before.
    pub fn enter_all(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        let former = self.present.clone();
        let entered = self.enter(wanted);
        if entered.is_err() {
            self.retain(&former)?;
        }
        entered
    }

    /// Enters these before anything goes; where there is no room for both, what goes makes some.
    ///
    /// # Errors
    /// As [`Mirrored::enter`].
    pub fn enter_or_exchange(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        match self.enter(wanted) {
            Err(KernelError::Full { .. }) => {
                self.retain(wanted)?;
                self.enter(wanted)
            }
            entered => entered,
        }
    }

    /// Removes all others.
    ///
    /// # Errors
    /// What the kernel says; some are there still.
    pub fn retain(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), KernelError> {
        let former = self.present.keys().filter(|key| !wanted.contains_key(key));
        for key in former.copied().collect::<Vec<_>>() {
            self.table.remove(&key)?;
            self.present.remove(&key);
        }
        Ok(())
    }
}
