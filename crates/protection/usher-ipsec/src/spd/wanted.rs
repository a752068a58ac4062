//! The entries that a policy needs, and their order.
//!
//! - A socket with a class mark, connected or accepted, finds the entry of its class.
//! - A socket with a signature as well, which has no peer yet, finds the entry for its application,
//!   its peer's network and the ports first, and falls back to the entry of its class.
//! - A socket without a mark, whose program no `application` block has, finds the entry of its
//!   destination, if that is a service that is reached over protected connections only
//!   (docs/adr/0057). So do packets without a socket, of TIME_WAIT for instance.
//!
//! Only entries for single addresses of peers ask for SAs: the kernel keeps the packets that wait for
//! one in a queue of the entry, and makes an SA that waits for each address that is asked for. With
//! other addresses there can be no SAs, so the wide entries refuse what is mandatory and pass what is
//! optional (docs/adr/0088).
//!
//! Entries of signatures for all addresses are left out where the class says the same: the kernel
//! would compare each packet with all of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use usher_protection::{Class, Level, Tables};

use super::{Action, Entries, Entry, Selected};
use crate::marks::{BYPASS, DISCARD, MarkMask, reqid};
use crate::plan::{Application, Line, MOST_LINES};

/// Limit of entries for single peers, a kibibyte of the kernel's memory each. The classes get theirs
/// first, then one signature after the other. A class or signature without room keeps wide entries that
/// ask for SAs ([`asks_strangers`]): peers are protected all the same.
pub(crate) const MOST_OF_PEERS: usize = 131_072;

/// The first priority of our band; a lower number is looked at first.
pub(super) const FIRST: u32 = 30_000;
/// The host itself.
const OF_OWN: u32 = FIRST;
/// The lines of networks, the longest prefix first.
const OF_NETWORKS: u32 = OF_OWN + 1;
/// The entries of classes for peers, those that are held to a class among them.
const OF_PEER: u32 = OF_NETWORKS + 129 * MOST_LINES as u32;
/// Former signatures.
const OF_FORMER: u32 = OF_PEER + 1;
/// The entries of classes.
const OF_CLASS: u32 = OF_FORMER + 1;
pub(super) const LAST: u32 = OF_CLASS;

/// The entries for these applications, for peers that are held to a class, and for the host's own
/// addresses, which nothing protects.
pub(crate) fn wanted(
    tables: &Tables,
    applications: &[Application],
    held: &BTreeSet<(Class, IpAddr)>,
    own: &BTreeSet<Ipv6Addr>,
    mask: MarkMask,
) -> Entries {
    let mut entries = Entries::new();
    let mut room = MOST_OF_PEERS;
    let numbers = class_numbers(tables);
    let of_peers = numbers.len() * tables.peers.len();
    let only_peers = of_peers <= room;
    if only_peers {
        room -= of_peers;
    }
    for &number in numbers.iter().chain(&[DISCARD]) {
        let wide = if only_peers {
            of_strangers(number, OF_CLASS)
        } else {
            of_number(number, OF_CLASS)
        };
        for destination in everywhere() {
            entries.insert(of_class(destination, mask.numbered(number), mask), wide);
        }
    }
    for number in numbers.iter().filter(|_| only_peers) {
        let of_peer = |peer: &IpAddr| of_class((*peer).into(), mask.numbered(*number), mask);
        let peers = tables.peers.iter().map(of_peer);
        entries.extend(peers.map(|selected| (selected, of_number(*number, OF_PEER))));
    }
    entries.extend(
        held.iter()
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
    let mut signed = BTreeSet::new();
    for application in applications {
        if application.signature != 0 && signed.insert(application.signature) {
            let peers = Peers {
                all: &tables.peers,
                held,
            };
            sign(&mut entries, application, peers, &mut room, mask);
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

/// The classes in use. The answers of a listener take the mark of the SA, which is the mandatory one.
fn class_numbers(tables: &Tables) -> BTreeSet<u8> {
    let classes = tables.classes.iter();
    classes
        .flat_map(|(class, level)| [class.mark(*level), class.mark(Level::Mandatory)])
        .collect()
}

/// The entry of a peer that is held to a class.
pub(crate) fn of_held(class: Class, peer: IpAddr, mask: MarkMask) -> (Selected, Entry) {
    let mark = mask.class_mark(class, Level::Optional);
    let entry = of_number(class.mark(Level::Mandatory), OF_PEER);
    (of_class(peer.into(), mark, mask), entry)
}

/// Returns whether an entry among these asks for SAs with more than one address. Addresses of no peer can
/// have none, but packets to them use up the kernel's memory, and the queue in which packets to peers wait.
pub fn asks_strangers(entries: &Entries) -> bool {
    entries.iter().any(|(selected, entry)| {
        let is_single = selected.destination.prefix_len() == selected.destination.max_prefix_len();
        !is_single && matches!(entry.action, Some(Action::Protect { .. }))
    })
}

/// The entries among these that ask for SAs of a class with a peer: those in whose queues packets to it
/// may wait.
pub(crate) fn asking(entries: &Entries, class: Class, peer: IpAddr) -> Vec<(Selected, Entry)> {
    let to = |destination: IpNet| {
        let first = Selected {
            mark_bits: 0,
            ..of_class(destination, 0, MarkMask::default())
        };
        let from_there = entries.range(first..);
        from_there.take_while(move |(selected, _)| {
            (selected.inbound, selected.destination) == (false, destination)
        })
    };
    let asks = |entry: &Entry| match entry.action {
        Some(Action::Protect { reqid: asked, .. }) => asked == reqid(class),
        _ => false,
    };
    let destinations = [IpNet::from(peer)].into_iter().chain(everywhere());
    let found = destinations.flat_map(to);
    let found = found.filter(|(_, entry)| asks(entry));
    found.map(|(selected, entry)| (*selected, *entry)).collect()
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

/// The peers, and those of them that are held to a class.
#[derive(Clone, Copy)]
struct Peers<'a> {
    all: &'a BTreeSet<IpAddr>,
    held: &'a BTreeSet<(Class, IpAddr)>,
}

impl Peers<'_> {
    /// The class number for a peer where the policy has `number`: the mandatory level's if the peer is held.
    fn number(self, number: u8, peer: IpAddr) -> u8 {
        match Class::of_mark(number) {
            Some((class, _)) if self.held.contains(&(class, peer)) => class.mark(Level::Mandatory),
            _ => number,
        }
    }
}

/// The entries of an application's signature. If there is no room for those of single peers, the room is
/// used up, and the wide entries ask for SAs.
fn sign(
    entries: &mut Entries,
    application: &Application,
    peers: Peers<'_>,
    room: &mut usize,
    mask: MarkMask,
) {
    let of_peers = of_peers(application, peers, *room, mask);
    let only_peers = of_peers.is_some();
    *room = of_peers.as_ref().map_or(0, |own| *room - own.len());
    for (network, lines) in &application.networks {
        let network = network.trunc();
        let is_peer =
            network.prefix_len() == network.max_prefix_len() && peers.all.contains(&network.addr());
        for (line, priority) in numbered(application, network, lines, network) {
            let entry = if only_peers && !is_peer {
                of_strangers(line.class, priority)
            } else {
                of_number(line.class, priority)
            };
            entries.insert(of_signature(application, network, line, mask), entry);
        }
    }
    // A network of a single address may be a peer's: then the peer's entry counts.
    entries.extend(of_peers.into_iter().flatten());
}

/// The entries of an application's signature for the single peers of its networks; none: they are too
/// many for the room.
fn of_peers(
    application: &Application,
    peers: Peers<'_>,
    room: usize,
    mask: MarkMask,
) -> Option<Entries> {
    let networks: BTreeSet<IpNet> = application
        .networks
        .iter()
        .map(|(one, _)| one.trunc())
        .collect();
    let lengths: BTreeSet<u8> = networks.iter().map(IpNet::prefix_len).collect();
    let mut entries = Entries::new();
    for (network, lines) in &application.networks {
        let network = network.trunc();
        let length = network.prefix_len();
        let protects = |line: &Line| Class::of_mark(line.class).is_some();
        if !lines.iter().any(protects) {
            continue;
        }
        for &peer in peers.all.range(network.network()..=network.broadcast()) {
            let most = network.max_prefix_len();
            let mut longer = lengths
                .iter()
                .filter(|one| (length + 1..=most).contains(one));
            if longer.any(|one| networks.contains(&IpNet::new_assert(peer, *one).trunc())) {
                continue;
            }
            for (line, priority) in numbered(application, network, lines, peer.into()) {
                if entries.len() == room {
                    return None;
                }
                let selected = of_signature(application, peer.into(), line, mask);
                entries.insert(
                    selected,
                    of_number(peers.number(line.class, peer), priority),
                );
            }
        }
    }
    Some(entries)
}

/// The lines of a network that need entries for these of its addresses, each with its priority.
fn numbered(
    application: &Application,
    network: IpNet,
    lines: &[Line],
    addresses: IpNet,
) -> impl Iterator<Item = (Line, u32)> {
    let same = application.remaining(true) == application.remaining(false);
    // IPv4 packets of an IPv6 socket have the class of what remains for IPv6.
    let by_class = network.prefix_len() == 0 && (same || network.addr().is_ipv6());
    let length = 128 - u32::from(addresses.prefix_len());
    let first = OF_NETWORKS + length * MOST_LINES as u32;
    let numbered = lines.iter().copied().zip(first..);
    numbered.filter(move |(line, _)| !by_class || !line.is_of_all_ports())
}

fn of_signature(
    application: &Application,
    destination: IpNet,
    line: Line,
    mask: MarkMask,
) -> Selected {
    Selected {
        local_port: line.local,
        remote_port: line.remote,
        mark: mask.signed(application.signature),
        mark_bits: mask.signature_bits(),
        ..of_class(destination, 0, mask)
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
    (selected, of_number(BYPASS, OF_FORMER))
}

/// The entry for addresses that are of no peer.
fn of_strangers(number: u8, priority: u32) -> Entry {
    let number = match Class::of_mark(number) {
        Some((_, Level::Mandatory)) => DISCARD,
        Some((_, Level::Optional)) => BYPASS,
        None => number,
    };
    of_number(number, priority)
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
