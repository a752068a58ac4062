//! Settings of the module `ifoff`: network interfaces that are silent, as FreeBSD's mac_ifoff(4) has it.

use std::collections::BTreeMap;

use usher_bpf::Plain;

use crate::Error;
use crate::shared::{MAC_SWITCHES, MacIfoff};

/// Limit of the interfaces that have a switch of their own.
pub const MAX_SWITCHES: usize = MAC_SWITCHES as usize;

/// Which interfaces are on. Default: FreeBSD's, which silences all but `lo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilenceSettings {
    /// `lo` is on, in every network namespace.
    pub loopback: bool,
    /// Interfaces without a switch are on, in every network namespace.
    pub others: bool,
    /// Packet sockets receive by silent interfaces, too.
    pub capture: bool,
    /// Interfaces by name, on or not: at most [`MAX_SWITCHES`].
    pub interfaces: BTreeMap<String, bool>,
    /// The network namespace that has these interfaces: the inode of `/proc/PID/ns/net`.
    pub network: u32,
}

impl Default for SilenceSettings {
    fn default() -> Self {
        Self {
            loopback: true,
            others: false,
            capture: false,
            interfaces: BTreeMap::new(),
            network: 0,
        }
    }
}

impl SilenceSettings {
    /// Whether no interface is silent.
    fn silences_none(&self) -> bool {
        self.loopback && self.others && self.interfaces.values().all(|is_on| *is_on)
    }
}

/// Settings as the module reads them.
pub(crate) fn encode(settings: &SilenceSettings) -> Result<MacIfoff, Error> {
    if settings.interfaces.len() > MAX_SWITCHES {
        return Err(Error::TooManySwitches(settings.interfaces.len()));
    }
    let mut encoded = MacIfoff::zeroed();
    encoded.network = settings.network;
    encoded.loopback = settings.loopback.into();
    encoded.others = settings.others.into();
    encoded.captures = (settings.capture || settings.silences_none()).into();
    for (place, (name, is_on)) in encoded.switches.iter_mut().zip(&settings.interfaces) {
        // The zero that ends a name is one of its bytes.
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
