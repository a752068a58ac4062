//! The notes that `te` keeps beside its settings.

use usher_bpf::KernelError;
use usher_bpf::zerocopy::FromZeros;

use super::Framework;
use crate::Error;
use crate::declaration::SETTINGS;
use crate::shared::MacTe;
use crate::te::{self, Denials, TypeMistake};

/// The module.
const TE: &str = "te";

impl Framework {
    /// The refusals of `te` since its settings came into force, and those that it would have made without
    /// `permissive`.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], or the kernel's error; [`KernelError::UnreadableEntry`] where another process,
    /// and not this one, has put the settings in force.
    pub fn type_denials(&self) -> Result<Denials, Error> {
        self.slot_of(TE)?;
        let notes = self.notes.as_ref();
        let notes = notes.ok_or(KernelError::UnreadableEntry(SETTINGS))?;
        let mut settings = MacTe::new_box_zeroed().map_err(|_| TypeMistake::NoMemory)?;
        notes.read_into(&0, &mut settings)?;
        Ok(te::denials(&settings))
    }
}
