//! Ends what a process that has ended left in force. Loads nothing.

use std::path::Path;

use usher_bpf::{Pins, Table, exists};

use crate::error::IpsecError;
use crate::marks::MarkMask;
use crate::shared::IpsecState;
use crate::spd::Spd;
use crate::sysctls::Sysctls;

/// The table of the generation and the mask in force.
pub(crate) const STATE: &str = "state";

/// The removed objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Released {
    /// The number of pinned tables and links.
    pub pins: usize,
    /// The number of entries of the SPD.
    pub spd_entries: usize,
    /// True if the sysctls have their former values again.
    pub sysctls: bool,
}

/// Removes the monitor that is pinned at `pins`, and the entries of the SPD with its mask in the
/// caller's network namespace. `mask` is used where no monitor is pinned. Sets the sysctls to their
/// former values in the file `record`. Then nothing is governed. Missing objects are no error, so it may
/// be called repeatedly.
///
/// The monitor ends last, and at once. If the release is interrupted before, the monitor still drops
/// traffic that the SPD no longer protects.
///
/// # Errors
/// [`KernelError::InUse`](usher_bpf::KernelError::InUse) while a process has protection in force, before
/// anything has changed. Otherwise the first error; the rest may still be in force.
pub fn release(pins: &Path, record: &Path, mask: MarkMask) -> Result<Released, IpsecError> {
    let mut released = Released::default();
    // The lock is held until the end.
    let pins = exists(pins)?.then(|| Pins::lock(pins)).transpose()?;
    // The mask also counts without a policy in force: a process enters the SPD's entries first, and may
    // have died before the policy.
    let of_state = pins.as_ref().and_then(state).map(|state| state.mask);
    let mask = of_state.and_then(MarkMask::new).unwrap_or(mask);
    released.spd_entries = match Spd::open(mask) {
        Ok(mut spd) => spd.clear()?,
        Err(error) if has_no_ipsec(&error) => 0,
        Err(error) => return Err(error),
    };
    if let Some(pins) = &pins {
        released.pins = end_monitor(pins)?;
    }
    if let Some(sysctls) = Sysctls::left(record)? {
        sysctls.restore()?;
        released.sysctls = true;
    }
    pins.map_or(Ok(()), Pins::remove_folder)?;
    Ok(released)
}

/// Ends a pinned monitor. Returns the number of its pins. Links are removed one after the other. So one
/// write ends the policy for all programs first; then a program that is still attached lets everything
/// pass.
pub(crate) fn end_monitor(pins: &Pins) -> Result<usize, IpsecError> {
    if let Some((table, state)) = state_table(pins) {
        let ended = IpsecState {
            generation: 0,
            ..state
        };
        table.set(&0, &ended)?;
    }
    Ok(pins.remove()?)
}

/// The mask with which a monitor that is pinned there has protection in force.
pub(crate) fn mask_in_force(pins: &Pins) -> Option<MarkMask> {
    let state = state(pins)?;
    MarkMask::new(state.mask).filter(|_| state.generation != 0)
}

/// The state of a pinned monitor. A table of another version counts as none, because only that version
/// knows what it means.
fn state(pins: &Pins) -> Option<IpsecState> {
    Some(state_table(pins)?.1)
}

/// The table with the state, and the state.
fn state_table(pins: &Pins) -> Option<(Table<u32, IpsecState>, IpsecState)> {
    let table = pins.table(STATE).ok().flatten()?;
    let state = table.get(&0).ok().flatten()?;
    Some((table, state))
}

/// Returns whether this kernel has no IPsec, and so no entries.
fn has_no_ipsec(error: &IpsecError) -> bool {
    const MISSING: i32 = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();
    matches!(error, IpsecError::Netlink { error, .. } if error.raw_os_error() == Some(MISSING))
}
