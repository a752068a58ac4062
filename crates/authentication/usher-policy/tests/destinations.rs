//! The destinations of a service's processes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use usher_policy::{
    AddressRange, Destination, DestinationTable, Destinations, MAXIMUM_DESTINATION_TABLE,
    MAXIMUM_DESTINATIONS, Origin, Peers, PortRange, Source, parse_policy,
};

const HOSTS: &str = "host a { address 10.0.0.1, fd00::1; \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\"; }";

fn source(connect: &str) -> [Source; 1] {
    let text = format!(
        "{HOSTS} users u {{ member alice; }} service s {{ program \"/x\"; listen 143; users u; \
         hosts any; style user; connect {connect}; }}"
    );
    let name = "s.policy".to_owned();
    [Source { name, text }]
}

fn destinations(connect: &str) -> Destinations {
    let policy = parse_policy(&source(connect)).expect("a correct policy");
    let service = policy.services.into_values().next().expect("a service");
    service.connect.expect("a `connect`")
}

fn mistakes(connect: &str) -> Vec<String> {
    let errors = parse_policy(&source(connect)).expect_err("a mistake");
    errors.iter().map(|error| error.kind.to_string()).collect()
}

#[test]
fn hosts_networks_ranges_and_ports_are_what_is_permitted() {
    let permitted = destinations("a port 25, 192.0.2.0/30 port 1-9, 198.51.100.1 - 198.51.100.3");
    let permits = |text: &str| {
        let to: std::net::SocketAddr = text.parse().expect("an address");
        permitted.permits(to.ip(), to.port())
    };
    for yes in [
        "10.0.0.1:25",
        "[::ffff:10.0.0.1]:25",
        "[fd00::1]:25",
        "192.0.2.3:9",
        "198.51.100.2:0",
    ] {
        assert!(permits(yes), "{yes}");
    }
    for no in [
        "10.0.0.1:26",
        "10.0.0.2:25",
        "[fd00::2]:25",
        "192.0.2.4:9",
        "192.0.2.3:10",
        "198.51.100.0:1",
        "198.51.100.4:1",
        "[::a00:1]:25",
    ] {
        assert!(!permits(no), "{no}");
    }
}

#[test]
fn nowhere_and_everywhere() {
    let (nowhere, v4, v6) = (
        destinations("none"),
        destinations("0.0.0.0/0"),
        destinations("::/0"),
    );
    let ask = |text: &str| {
        let address: IpAddr = text.parse().expect("an address");
        [&nowhere, &v4, &v6].map(|destinations| destinations.permits(address, 80))
    };
    assert_eq!(ask("192.0.2.1"), [false, true, false]);
    assert_eq!(ask("::ffff:192.0.2.1"), [false, true, false]);
    assert_eq!(ask("fd00::1"), [false, false, true]);
    // The kernel takes these addresses of zeros for addresses of this host.
    for zero in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
        assert_eq!(ask(zero), [false; 3]);
    }
}

#[test]
fn as_many_entries_as_there_is_room_for_and_no_more() {
    let list = |number: usize| {
        let entries = (0..number).map(|number| format!("10.{}.{}.1", number / 256, number % 256));
        entries.collect::<Vec<_>>().join(", ")
    };
    let full = destinations(&list(MAXIMUM_DESTINATIONS));
    assert_eq!(full.table().size(), MAXIMUM_DESTINATIONS + 1);
    let found = MAXIMUM_DESTINATIONS + 1;
    let expected = format!("`connect` has {found} entries, more than {MAXIMUM_DESTINATIONS}");
    assert_eq!(mistakes(&list(found)), [expected]);

    // The widest ranges that need the most prefixes.
    let fine = |number: usize| {
        let entry =
            |number| format!("{number:x}::1 - {number:x}:ffff:ffff:ffff:ffff:ffff:ffff:fffe");
        let entries = (1..=number).map(|number| entry(0x1000 + number));
        entries.collect::<Vec<_>>().join(", ")
    };
    let size = |number: usize| number * 222 + 1;
    let most = (MAXIMUM_DESTINATION_TABLE - 1) / 222;
    assert_eq!(destinations(&fine(most)).table().size(), size(most));
    let found = size(most + 1);
    let expected = format!(
        "`connect` takes {found} entries of the kernel's table, more than \
         {MAXIMUM_DESTINATION_TABLE}"
    );
    assert_eq!(mistakes(&fine(most + 1)), [expected]);
}

/// The addresses of IPv6 that stand for IPv4 lie in the middle of a range, and are not in it.
#[test]
fn a_range_around_mapped_addresses_is_of_ipv6_alone() {
    let around = destinations("::fffe:ffff:fff0 - ::1:0:0:f port 1, ::fffe:ffff:fff0/124");
    let table = around.table();
    assert!(
        table.networks.iter().all(|(first, ..)| first.is_ipv6()),
        "{table:?}"
    );
    for address in ["255.255.255.255", "0.0.0.1", "::ffff:1.2.3.4"] {
        let address = address.parse().expect("an address");
        assert!(!around.permits(address, 1) && !looked_up(&table, address, 1));
    }
    let beyond = "::1:0:0:f".parse().expect("an address");
    assert!(around.permits(beyond, 1) && looked_up(&table, beyond, 1));
}

/// The answer of a kernel that looks up the longest prefix.
fn looked_up(table: &DestinationTable, address: IpAddr, port: u16) -> bool {
    let address = address.to_canonical();
    let mut networks = table.networks.iter();
    let found = networks.find(|(first, length, _)| match (first, address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => {
            let different = u32::from(*first) ^ u32::from(address);
            different.leading_zeros() >= *length
        }
        (IpAddr::V6(first), IpAddr::V6(address)) => {
            let different = u128::from(*first) ^ u128::from(address);
            different.leading_zeros() >= *length
        }
        _ => false,
    });
    !address.is_unspecified()
        && found.is_some_and(|(_, _, ports)| {
            let mut ports = table.ports[*ports].iter();
            ports.any(|(first, length)| (first ^ port).leading_zeros() >= *length)
        })
}

/// Addresses of which many are near each other, and some at the ends of all.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = (
        prop::sample::select(vec![0_u32, 0x0a00_0000, u32::MAX - 40]),
        0..40_u32,
    )
        .prop_map(|(base, offset)| Ipv4Addr::from(base + offset).into());
    let bases = vec![
        0_u128,
        0xfd00 << 112,
        u128::MAX - 40,
        0xffff_0000_0000 - 20,
        1 << 48,
    ];
    let v6 = (prop::sample::select(bases), 0..40_u128)
        .prop_map(|(base, offset)| Ipv6Addr::from(base + offset).into());
    prop_oneof![v4, v6]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![0..12_u16, 65_530..=u16::MAX]
}

fn destination() -> impl Strategy<Value = Destination> {
    let ports = prop::option::of((port(), port()).prop_map(|(one, other)| PortRange {
        first: one.min(other),
        last: one.max(other),
    }));
    (vec((address(), address()), 1..4), ports).prop_map(|(pairs, ports)| {
        let ranges = pairs
            .into_iter()
            .filter_map(|(one, other)| AddressRange::new(one.min(other), one.max(other)));
        let mut addresses: Vec<AddressRange> = ranges.collect();
        addresses.push(IpAddr::from([10, 0, 0, 1]).into());
        Destination {
            peers: Peers::Range(addresses[0]),
            addresses,
            ports,
            origin: Origin::default(),
        }
    })
}

proptest! {
    #[test]
    fn the_table_permits_what_the_entries_permit(
        entries in vec(destination(), 0..6),
        asked in vec((address(), port()), 100),
    ) {
        let destinations = Destinations { entries };
        let table = destinations.table();
        for (address, port) in asked {
            prop_assert_eq!(
                looked_up(&table, address, port),
                destinations.permits(address, port),
                "{} {} {:?}", address, port, destinations
            );
        }
    }

    /// Exactly the entries that warnings name can be removed without a difference.
    #[test]
    fn what_is_needless_is_so_exactly(entries in vec(destination(), 1..6)) {
        // Single ranges, as text has them.
        let single = |entry: Destination| Destination {
            addresses: vec![entry.addresses[0]],
            ..entry
        };
        let unspecified = |entry: &Destination| entry.addresses[0].last().is_unspecified();
        let port_zero = |entry: &Destination| entry.ports.is_some_and(|ports| ports.first == 0);
        let entries: Vec<Destination> = entries
            .into_iter()
            .map(single)
            .filter(|entry| !unspecified(entry) && !port_zero(entry))
            .collect();
        prop_assume!(!entries.is_empty());
        let whole = Destinations { entries };
        let policy = parse_policy(&source(&whole.to_string())).expect("a correct policy");
        let mut told = Vec::new();
        for warning in policy.warnings() {
            let told_of = warning.to_string();
            if let Some((place, _)) = told_of.split_once("` adds nothing to `connect`") {
                let (place, destination) = place.split_once(": `").expect("a place");
                let column: usize = place.rsplit(':').next().expect("a column").parse().expect("a number");
                told.push((column, destination.to_owned()));
            }
        }
        let read = &policy.services.values().next().expect("a service").connect;
        let read = read.as_ref().expect("a `connect`");
        prop_assert_eq!(read, &whole);
        let is_told = |entry: &&Destination| told.iter().any(|(column, _)| *column == entry.origin.place.column);
        let needed = Destinations { entries: read.entries.iter().filter(|entry| !is_told(entry)).cloned().collect() };
        prop_assert_eq!(needed.table(), whole.table());
        for index in 0..needed.entries.len() {
            let mut fewer = needed.clone();
            fewer.entries.remove(index);
            prop_assert_ne!(fewer.table(), needed.table());
        }
    }
}
