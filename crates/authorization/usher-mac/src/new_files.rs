//! The labels of new files, for the labeller, which writes them into attributes: from the framework's tables.

use std::os::fd::{AsRawFd, BorrowedFd};

use usher_bpf::zerocopy::IntoBytes;
use usher_bpf::{KernelError, Pins, Table};
use usher_label::Label;

use crate::Error;
use crate::shared::{MAC_FILE_NEW, MacFileLabel, MacModule, MacNumbered};

const UNREADABLE: KernelError = KernelError::UnreadableEntry("elements");

/// The tables with the labels of new files.
#[derive(Debug)]
pub struct NewFileLabels {
    /// The key is a descriptor.
    files: Table<u32, MacFileLabel>,
    elements: Table<u32, MacNumbered>,
    modules: Table<u32, MacModule>,
}

impl NewFileLabels {
    /// Opens the tables that are pinned there.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::MissingPart`] for a table that is not there.
    pub fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            files: pins.required_table("files")?,
            elements: pins.required_table("elements")?,
            modules: pins.required_table("modules")?,
        })
    }

    /// The label of an open file that is new, and may be opened with O_PATH. `None`: the file is not new, or the
    /// kernel remembers no label of it.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::UnreadableEntry`] for an element of another version.
    pub fn of(&self, file: BorrowedFd<'_>) -> Result<Option<Label>, Error> {
        let descriptor = file.as_raw_fd().unsigned_abs();
        let stored = self.files.get_locked(&descriptor)?;
        let Some(stored) = stored.filter(|stored| stored.state == MAC_FILE_NEW) else {
            return Ok(None);
        };
        let mut label = Label::default();
        for number in stored.label.elements.iter().filter(|number| **number != 0) {
            // Within the limits: there are as many elements as modules, each within its own.
            label = label
                .with(&self.element(*number)?)
                .map_err(|_| UNREADABLE)?;
        }
        Ok((!label.is_empty()).then_some(label))
    }

    /// The element of a number, as a label; an empty one if its module was unloaded.
    fn element(&self, number: u32) -> Result<Label, Error> {
        let Some(numbered) = self.elements.get(&number)? else {
            return Ok(Label::default());
        };
        let module = self.modules.get(&numbered.slot)?;
        let module = module.filter(|module| module.order == numbered.order);
        let Some(module) = module else {
            return Ok(Label::default());
        };
        let bytes = numbered.element.as_bytes().try_into();
        let bytes = bytes.map_err(|_| UNREADABLE)?;
        Ok(Label::from_kernel(&module.name, bytes).map_err(|_| UNREADABLE)?)
    }
}
