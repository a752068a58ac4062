//! What `te` has noted beside its settings.

use usher_bpf::zerocopy::FromZeros;
use usher_bpf::{KernelError, Pins, Table};

use super::Framework;
use crate::Error;
use crate::module::SETTINGS;
use crate::shared::MacTe;
use crate::te::{self, Denials, TypeMistake};

/// The module.
const TE: &str = "te";

impl Framework {
    /// What `te` has refused since its settings came into force, and what it would have refused to permissive
    /// domains.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], or the kernel's error.
    pub fn type_denials(&self) -> Result<Denials, Error> {
        let place = Pins::lock(&self.folder(self.slot_of(TE)?))?;
        let place = place.required_table::<u32, u32>(SETTINGS)?;
        // The kernel returns the id of the inner table.
        let id = place.get(&0)?.filter(|id| *id != 0);
        let id = id.ok_or(KernelError::UnreadableEntry(SETTINGS))?;
        let mut settings = MacTe::new_box_zeroed().map_err(|_| TypeMistake::NoMemory)?;
        Table::<u32, MacTe>::of_id(SETTINGS, id)?.read_into(&0, &mut settings)?;
        Ok(te::denials(&settings))
    }
}
