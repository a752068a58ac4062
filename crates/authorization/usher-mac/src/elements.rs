//! Elements by their numbers, from the framework's tables.

use usher_bpf::zerocopy::IntoBytes;
use usher_bpf::{KernelError, Pins, Table};
use usher_label::Label;

use crate::Error;
use crate::shared::{MacModule, MacNumbered};

pub(crate) const UNREADABLE: KernelError = KernelError::UnreadableEntry("elements");

/// The tables of elements.
#[derive(Debug)]
pub(crate) struct Elements {
    elements: Table<u32, MacNumbered>,
    modules: Table<u32, MacModule>,
}

impl Elements {
    /// Opens the tables below these pins.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::MissingPart`] for a table that is not there.
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            elements: pins.required_table("elements")?,
            modules: pins.required_table("modules")?,
        })
    }

    /// The module in a slot.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn module(&self, slot: u32) -> Result<Option<MacModule>, Error> {
        Ok(self.modules.get(&slot)?)
    }

    /// The element of a number, as a label; an empty one if its module was unloaded.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::UnreadableEntry`] for an element of another version.
    pub(crate) fn of(&self, number: u32) -> Result<Label, Error> {
        let Some(numbered) = self.elements.get(&number)? else {
            return Ok(Label::default());
        };
        let module = self.module(numbered.slot)?;
        let module = module.filter(|module| module.order == numbered.order);
        let Some(module) = module else {
            return Ok(Label::default());
        };
        let bytes = numbered.element.as_bytes().try_into();
        let bytes = bytes.map_err(|_| UNREADABLE)?;
        Ok(Label::from_kernel(&module.name, bytes).map_err(|_| UNREADABLE)?)
    }
}
