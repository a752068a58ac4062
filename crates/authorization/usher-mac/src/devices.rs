//! Devices of file systems, and the kernel's own numbers of them (MKDEV of linux/kdev_t.h).

use crate::Error;

/// Bits of the minor number.
const MINOR_BITS: u32 = 20;

/// The device of a file system: major and minor number.
pub type Device = (u32, u32);

/// The kernel's own number of a device.
///
/// # Errors
/// [`Error::Device`] if the kernel has no such device.
pub(crate) fn device_number((major, minor): Device) -> Result<u32, Error> {
    if major >> (u32::BITS - MINOR_BITS) != 0 || minor >> MINOR_BITS != 0 {
        return Err(Error::Device(major, minor));
    }
    Ok(major << MINOR_BITS | minor)
}

/// The device with this number.
pub(crate) fn device_of(number: u32) -> Device {
    (number >> MINOR_BITS, number & ((1 << MINOR_BITS) - 1))
}
