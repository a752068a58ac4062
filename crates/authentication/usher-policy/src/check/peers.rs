//! Peers in statements: addresses, ranges of them, and names of hosts.

use std::collections::BTreeMap;

use usher_base::HostName;
use usher_language::{AddressRange, Field, Found, Item, RangeFault, shown_together};

use crate::application::Peers;
use crate::mistake::PolicyMistake;
use crate::model::Host;

/// The words of the peers that a list of values begins with, and the others. None: there are too few.
pub(super) fn split(items: &[Item]) -> Option<(&[Item], &[Item])> {
    // `a - b` and `a / n` may have blanks.
    let parts = match items.get(1) {
        Some(between) if between.is_word("-") || between.is_word("/") => 3,
        _ => 1,
    };
    items.split_at_checked(parts)
}

/// The words of values that may have blanks between them, as one. None for a string, reported.
pub(super) fn together(items: &[Item], field: &Field<'_>) -> Option<String> {
    items
        .iter()
        .map(|item| item.word().or_else(|| field.expected_word(item)))
        .collect()
}

/// What these words name.
pub(super) fn read(
    items: &[Item],
    is_host: impl Fn(&HostName) -> bool,
    field: &Field<'_>,
) -> Option<Peers> {
    let written = together(items, field)?;
    let found = Found(shown_together(items));
    let mistake = match AddressRange::parse(&written) {
        Ok(range) => return Some(Peers::Range(range)),
        Err(RangeFault::Backwards) => PolicyMistake::RangeBackwards { found },
        Err(RangeFault::Mapped) => PolicyMistake::MappedNetwork { found },
        Err(RangeFault::HostBits(network)) => PolicyMistake::NetworkHostBits { found, network },
        Err(RangeFault::Form) => {
            // A name that ends in a number is a slip in an address, unless a host has it.
            let last = written.rsplit('.').next().unwrap_or_default();
            let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
            match written.parse::<HostName>() {
                Ok(name) if items.len() == 1 && (!numeric || is_host(&name)) => {
                    return Some(Peers::Name(name));
                }
                _ => PolicyMistake::InvalidNetwork { found },
            }
        }
    };
    field.refuse(&items[0], mistake)
}

/// What the policy itself knows of the addresses.
pub(super) fn addresses(peers: &Peers, hosts: &BTreeMap<HostName, Host>) -> Vec<AddressRange> {
    match peers {
        Peers::Range(range) => vec![*range],
        Peers::Name(name) => {
            let addresses = hosts.get(name).map_or(&[][..], |host| &host.addresses);
            addresses.iter().copied().map(AddressRange::from).collect()
        }
    }
}
