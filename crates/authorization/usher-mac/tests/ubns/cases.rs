//! Processes, sockets and labels about which the module is asked.

use std::net::IpAddr;

use proptest::prelude::*;
use usher_mac::ubns::{DestinationRange, ServiceSettings};

use crate::{SETUID, SYS_ADMIN};

/// An element as the module sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    Nothing,
    Unknown,
    /// `-` is the element of objects that are no service's.
    Name(String),
}

impl Element {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, name): (u64, &str) = match self {
            Self::Nothing => (0, ""),
            Self::Name(name) => (4, name),
            Self::Unknown => (5, ""),
        };
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(name.as_bytes());
        bytes.resize(120, 0);
        bytes
    }

    pub fn service(&self) -> Option<&str> {
        match self {
            Self::Name(name) if name != "-" => Some(name),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Socket {
    pub family: u32,
    pub kind: u32,
    pub protocol: u32,
    pub address: IpAddr,
    pub port: u16,
    /// Without an address; of AF_UNSPEC; with one.
    pub named: u32,
}

impl Socket {
    pub fn is_internet(&self) -> bool {
        [2, 10].contains(&self.family)
    }

    /// As the framework hands it on.
    pub fn request(&self) -> Vec<u8> {
        let v6 = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let is_named = self.named == 2 || self.named == 1 && self.family == 2;
        let port = if is_named { self.port } else { 0 };
        let family = match self.named {
            2 if self.address.is_ipv4() => 2,
            2 => 10,
            _ => 0,
        };
        let mut bytes = words(&[self.family, self.kind, self.protocol, port.into()]);
        bytes.extend(if is_named { v6.octets() } else { [0; 16] });
        bytes.extend(words(&[family, 0]));
        bytes
    }
}

#[derive(Debug, Clone)]
pub struct Case {
    pub uid: u32,
    pub euid: u32,
    pub capabilities: u64,
    pub own: Element,
    pub object: Element,
    pub last: Element,
    pub socket: Socket,
    pub trace_mode: u32,
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Few names, so that equal ones are frequent; two of them differ in the last byte only.
fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "imap".to_owned(),
        "imaps".to_owned(),
        "n".to_owned(),
        format!("{}a", "x".repeat(31)),
        format!("{}b", "x".repeat(31)),
    ])
}

fn element() -> impl Strategy<Value = Element> {
    prop_oneof![
        3 => Just(Element::Nothing),
        1 => Just(Element::Unknown),
        1 => Just(Element::Name("-".into())),
        15 => name().prop_map(Element::Name),
    ]
}

fn address() -> impl Strategy<Value = IpAddr> {
    let few = [
        "0.0.0.0",
        "192.0.2.1",
        "192.0.2.9",
        "192.0.3.0",
        "255.255.255.255",
        "::",
        "::1",
        "::c000:201",
        "2001:db8::1",
        "2001:db8:0:1::",
        "2001:db8:0:1::9",
        "ffff::",
    ];
    prop::sample::select(few.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![1, 25, 26, 143, u16::MAX])
}

fn uid() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 7, 8, 1000])
}

fn destination() -> impl Strategy<Value = DestinationRange> {
    let ends = (address(), address()).prop_filter("two families", |(one, other)| {
        one.is_ipv4() == other.is_ipv4()
    });
    let ports = prop_oneof![Just((1, u16::MAX)), (port(), port())];
    (ends, ports).prop_map(|((one, other), (port, other_port))| DestinationRange {
        first: one.min(other),
        last: one.max(other),
        ports: (port.min(other_port), port.max(other_port)),
    })
}

pub fn services() -> impl Strategy<Value = Vec<ServiceSettings>> {
    let account = prop::option::of(prop::sample::select(vec![7, 8]));
    let connect = prop::option::weighted(0.8, prop::collection::vec(destination(), 0..4));
    let others = prop::collection::btree_map(name(), (account, connect), 0..=4);
    others.prop_map(|others| {
        // No two services have the same port.
        let ports = [143, 25, 26, 1];
        let services = others.into_iter().zip(ports);
        let services = services.map(|((name, (account, connect)), port)| ServiceSettings {
            name,
            port,
            account,
            connect,
        });
        services.collect()
    })
}

fn socket() -> impl Strategy<Value = Socket> {
    let family = prop::sample::select(vec![1, 2, 2, 10, 10, 33, 40]);
    let kind = prop::sample::select(vec![1, 2, 3]);
    let protocol = prop::sample::select(vec![0, 2, 6, 17, 132, 136, 262]);
    let mapped = |(address, as_mapped): (IpAddr, bool)| match address {
        IpAddr::V4(address) if as_mapped => address.to_ipv6_mapped().into(),
        other => other,
    };
    let address = (address(), any::<bool>()).prop_map(mapped);
    (
        family,
        kind,
        protocol,
        address,
        port(),
        prop::sample::select(vec![0, 1, 2, 2]),
    )
        .prop_map(|(family, kind, protocol, address, port, named)| Socket {
            family,
            kind,
            protocol,
            // The kernel takes an address of AF_UNSPEC for one of IPv4.
            address: match named {
                1 if address.is_ipv6() => IpAddr::from([192, 0, 2, 1]),
                _ => address,
            },
            port,
            named,
        })
}

pub fn case() -> impl Strategy<Value = Case> {
    let who = (uid(), uid(), any::<[bool; 2]>());
    let labels = (element(), element(), element());
    let modes = prop::sample::select(vec![1, 2, 9, 10, 17, 18]);
    (who, labels, socket(), modes).prop_map(|(who, labels, socket, trace_mode)| {
        let [setuid, admin] = who.2;
        Case {
            uid: who.0,
            euid: who.1,
            capabilities: [(setuid, SETUID), (admin, SYS_ADMIN)]
                .into_iter()
                .filter(|(has, _)| *has)
                .fold(0, |all, (_, bit)| all | bit),
            own: labels.0,
            object: labels.1,
            last: labels.2,
            socket,
            trace_mode,
        }
    })
}
