//! Programs that meet the packets of every network interface before the interface's other programs (tcx, kernel
//! 6.6), for good.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
pub use usher_bpf_ffi::InterfacePlace;

use crate::ingress::{Unattached, exists, interfaces};
use crate::pins::program_id;
use crate::pins::{open_pin, pin, unpin};
use crate::{KernelError, Pins};

/// The result of [`keep_at_interfaces`].
#[derive(Debug, Default)]
#[must_use]
pub struct AtInterfaces {
    /// Links have come or gone.
    pub is_changed: bool,
    /// The interfaces to which the program could not be attached.
    pub unattached: Vec<Unattached>,
}

/// Attaches a program for good to every interface of the caller's network namespace that does not have it: the links
/// are pinned. Call it repeatedly, because interfaces come and go. The program stays with an interface that is moved
/// into another network namespace. Pins of interfaces that are gone are removed.
///
/// # Errors
/// When the interfaces cannot be listed, or a pin cannot be made or removed.
pub fn keep_at_interfaces(
    name: &str,
    program: &OwnedFd,
    place: InterfacePlace,
    pins: &Pins,
) -> Result<AtInterfaces, KernelError> {
    let id = program_id(program)?;
    let mut done = AtInterfaces::default();
    // Only its pin keeps the link of an interface that is gone.
    for pin in links(name, pins)? {
        if is_gone(&pin)? {
            unpin(&pin)?;
            done.is_changed = true;
        }
    }
    for (index, interface) in interfaces()? {
        let attach = || {
            if usher_bpf_ffi::programs_at_interface(index, place)?.contains(&id) {
                return Ok(None);
            }
            usher_bpf_ffi::attach_at_interface(program.as_fd(), index, place).map(Some)
        };
        match attach() {
            Ok(None) => {}
            Ok(Some(link)) => {
                let place = pins.link(format_args!("{}{}", prefix(name), info(&link)?.id));
                pin(link.as_fd(), &place)?;
                done.is_changed = true;
            }
            // An interface that has vanished meanwhile does not count.
            Err(_) if !exists(index)? => {}
            Err(error) => done.unattached.push(Unattached {
                interface,
                error: KernelError::system("attach to an interface")(error),
            }),
        }
    }
    Ok(done)
}

/// Detaches a program that [`keep_at_interfaces`] has attached.
///
/// # Errors
/// The kernel's error; some interfaces may keep the program.
pub fn leave_interfaces(name: &str, pins: &Pins) -> Result<(), KernelError> {
    let links = links(name, pins)?;
    links.iter().try_for_each(|link| unpin(link))
}

/// Whether an interface has a program by [`keep_at_interfaces`].
///
/// # Errors
/// When the check fails.
pub fn is_kept_at_interfaces(name: &str, pins: &Pins) -> Result<bool, KernelError> {
    Ok(!links(name, pins)?.is_empty())
}

/// The beginning of the names of pinned links; the id of the link follows.
fn prefix(name: &str) -> String {
    format!("{name}_at_")
}

fn links(name: &str, pins: &Pins) -> Result<Vec<PathBuf>, KernelError> {
    pins.links(&prefix(name))
}

fn info(link: &OwnedFd) -> Result<LinkInfo, KernelError> {
    LinkInfo::from_fd(link.as_fd()).map_err(KernelError::bpf("read a link"))
}

/// Whether the interface of a pinned link is gone.
fn is_gone(pin: &Path) -> Result<bool, KernelError> {
    let info = info(&open_pin(pin)?)?.info;
    Ok(matches!(info, LinkTypeInfo::Tcx(tcx) if tcx.ifindex == 0))
}
