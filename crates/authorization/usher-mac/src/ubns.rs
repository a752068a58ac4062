//! Services for the module `ubns`, which decides by the `service` blocks of a policy.
//!
//! A process of a service has the service's name as its element of `ubns`. The module decides who binds a
//! service's port, where its processes connect, and who uses its listening sockets, its labelled files and
//! its processes. docs/adr/0081-services-as-a-module.md has the reasons.

use std::net::IpAddr;

/// Limit of services.
pub const MAX_SERVICES: usize = 512;
/// Limit of the destinations of all services together.
pub const MAX_DESTINATIONS: usize = 1024;

/// A service of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSettings {
    /// Its name, the element of its processes: 1 to 63 bytes.
    pub name: String,
    /// The TCP port at which users reach it. Only root and its account bind it.
    pub port: u16,
    /// The number of the account that its processes run as, never 0; none: the keeper starts them, as users.
    pub account: Option<u32>,
    /// Where its processes connect, and nowhere else; none: anywhere.
    pub connect: Option<Vec<DestinationRange>>,
}

/// Addresses with ports, to which a process of a service connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationRange {
    /// The first address.
    pub first: IpAddr,
    /// The last one, of the same family. Addresses of IPv4 are never written as IPv6.
    pub last: IpAddr,
    /// The first and the last port.
    pub ports: (u16, u16),
}
