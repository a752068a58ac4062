//! The labels of network interfaces, as far as the framework's modules have elements of them.

use std::collections::BTreeMap;

use usher_label::Label;

use super::Framework;
use crate::shared::{MAC_NONE, MacModule};
use crate::{Error, interfaces};

impl Framework {
    /// Adds a module's elements to the labels of interfaces when the module comes into force.
    pub(super) fn label_interfaces(
        &self,
        mut loaded: Vec<(u32, MacModule)>,
        fresh: (u32, MacModule),
    ) -> Result<(), Error> {
        if fresh.1.label == MAC_NONE {
            return Ok(());
        }
        loaded.push(fresh);
        self.interfaces.add(&self.pins, &loaded)
    }

    /// Replaces the labels of network interfaces at once. These are interfaces of this process's network
    /// namespace, by name, whether they exist or not; all others have none. A module that is loaded later has
    /// its elements of them when it comes into force.
    ///
    /// # Errors
    /// [`Error::TooManyInterfaces`], [`Error::Interface`] for a value that its module does not have, or the
    /// kernel's error. The former labels are in force then.
    pub fn set_interfaces(&mut self, labels: &BTreeMap<String, Label>) -> Result<(), Error> {
        let modules = self.in_slots()?;
        self.interfaces.set(&self.pins, &modules, labels)
    }

    /// Checks whether interfaces can have these labels, and changes nothing.
    ///
    /// # Errors
    /// As [`Framework::set_interfaces`], but for the kernel's.
    pub fn check_interfaces(&self, labels: &BTreeMap<String, Label>) -> Result<(), Error> {
        interfaces::elements(&self.in_slots()?, labels).map(drop)
    }

    /// The labels of interfaces that are in force: their elements of modules that are loaded.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn interfaces(&self) -> Result<BTreeMap<String, Label>, Error> {
        Ok(self.interfaces.in_force(&self.in_slots()?))
    }
}
