//! Settings of the module `ifoff`, as it reads them.

use usher_bpf::Plain;
use usher_mac_blocks::ifoff::IfOff;

use crate::shared::MacIfoff;
use crate::{Error, Names};

/// Whether no interface is silent.
fn silences_none(settings: &IfOff) -> bool {
    settings.loopback && settings.others && settings.interfaces.values().all(|is_on| *is_on)
}

pub(crate) fn encode(settings: &IfOff, names: &Names) -> Result<MacIfoff, Error> {
    let mut encoded = MacIfoff::zeroed();
    if settings.interfaces.len() > encoded.switches.len() {
        return Err(Error::TooManySwitches(settings.interfaces.len()));
    }
    encoded.network = names.network;
    encoded.loopback = settings.loopback.into();
    encoded.others = settings.others.into();
    encoded.captures = (settings.capture || silences_none(settings)).into();
    for (place, (name, is_on)) in encoded.switches.iter_mut().zip(&settings.interfaces) {
        // The last byte of a name is the zero that ends it.
        let room = place.name.len() - 1;
        let of_name = place.name[..room].get_mut(..name.len());
        let of_name = of_name.filter(|of_name| !of_name.is_empty());
        of_name
            .ok_or_else(|| Error::InterfaceName(name.clone()))?
            .copy_from_slice(name.as_bytes());
        place.is_on = (*is_on).into();
        encoded.count += 1;
    }
    Ok(encoded)
}
