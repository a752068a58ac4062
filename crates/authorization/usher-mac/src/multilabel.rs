//! The file systems whose files have labels of their own.

use std::collections::BTreeSet;

use usher_bpf::Pins;

use crate::Error;

/// The table of their devices.
const TABLE: &str = "multilabel";

/// Has the files of these devices have labels of their own, and of no other: major and minor numbers.
///
/// # Errors
/// The kernel's error; some may have them then.
pub(crate) fn set(pins: &Pins, devices: &BTreeSet<(u32, u32)>) -> Result<(), Error> {
    let table = pins.required_table::<u32, u32>(TABLE)?;
    // The kernel's own numbers of devices, which have 12 bits for the major one.
    let wanted = devices
        .iter()
        .map(|(major, minor)| (major << 20 | minor, 1));
    Ok(table.assign(&wanted.collect())?)
}
