//! `connect` of a `service` block.

use super::fields::Field;
use super::{Names, peers, values};
use crate::application::Peers;
use crate::destinations::{
    Destination, Destinations, MAXIMUM_DESTINATION_TABLE, MAXIMUM_DESTINATIONS, PortRange,
};
use crate::error::PolicyErrorKind;
use crate::report::Reporter;
use crate::tree::Item;

/// `connect none;` or `connect PEERS port PORT - PORT, ...;`
pub(super) fn check(
    field: Field<'_>,
    names: &Names<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Destinations> {
    let groups = &field.statement.groups;
    if groups.is_empty() {
        return field.missing(reporter);
    }
    if let Some(none) = groups.iter().flatten().find(|item| item.is_word("none")) {
        if groups.len() > 1 || groups[0].len() > 1 {
            reporter.report(none.location, PolicyErrorKind::NoneIsNotAlone);
            return None;
        }
        return Some(Destinations::default());
    }
    if groups.len() > MAXIMUM_DESTINATIONS {
        let found = groups.len();
        let error = PolicyErrorKind::TooManyDestinations { found };
        reporter.report(field.statement.location, error);
        return None;
    }
    let entries: Vec<Option<Destination>> = groups
        .iter()
        .map(|group| destination(field, group, names, reporter))
        .collect();
    let entries: Vec<Destination> = entries.into_iter().collect::<Option<_>>()?;
    let destinations = Destinations { entries };
    let found = destinations.table().size();
    if found > MAXIMUM_DESTINATION_TABLE {
        let error = PolicyErrorKind::DestinationsTooFine { found };
        reporter.report(field.statement.location, error);
        return None;
    }
    Some(destinations)
}

/// `PEERS`, `PEERS port PORT` or `PEERS port PORT - PORT`
fn destination(
    field: Field<'_>,
    items: &[Item],
    names: &Names<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Destination> {
    let Some((range, rest)) = peers::split(items) else {
        return field.missing(reporter);
    };
    let peers = peers::read(range, |name| names.hosts.contains(name), reporter);
    let ports = match rest {
        [] => Some(None),
        [port] if port.is_word("port") => return field.missing(reporter),
        [port, range @ ..] if port.is_word("port") => ports(field, range, reporter).map(Some),
        [other, ..] => return field.unexpected(other, reporter),
    };
    let peers = peers?;
    if let Peers::Name(name) = &peers {
        values::known_host(name.clone(), &range[0], names.hosts, reporter)?;
    }
    if let Peers::Range(range) = &peers
        && range.last().is_unspecified()
    {
        let address = range.last();
        let error = PolicyErrorKind::UnspecifiedDestination { address };
        reporter.report(items[0].location, error);
        return None;
    }
    let last = items.last().unwrap_or(&range[0]);
    Some(Destination {
        addresses: peers::addresses(&peers, names.host_blocks),
        peers,
        ports: ports?,
        origin: reporter.origin(range[0].location, last.location),
    })
}

/// `PORT`, `PORT-PORT` or `PORT - PORT`
fn ports(field: Field<'_>, items: &[Item], reporter: &mut Reporter<'_>) -> Option<PortRange> {
    let parts = match items.get(1) {
        Some(dash) if dash.is_word("-") => 3,
        _ => 1,
    };
    if let Some(excess) = items.get(parts) {
        return field.unexpected(excess, reporter);
    }
    let mut written = String::new();
    for item in items {
        written += values::word(item, reporter)?;
    }
    let (first, last) = written.split_once('-').unwrap_or((&written, &written));
    let range = values::port_number(first).zip(values::port_number(last));
    let shown: Vec<String> = items.iter().map(Item::shown).collect();
    let found = shown.join(" ");
    let error = match range {
        Some((first, last)) if first <= last => return Some(PortRange { first, last }),
        Some(_) => PolicyErrorKind::PortsBackwards { found },
        None => PolicyErrorKind::InvalidPorts { found },
    };
    reporter.report(items[0].location, error);
    None
}
