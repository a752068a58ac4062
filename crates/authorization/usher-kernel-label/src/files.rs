//! Labels of files in the kernel's memory, for the labeller: from the framework's own tables, which only it may
//! open.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use usher_label::{ELEMENT_SIZE, Label};
use usher_system::maps::ReadOnlyMap;

use crate::layout::{
    FILE_LABEL, FILE_NEW, FILE_SIZE, FILE_STATE, MODULE_ORDER, MODULE_SIZE, NAME_SIZE,
    NUMBERED_ORDER, NUMBERED_SIZE, NUMBERED_SLOT,
};
use crate::shown::{element_of, unreadable};

/// The labels of new files.
#[derive(Debug)]
pub struct NewFileLabels {
    files: ReadOnlyMap,
    elements: ReadOnlyMap,
    modules: ReadOnlyMap,
}

impl NewFileLabels {
    /// Opens the tables in the folder of their owner. `None`: there are none.
    ///
    /// # Errors
    ///
    /// As open(2) and bpf(2).
    pub fn open(folder: &Path) -> io::Result<Option<Self>> {
        let map = |name: &str| {
            let path = folder.join(name);
            ReadOnlyMap::open(&CString::new(path.as_os_str().as_bytes())?)
        };
        let files = match map("files") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok(Some(Self {
            files,
            elements: map("elements")?,
            modules: map("modules")?,
        }))
    }

    /// The label of an open file that is new, and may be opened with O_PATH. `None`: the file is not new, or the
    /// kernel remembers no label of it.
    ///
    /// # Errors
    ///
    /// As bpf(2).
    pub fn of(&self, file: BorrowedFd<'_>) -> io::Result<Option<Label>> {
        let mut storage = [0; FILE_SIZE];
        let file = file.as_raw_fd().to_ne_bytes();
        if !self.files.look_up_locked(&file, &mut storage)?
            || storage[FILE_STATE] != FILE_NEW.to_ne_bytes()
        {
            return Ok(None);
        }
        let mut label = Label::default();
        let numbers = storage[FILE_LABEL].chunks_exact(4);
        for number in numbers.filter(|number| *number != [0; 4]) {
            if let Some(element) = self.element(number)? {
                // Within the limits: there are as many elements as modules, each within its own.
                label = label.with(&element).map_err(unreadable)?;
            }
        }
        Ok((!label.is_empty()).then_some(label))
    }

    /// The element of a number, as a label. `None`: its module was unloaded.
    fn element(&self, number: &[u8]) -> io::Result<Option<Label>> {
        let (mut entry, mut module) = ([0; NUMBERED_SIZE], [0; MODULE_SIZE]);
        let is_there = self.elements.look_up(number, &mut entry)?
            && self.modules.look_up(&entry[NUMBERED_SLOT], &mut module)?
            && module[MODULE_ORDER] == entry[NUMBERED_ORDER];
        match is_there {
            true => element_of(&module[..NAME_SIZE], &entry[..ELEMENT_SIZE]),
            false => Ok(None),
        }
    }
}
