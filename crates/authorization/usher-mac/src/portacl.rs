//! Settings of the module `portacl`: which users and groups bind which ports, as FreeBSD's mac_portacl(4) has
//! it.
//!
//! Ports up to [`port_high`](PortSettings::port_high) are bound by those whom a rule permits them; EPERM
//! refuses the others.

use usher_bpf::Plain;

use crate::Error;
use crate::shared::{MAC_PORT_RULES, MAC_PORT_TCP, MAC_PORT_UDP, MacPortRule, MacPortacl};

/// Limit of rules.
pub const MAX_PORT_RULES: usize = MAC_PORT_RULES as usize;

/// The settings. Default: FreeBSD's, without rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSettings {
    /// At most [`MAX_PORT_RULES`].
    pub rules: Vec<PortRule>,
    /// The module is about the ports up to this one.
    pub port_high: u16,
    /// Processes whose effective user is root bind every port.
    pub suser_exempt: bool,
    /// Everybody binds port 0, for which the kernel chooses one.
    pub autoport_exempt: bool,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            port_high: 1023,
            suser_exempt: true,
            autoport_exempt: true,
        }
    }
}

/// A port, and the processes that bind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRule {
    /// The processes.
    pub holder: PortHolder,
    /// Of which protocol the port is.
    pub protocol: PortProtocol,
    /// The port; 0: one that the kernel chooses.
    pub port: u16,
}

/// Processes of a user or a group, by its number in the initial user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortHolder {
    /// Those with this effective uid.
    User(u32),
    /// Those with this effective gid or supplementary group.
    Group(u32),
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortProtocol {
    /// TCP and MPTCP.
    Tcp,
    /// UDP and UDP-Lite.
    Udp,
}

/// Settings as the module reads them.
pub(crate) fn encode(settings: &PortSettings) -> Result<MacPortacl, Error> {
    if settings.rules.len() > MAX_PORT_RULES {
        return Err(Error::TooManyPortRules(settings.rules.len()));
    }
    let mut encoded = MacPortacl::zeroed();
    encoded.port_high = settings.port_high.into();
    encoded.suser_exempt = settings.suser_exempt.into();
    encoded.autoport_exempt = settings.autoport_exempt.into();
    for (place, rule) in encoded.rules.iter_mut().zip(&settings.rules) {
        let (id, is_group) = match rule.holder {
            PortHolder::User(id) => (id, 0),
            PortHolder::Group(id) => (id, 1),
        };
        *place = MacPortRule {
            id,
            is_group,
            protocol: match rule.protocol {
                PortProtocol::Tcp => MAC_PORT_TCP,
                PortProtocol::Udp => MAC_PORT_UDP,
            },
            port: rule.port.into(),
        };
        encoded.count += 1;
    }
    Ok(encoded)
}
