//! `connect` of a `service` block.

use usher_language::{AddressRange, Field, Found, Item, Kind, shown_together};

use super::Names;
use crate::destinations::{
    Destination, Destinations, MAXIMUM_DESTINATION_TABLE, MAXIMUM_DESTINATIONS, Peers, PortRange,
};
use crate::mistake::PolicyMistake;

/// `connect none;` or `connect PEERS port PORT - PORT, ...;`
pub(super) fn check_connect(field: &Field<'_>, names: &Names<'_>) -> Option<Destinations> {
    let groups = &field.statement.groups;
    if groups.is_empty() {
        return field.missing();
    }
    if let Some(none) = groups.iter().flatten().find(|item| item.is_word("none")) {
        return match groups.iter().flatten().nth(1) {
            None => Some(Destinations::default()),
            Some(_) => field.not_alone(none),
        };
    }
    if field.has_too_many(
        MAXIMUM_DESTINATIONS,
        ": networks stand for the addresses in them",
    ) {
        return None;
    }
    let entries = groups
        .iter()
        .filter_map(|group| destination(field, group, names));
    let destinations = Destinations {
        entries: entries.collect(),
    };
    let found = destinations.table().size();
    if found > MAXIMUM_DESTINATION_TABLE {
        let mistake = PolicyMistake::DestinationsTooFine { found };
        return field.reporter.refuse(field.statement.location, mistake);
    }
    Some(destinations)
}

/// `PEERS`, `PEERS port PORT` or `PEERS port PORT - PORT`
fn destination(field: &Field<'_>, items: &[Item], names: &Names<'_>) -> Option<Destination> {
    let Some((range, rest)) = Peers::split(items) else {
        return field.missing();
    };
    let peers = Peers::read(range, |name| names.hosts.contains(name), field);
    let ports = match rest {
        [] => Some(None),
        [port] if port.is_word("port") => return field.missing(),
        [port, range @ ..] if port.is_word("port") => ports(field, range).map(Some),
        [other, ..] => return field.unexpected(other),
    };
    let peers = peers?;
    match &peers {
        Peers::Name(name) => drop(names.known_host(name.clone(), &range[0])?),
        Peers::Range(range) if range.last().is_unspecified() => {
            let address = range.last();
            return field.refuse(&items[0], PolicyMistake::UnspecifiedDestination { address });
        }
        Peers::Range(_) => {}
    }
    let last = items.last().unwrap_or(&range[0]);
    Some(Destination {
        addresses: match &peers {
            Peers::Range(range) => vec![*range],
            Peers::Name(name) => {
                let host = names.host_blocks.get(name);
                let addresses = host.map_or(&[][..], |host| &host.addresses);
                addresses.iter().copied().map(AddressRange::from).collect()
            }
        },
        peers,
        ports: ports?,
        origin: field.reporter.origin(range[0].location, last.location),
    })
}

/// `PORT`, `PORT-PORT` or `PORT - PORT`
fn ports(field: &Field<'_>, items: &[Item]) -> Option<PortRange> {
    let parts = match items.get(1) {
        Some(dash) if dash.is_word("-") => 3,
        _ => 1,
    };
    if let Some(excess) = items.get(parts) {
        return field.unexpected(excess);
    }
    let written = field.together(items)?;
    let (first, last) = written.split_once('-').unwrap_or((&written, &written));
    let port = |text| u16::try_from(Kind::Port.number(text)?).ok();
    let found = Found(shown_together(items));
    let mistake = match port(first).zip(port(last)) {
        Some((first, last)) if first <= last => return Some(PortRange { first, last }),
        Some(_) => PolicyMistake::PortsBackwards { found },
        None => PolicyMistake::InvalidPorts { found },
    };
    field.refuse(&items[0], mistake)
}
