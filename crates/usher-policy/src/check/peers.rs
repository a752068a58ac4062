//! Peers in statements: addresses, ranges of them, and names of hosts.

use std::collections::BTreeMap;

use usher_proto::HostName;

use super::values;
use crate::application::Peers;
use crate::error::PolicyErrorKind;
use crate::model::Host;
use crate::ranges::{AddressRange, RangeFault};
use crate::report::Reporter;
use crate::tree::Item;

/// The words of the peers that a list of values begins with, and the others. None: there are too few.
pub(super) fn split(items: &[Item]) -> Option<(&[Item], &[Item])> {
    // `a - b` and `a / n` may have blanks.
    let parts = match items.get(1) {
        Some(between) if between.is_word("-") || between.is_word("/") => 3,
        _ => 1,
    };
    items.split_at_checked(parts)
}

/// What these words name.
pub(super) fn read(
    items: &[Item],
    is_host: impl Fn(&HostName) -> bool,
    reporter: &mut Reporter<'_>,
) -> Option<Peers> {
    let mut found = String::new();
    for item in items {
        found += values::word(item, reporter)?;
    }
    let shown: Vec<String> = items.iter().map(Item::shown).collect();
    let shown = shown.join(" ");
    let error = match AddressRange::parse(&found) {
        Ok(range) => return Some(Peers::Range(range)),
        Err(RangeFault::Backwards) => PolicyErrorKind::RangeBackwards { found: shown },
        Err(RangeFault::Mapped) => PolicyErrorKind::MappedNetwork { found: shown },
        Err(RangeFault::HostBits(network)) => PolicyErrorKind::NetworkHostBits {
            found: shown,
            network,
        },
        Err(RangeFault::Form) => {
            // A name that ends in a number is a slip in an address, unless a host has it.
            let last = found.rsplit('.').next().unwrap_or_default();
            let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
            if let Ok(name) = found.parse::<HostName>()
                && (!numeric || is_host(&name))
                && items.len() == 1
            {
                return Some(Peers::Name(name));
            }
            PolicyErrorKind::InvalidNetwork { found: shown }
        }
    };
    reporter.report(items[0].location, error);
    None
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
