//! Services whose processes may connect only to some destinations.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, sockopt};
use usher_kernel::cgroup::Group;
use usher_kernel::destinations::{Destinations, Permitted};
use usher_policy::{Source, parse_policy};

use crate::world::World;

/// Two services.
pub const FIRST: u32 = 7;
pub const SECOND: u32 = 8;

pub fn open(world: &World) -> Destinations {
    Destinations::open(&world.pins, &world.cgroup).unwrap()
}

/// A group for a service's processes.
pub fn group(world: &World, name: &str) -> Group {
    let workers = Group::create(&world.cgroup, "workers").unwrap();
    Group::create(workers.path(), name).unwrap()
}

/// Moves this process into a group of a service.
pub fn enter(world: &World, destinations: &Destinations, name: &str, service: u32) -> Group {
    let group = group(world, name);
    destinations.govern(&group, service).unwrap();
    group.move_self().unwrap();
    group
}

/// The policy's rules for this `connect`.
pub fn rules(connect: &str) -> usher_policy::Destinations {
    let text = format!(
        "users u {{ }} service s {{ program \"/x\"; listen 143; users u; hosts any; style user; \
         connect {connect}; }}"
    );
    let name = "test.policy".to_owned();
    let policy = parse_policy(&[Source { name, text }]).unwrap();
    let service = policy.services.into_values().next().unwrap();
    service.connect.unwrap()
}

pub fn permitted(rules: &usher_policy::Destinations) -> Permitted {
    let table = rules.table();
    Permitted {
        networks: table.networks,
        ports: table.ports,
    }
}

/// Restricts exactly these services.
pub fn restrict(destinations: &Destinations, services: &[(u32, &str)]) {
    let services = services.iter();
    let services = services.map(|(service, connect)| (*service, permitted(&rules(connect))));
    let prepared = destinations.prepare(services).unwrap();
    destinations.apply(&prepared).unwrap();
    destinations.retain(&prepared).unwrap();
}

pub fn socket(family: AddressFamily, kind: SocketType, protocol: Option<Protocol>) -> OwnedFd {
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol).unwrap();
    if kind == SocketType::DGRAM {
        sockopt::set_socket_broadcast(&socket, true).unwrap();
    }
    socket
}

pub fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

pub fn code(outcome: rustix::io::Result<impl Sized>) -> i32 {
    outcome.map_or_else(|error| error.raw_os_error(), |_| 0)
}

/// An IPv4 address in its IPv6 form.
pub fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddrV6::new(ip.to_ipv6_mapped(), address.port(), 0, 0).into(),
        IpAddr::V6(_) => address,
    }
}

/// The errno of connecting by UDP; 0: connected.
pub fn udp(address: SocketAddr) -> i32 {
    let socket = socket(family(address), SocketType::DGRAM, None);
    code(rustix::net::connect(&socket, &address))
}

/// The errno of sending a packet by UDP.
pub fn send(address: SocketAddr) -> i32 {
    let socket = socket(family(address), SocketType::DGRAM, None);
    let flags = rustix::net::SendFlags::empty();
    code(rustix::net::sendto(&socket, b"x", flags, &address))
}

/// The errno of connecting by TCP.
pub fn tcp(address: SocketAddr) -> i32 {
    let socket = socket(family(address), SocketType::STREAM, None);
    code(rustix::net::connect(&socket, &address))
}
