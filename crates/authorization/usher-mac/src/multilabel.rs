//! The file systems whose files have labels of their own.

use std::collections::BTreeSet;

use usher_bpf::Pins;

use crate::Error;
use crate::in_force::InForce;

/// The table of their devices.
const TABLE: &str = "multilabel";

/// Has the files of these devices have labels of their own, and of no other: major and minor numbers.
///
/// # Errors
/// The kernel's error; some may have them then.
pub(crate) fn set(
    pins: &Pins,
    in_force: &InForce,
    devices: &BTreeSet<(u32, u32)>,
) -> Result<(), Error> {
    let table = pins.required_table::<u32, u32>(TABLE)?;
    // The kernel's own numbers of devices, which have 12 bits for the major one.
    let devices = devices.iter().map(|(major, minor)| major << 20 | minor);
    in_force.note_devices(devices.clone())?;
    table.assign(&devices.clone().map(|device| (device, 1)).collect())?;
    Ok(in_force.keep_devices(devices)?)
}
