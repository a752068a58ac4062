//! The labels of new files, for the labeller, which writes them into attributes: from the framework's tables.

use std::os::fd::{AsRawFd, BorrowedFd};

use usher_bpf::{Pins, Table};
use usher_label::Label;

use crate::Error;
use crate::elements::{Elements, UNREADABLE};
use crate::shared::{MAC_FILE_NEW, MacFileLabel};

/// The tables with the labels of new files.
#[derive(Debug)]
pub struct NewFileLabels {
    /// The key is a descriptor.
    files: Table<u32, MacFileLabel>,
    elements: Elements,
}

impl NewFileLabels {
    /// Opens the tables below these pins.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::MissingPart`] for a table that is not there.
    pub fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            files: pins.required_table("files")?,
            elements: Elements::open(pins)?,
        })
    }

    /// The label of a new file, which is open, perhaps only with O_PATH. `None`: the file is not new, or the
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
                .with(&self.elements.of(*number)?)
                .map_err(|_| UNREADABLE)?;
        }
        Ok((!label.is_empty()).then_some(label))
    }
}
