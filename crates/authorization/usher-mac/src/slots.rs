//! Sets of slots, in the form that BPF programs use as well.

use std::ops::{BitAndAssign, BitOr, BitOrAssign, Not};

use crate::shared::{MAC_MODULES, MacSlots};

impl MacSlots {
    pub(crate) const NONE: Self = Self(0);

    /// The set of one slot.
    pub(crate) fn of(slot: u32) -> Self {
        Self(1 << slot)
    }

    pub(crate) fn has(self, slot: u32) -> bool {
        self.0 & Self::of(slot).0 != 0
    }

    /// The slots in the set.
    pub(crate) fn slots(self) -> impl Iterator<Item = u32> {
        (0..MAC_MODULES).filter(move |slot| self.has(*slot))
    }
}

impl BitOr for MacSlots {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for MacSlots {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAndAssign for MacSlots {
    fn bitand_assign(&mut self, other: Self) {
        self.0 &= other.0;
    }
}

impl Not for MacSlots {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_slots_that_were_put_in_and_not_taken_out() {
        let mut set = MacSlots::of(0) | MacSlots::of(7);
        set |= MacSlots::of(3);
        assert_eq!(set, MacSlots(0b1000_1001));
        assert_eq!(set.slots().collect::<Vec<_>>(), [0, 3, 7]);
        set &= !MacSlots::of(7);
        assert!(set.has(3) && !set.has(7));
        set &= MacSlots::NONE;
        assert_eq!(set.slots().next(), None);
        // `!` sets all 32 bits, and only 8 of them stand for slots.
        assert_eq!((!MacSlots::NONE).slots().count(), 8);
    }
}
