//! The table that says which modules are in force: what dispatchers ask first of all.

use std::collections::BTreeSet;

use usher_bpf::{KernelError, Object, Plain, Table};

use crate::EntryPoint;
use crate::shared::{MacInForce, MacLabelled, MacSlots};

/// The name of the table.
pub(crate) const TABLE: &str = "in_force";

/// The table. Only one process has it at a time: the one that holds the pins.
pub(crate) struct InForce(Table<u32, MacInForce>);

impl InForce {
    pub(crate) fn of(object: &Object) -> Result<Self, KernelError> {
        Ok(Self(object.table(TABLE)?))
    }

    fn now(&self) -> Result<MacInForce, KernelError> {
        Ok(self.0.get(&0)?.unwrap_or(MacInForce::zeroed()))
    }

    /// Changes parts of the table. Programs see each word as before or as afterwards, in any order.
    fn change(&self, change: impl FnOnce(&mut MacInForce)) -> Result<(), KernelError> {
        let former = self.now()?;
        let mut next = former;
        change(&mut next);
        if next == former {
            return Ok(());
        }
        self.0.set(&0, &next)
    }

    /// The slots of the modules in force.
    pub(crate) fn enabled(&self) -> Result<MacSlots, KernelError> {
        Ok(self.now()?.enabled)
    }

    pub(crate) fn enable(&self, slots: MacSlots) -> Result<(), KernelError> {
        self.change(|now| now.enabled = slots)
    }

    /// Notes that the modules in these slots declare these entry points.
    pub(crate) fn declare(
        &self,
        points: &[EntryPoint],
        slots: MacSlots,
    ) -> Result<(), KernelError> {
        self.change(|now| {
            for point in points {
                now.declared[*point as usize] |= slots;
            }
        })
    }

    /// Notes that the modules in these slots declare nothing. Returns the entry points that other modules
    /// declare.
    pub(crate) fn withdraw(&self, slots: MacSlots) -> Result<Vec<EntryPoint>, KernelError> {
        self.change(|now| {
            for declared in &mut now.declared {
                *declared &= !slots;
            }
        })?;
        let now = self.now()?;
        let points = EntryPoint::all();
        Ok(points
            .filter(|point| now.declared[*point as usize] != MacSlots::NONE)
            .collect())
    }

    /// The modules with labels that are in force.
    pub(crate) fn labelled(&self) -> Result<MacLabelled, KernelError> {
        Ok(self.now()?.labelled)
    }

    /// A place in the order of loading that no module has had.
    pub(crate) fn next_order(&self) -> Result<u64, KernelError> {
        self.change(|now| now.labelled.last_order += 1)?;
        Ok(self.labelled()?.last_order)
    }

    /// Sets which modules with labels are in force, but not the last order that was given. The new order is
    /// written last: a file's label that is read under that order then has the elements of all these modules.
    pub(crate) fn label(&self, labelled: MacLabelled) -> Result<(), KernelError> {
        self.change(|now| {
            now.labelled = MacLabelled {
                order: now.labelled.order,
                last_order: now.labelled.last_order,
                ..labelled
            };
        })?;
        self.change(|now| now.labelled.order = labelled.order)
    }

    /// Notes which devices may be multilabel, before any of them is.
    pub(crate) fn note_devices(
        &self,
        devices: impl Iterator<Item = u32>,
    ) -> Result<(), KernelError> {
        self.change(|now| now.multilabel |= bits(devices))
    }

    /// Notes that only these devices may be multilabel, once no other one is.
    pub(crate) fn keep_devices(
        &self,
        devices: impl Iterator<Item = u32>,
    ) -> Result<(), KernelError> {
        self.change(|now| now.multilabel = bits(devices))
    }

    /// Permits sockets of these families to processes with a level.
    pub(crate) fn permit_families(&self, families: &BTreeSet<u32>) -> Result<(), KernelError> {
        self.change(|now| now.families = family_bits(families))
    }
}

/// The bits of families of sockets, as in `families` of [`MacInForce`].
fn family_bits(families: &BTreeSet<u32>) -> u64 {
    let known = families.iter().filter(|family| **family < u64::BITS);
    known.fold(0, |bits, family| bits | 1 << family)
}

/// The bits of devices, as in `multilabel` of [`MacInForce`].
fn bits(devices: impl Iterator<Item = u32>) -> u64 {
    devices.fold(0, |bits, device| bits | 1 << (device % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_the_bit_of_its_number() {
        assert_eq!(
            family_bits(&BTreeSet::from([0, 17, 63, 64])),
            1 << 63 | 1 << 17 | 1
        );
    }

    #[test]
    fn a_device_has_the_bit_of_its_number_modulo_64() {
        assert_eq!(bits([].into_iter()), 0);
        assert_eq!(bits([8 << 20 | 1, 64, 63].into_iter()), 1 << 63 | 0b11);
    }
}
