//! Services for the module `ubns`, which decides by the `service` blocks of a policy.
//!
//! A process of a service has the service's name as its element of `ubns`. The module decides who binds a
//! service's port, where its processes connect, and who uses its listening sockets, its labelled files and
//! its processes. docs/adr/0081-services-as-a-module.md has the reasons.

use std::net::IpAddr;

use usher_bpf::Plain;

use crate::shared::{
    MAC_DESTINATIONS, MAC_SERVICE_NAME, MAC_SERVICES, MacAddress, MacDestination, MacService,
    MacUbns,
};
use crate::{Error, ServiceMistake};

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

const _: () = assert!(MAX_SERVICES == MAC_SERVICES as usize);
const _: () = assert!(MAX_DESTINATIONS == MAC_DESTINATIONS as usize);

pub(crate) fn encode(services: &[ServiceSettings]) -> Result<MacUbns, Error> {
    if services.len() > MAX_SERVICES {
        return Err(Error::TooManyServices(services.len()));
    }
    let lists = services.iter().filter_map(|one| one.connect.as_ref());
    let destinations: usize = lists.map(Vec::len).sum();
    if destinations > MAX_DESTINATIONS {
        return Err(Error::TooManyDestinations(destinations));
    }
    let mut encoded = MacUbns::zeroed();
    let mut place = 0;
    for (entry, service) in encoded.services.iter_mut().zip(services) {
        let wrong = |what| Error::Service {
            service: service.name.clone(),
            what,
        };
        *entry = self::service(service).map_err(wrong)?;
        entry.destination = place;
        for destination in service.connect.iter().flatten() {
            encoded.destinations[place as usize] = self::destination(destination).map_err(wrong)?;
            place += 1;
        }
        entry.destinations = place - entry.destination;
        encoded.count += 1;
    }
    Ok(encoded)
}

fn service(service: &ServiceSettings) -> Result<MacService, ServiceMistake> {
    let name = service.name.as_bytes();
    // A zero ends the element's name.
    if name.is_empty() || name.len() >= MAC_SERVICE_NAME as usize {
        return Err(ServiceMistake::Name);
    }
    if service.port == 0 {
        return Err(ServiceMistake::Port);
    }
    if service.account == Some(0) {
        return Err(ServiceMistake::Root);
    }
    let mut entry = MacService::zeroed();
    entry.name[..name.len()].copy_from_slice(name);
    entry.port = service.port.into();
    entry.account = service.account.unwrap_or(0);
    entry.has_destinations = service.connect.is_some().into();
    Ok(entry)
}

fn destination(destination: &DestinationRange) -> Result<MacDestination, ServiceMistake> {
    let DestinationRange { first, last, ports } = *destination;
    if first.is_ipv4() != last.is_ipv4() || first > last || ports.0 > ports.1 {
        return Err(ServiceMistake::Destination);
    }
    Ok(MacDestination {
        first: address(first),
        last: address(last),
        first_port: ports.0.into(),
        last_port: ports.1.into(),
        is_ipv4: first.is_ipv4().into(),
        reserved: 0,
    })
}

fn address(address: IpAddr) -> MacAddress {
    let number = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    MacAddress {
        high: (number >> 64) as u64,
        low: number as u64,
    }
}
