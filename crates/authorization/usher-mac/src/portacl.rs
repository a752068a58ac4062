//! Settings of the module `portacl`, as it reads them.

use usher_bpf::Plain;
use usher_mac_blocks::portacl::PortAcl;

use crate::shared::{MAC_PORT_TCP, MAC_PORT_UDP, MacPortRule, MacPortacl};
use crate::{Error, Names};

pub(crate) fn encode(settings: &PortAcl, names: &Names) -> Result<MacPortacl, Error> {
    let mut encoded = MacPortacl::zeroed();
    if settings.permits.len() > encoded.rules.len() {
        return Err(Error::TooManyPortRules(settings.permits.len()));
    }
    encoded.port_high = settings.port_high.into();
    encoded.suser_exempt = settings.suser_exempt.into();
    encoded.autoport_exempt = settings.autoport_exempt.into();
    for (place, permit) in encoded.rules.iter_mut().zip(settings.permits.keys()) {
        *place = MacPortRule {
            id: names.number(&permit.account, permit.is_group)?,
            is_group: permit.is_group.into(),
            protocol: if permit.is_udp {
                MAC_PORT_UDP
            } else {
                MAC_PORT_TCP
            },
            port: permit.port.into(),
        };
        encoded.count += 1;
    }
    Ok(encoded)
}
