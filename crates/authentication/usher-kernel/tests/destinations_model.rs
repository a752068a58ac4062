//! The kernel's decision equals the policy's, at every address and port near the boundaries of
//! random rules.
//!
//! Threat model: A70

#[macro_use]
mod world;
mod destination;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use destination::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use usher_policy::{AddressRange, Destination, Origin, Peers, PortRange};
use world::*;

/// Bases for addresses, so that many are near each other: the lowest and the highest, the middle,
/// loopback, those that stand for IPv4 and those that look like it.
fn base() -> impl Strategy<Value = IpAddr> {
    let v4 = [
        "0.0.0.0",
        "10.0.0.0",
        "10.255.255.240",
        "127.255.255.250",
        "255.255.255.230",
    ];
    let v6 = [
        "::",
        "fd00::",
        "fd00::ffff:fff0",
        "::fffe:ffff:fff0",
        "::1:0:0:0",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffe0",
    ];
    let all = v4.into_iter().chain(v6).map(|text| text.parse().unwrap());
    prop::sample::select(all.collect::<Vec<IpAddr>>())
}

fn near(base: IpAddr, offset: u8) -> IpAddr {
    match base {
        IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).saturating_add(offset.into())).into(),
        IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).saturating_add(offset.into())).into(),
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    (base(), 0..32_u8).prop_map(|(base, offset)| near(base, offset))
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![1..20_u16, 1020..1030_u16, 65_520..=u16::MAX]
}

/// A network, or a narrow or wide range of addresses.
fn range() -> impl Strategy<Value = AddressRange> {
    let close = (base(), 0..32_u8, 0..32_u8)
        .prop_map(|(base, one, other)| (near(base, one.min(other)), near(base, one.max(other))));
    let wide = (address(), address());
    let network = (address(), 0..=128_u32).prop_map(|(address, length)| match address {
        IpAddr::V4(address) => {
            let free = u32::MAX.checked_shr(length % 33).unwrap_or(0);
            let first = u32::from(address) & !free;
            (
                Ipv4Addr::from(first).into(),
                Ipv4Addr::from(first | free).into(),
            )
        }
        IpAddr::V6(address) => {
            let free = u128::MAX.checked_shr(length).unwrap_or(0);
            let first = u128::from(address) & !free;
            (
                Ipv6Addr::from(first).into(),
                Ipv6Addr::from(first | free).into(),
            )
        }
    });
    prop_oneof![close, wide, network]
        .prop_filter_map("one family", |(one, other): (IpAddr, IpAddr)| {
            AddressRange::new(one.min(other), one.max(other))
        })
}

fn rule() -> impl Strategy<Value = Destination> {
    let ports = prop::option::of((port(), port()).prop_map(|(one, other)| PortRange {
        first: one.min(other),
        last: one.max(other),
    }));
    (range(), ports).prop_map(|(range, ports)| Destination {
        peers: Peers::Range(range),
        addresses: vec![range],
        ports,
        origin: Origin::default(),
    })
}

/// The boundaries of a rule and their neighbours.
fn edges(rule: &Destination) -> Vec<SocketAddr> {
    let addresses = rule.addresses.iter().flat_map(|range| {
        let step = |address: IpAddr, forth: bool| -> IpAddr {
            match (address, forth) {
                (IpAddr::V4(at), true) => Ipv4Addr::from(u32::from(at).saturating_add(1)).into(),
                (IpAddr::V4(at), false) => Ipv4Addr::from(u32::from(at).saturating_sub(1)).into(),
                (IpAddr::V6(at), true) => Ipv6Addr::from(u128::from(at).saturating_add(1)).into(),
                (IpAddr::V6(at), false) => Ipv6Addr::from(u128::from(at).saturating_sub(1)).into(),
            }
        };
        let (first, last) = (range.first(), range.last());
        [first, last, step(first, false), step(last, true)]
    });
    let (first, last) = rule
        .ports
        .map_or((1, u16::MAX), |ports| (ports.first, ports.last));
    let ports = [first, last, first.saturating_sub(1), last.saturating_add(1)];
    addresses
        .flat_map(|address| ports.map(|port| SocketAddr::new(address, port)))
        .collect()
}

tests! {
    fn the_kernel_permits_what_the_policy_permits(world) {
        // Every address has a route, so that only refused calls fail.
        run("ip", &["route", "add", "default", "dev", "lo"]);
        run("ip", &["-6", "route", "add", "default", "dev", "lo"]);
        let destinations = open(world);
        enter(world, &destinations, "s-1", FIRST);
        let cases = rounds(300);
        let strategy = (
            prop::collection::vec(rule(), 0..8),
            prop::collection::vec((address(), port()), 40),
        );
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let (yes, no) = (Cell::new(0_u64), Cell::new(0_u64));
        TestRunner::new(config)
            .run(&strategy, |(entries, asked)| {
                let rules = usher_policy::Destinations { entries };
                let prepared = destinations.prepare([(FIRST, permitted(&rules))]).unwrap();
                destinations.apply(&prepared).unwrap();
                let edges = rules.entries.iter().flat_map(edges);
                let asked = asked.into_iter().map(SocketAddr::from).chain(edges);
                // The kernel sends nothing to port 0.
                let asked = asked.filter(|address| address.port() != 0);
                for address in asked {
                    let expected = rules.permits(address.ip(), address.port());
                    for address in [address, mapped(address)] {
                        let connected = udp(address);
                        let sent = send(address);
                        for (what, outcome) in [("connect", connected), ("send", sent)] {
                            prop_assert_eq!(
                                outcome != libc::EACCES, expected,
                                "{} {}: {} by {}", what, address, outcome, rules
                            );
                        }
                        // A permitted connect succeeds.
                        if expected {
                            let other = [libc::EINVAL, libc::ENETUNREACH, libc::EADDRNOTAVAIL];
                            prop_assert!(connected == 0 || other.contains(&connected), "{} {}", address, connected);
                        }
                        let count = if expected { &yes } else { &no };
                        count.set(count.get() + 1);
                    }
                }
                Ok(())
            })
            .unwrap();
        eprintln!("{} permitted, {} refused", yes.get(), no.get());
        assert!(yes.get() > 5 * u64::from(cases) && no.get() > 5 * u64::from(cases));
        // Each address is asked for twice, and each refusal counted.
        assert_eq!(destinations.counters().unwrap().connect_refused, 2 * no.get());
    }
}
