//! The entries that a policy needs, and their order.
//!
//! - A socket with a class mark, connected or accepted, finds the entry of its class.
//! - A socket with a signature as well, which has no peer yet, finds the entry for its application,
//!   its peer's network and the ports first, and falls back to the entry of its class.
//! - A socket without a mark, whose program no `application` block has, finds the entry of its
//!   destination, if that is a service that is reached over protected connections only
//!   (docs/adr/0057). So do packets without a socket, of TIME_WAIT for instance.
//!
//! Entries of signatures for all addresses are left out where the class says the same: the kernel
//! would compare each packet with all of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use usher_protection::{Class, Level, Tables};

use super::{Action, Entries, Entry, Selected};
use crate::marks::{BYPASS, DISCARD, MarkMask, reqid};
use crate::plan::{Application, Line};

/// The most lines of ports that a network may have.
pub(crate) const MOST_LINES: usize = 1024;

/// The first priority of our band; a lower number is looked at first.
pub(super) const FIRST: u32 = 30_000;
/// The host itself.
const OF_OWN: u32 = FIRST;
/// The lines of networks, the longest prefix first.
const OF_NETWORKS: u32 = OF_OWN + 1;
/// Peers that are held to a class.
const OF_HELD: u32 = OF_NETWORKS + 129 * MOST_LINES as u32;
/// The entries of classes.
const OF_CLASS: u32 = OF_HELD + 1;
pub(super) const LAST: u32 = OF_CLASS;

/// The entries for these applications, for peers that are held to a class, and for the host's own
/// addresses, which nothing protects.
pub(crate) fn wanted<'a>(
    tables: &Tables,
    applications: &[Application],
    held: impl IntoIterator<Item = &'a (Class, IpAddr)>,
    own: &BTreeSet<Ipv6Addr>,
    mask: MarkMask,
) -> Entries {
    let mut entries = Entries::new();
    // The answers of a listener take the mark of the SA, which is the mandatory one.
    let numbers = tables
        .classes
        .iter()
        .flat_map(|(class, level)| [class.mark(*level), class.mark(Level::Mandatory)]);
    for number in numbers.chain([DISCARD]) {
        for destination in everywhere() {
            let selected = of_class(destination, mask.numbered(number), mask);
            entries.insert(selected, of_number(number, OF_CLASS));
        }
    }
    entries.extend(
        held.into_iter()
            .map(|(class, peer)| of_held(*class, *peer, mask)),
    );
    let numbers = tables.classes.iter();
    let numbers = numbers.map(|(class, level)| class.mark(*level));
    for number in numbers.chain([BYPASS, DISCARD]) {
        for address in own {
            let own = IpAddr::from(*address).into();
            let selected = of_class(own, mask.numbered(number), mask);
            entries.insert(selected, of_number(BYPASS, OF_OWN));
        }
    }
    for application in applications {
        if application.signature != 0 {
            sign(&mut entries, application, mask);
        }
    }
    for destination in &tables.destinations {
        let out = Selected {
            remote_port: Some(destination.port),
            tcp: true,
            ..of_class(destination.peer.into(), 0, mask)
        };
        let number = destination.class.mark(Level::Mandatory);
        entries.insert(out, of_number(number, OF_CLASS));
        // A packet that an SA has protected has the mark of its class.
        let plain = Selected {
            inbound: true,
            ..out
        };
        entries.insert(plain, of_number(DISCARD, OF_CLASS));
    }
    entries
}

/// The entry of a peer that is held to a class.
pub(crate) fn of_held(class: Class, peer: IpAddr, mask: MarkMask) -> (Selected, Entry) {
    let mark = mask.class_mark(class, Level::Optional);
    let entry = of_number(class.mark(Level::Mandatory), OF_HELD);
    (of_class(peer.into(), mark, mask), entry)
}

/// Packets to these addresses with a class mark; 0: without one.
pub(crate) fn of_class(destination: IpNet, mark: u32, mask: MarkMask) -> Selected {
    Selected {
        inbound: false,
        destination,
        local_port: None,
        remote_port: None,
        tcp: false,
        mark,
        mark_bits: mask.class_bits(),
    }
}

/// The entries of an application's signature.
fn sign(entries: &mut Entries, application: &Application, mask: MarkMask) {
    let same = application.remaining(true) == application.remaining(false);
    for (network, lines) in &application.networks {
        // IPv4 packets of an IPv6 socket have the class of what remains for IPv6.
        let by_class = network.prefix_len() == 0 && (same || network.addr().is_ipv6());
        let length = 128 - u32::from(network.prefix_len());
        let first = OF_NETWORKS + length * MOST_LINES as u32;
        for (priority, line) in (first..).zip(lines) {
            if by_class && line.is_of_all_ports() {
                continue;
            }
            let selected = Selected {
                inbound: false,
                destination: network.trunc(),
                local_port: line.local,
                remote_port: line.remote,
                tcp: false,
                mark: mask.signed(application.signature),
                mark_bits: mask.signature_bits(),
            };
            entries.insert(selected, of_line(*line, priority));
        }
    }
}

/// The entry of a former signature for all addresses of a family: it passes what no other entry of the
/// signature selects.
pub(crate) fn of_former(everywhere: IpNet, signature: u16, mask: MarkMask) -> (Selected, Entry) {
    let selected = Selected {
        mark: mask.signed(signature),
        mark_bits: mask.signature_bits(),
        ..of_class(everywhere, 0, mask)
    };
    (selected, of_number(BYPASS, OF_HELD - 1))
}

fn of_line(line: Line, priority: u32) -> Entry {
    of_number(line.class, priority)
}

fn of_number(number: u8, priority: u32) -> Entry {
    let action = match (number, Class::of_mark(number)) {
        (BYPASS, _) => Action::Allow,
        (_, Some((class, level))) => Action::Protect {
            reqid: reqid(class),
            optional: level == Level::Optional,
        },
        (_, None) => Action::Block,
    };
    Entry {
        priority,
        action: Some(action),
    }
}

/// All addresses.
pub(crate) fn everywhere() -> [IpNet; 2] {
    let ipv4 = IpNet::from(IpAddr::from(Ipv4Addr::UNSPECIFIED));
    let ipv6 = IpNet::from(IpAddr::from(Ipv6Addr::UNSPECIFIED));
    [ipv4, ipv6].map(|all| IpNet::new_assert(all.addr(), 0))
}
