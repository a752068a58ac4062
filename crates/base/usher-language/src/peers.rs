//! Peers in statements: addresses, ranges of them, and names of hosts.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::address::{AddressRange, RangeFault};
use crate::faults::StatementMistake;
use crate::field::Field;
use crate::item::{Item, shown_together};
use crate::mistake::Found;

/// Words that would be looked up as names of hosts, and stand for everybody elsewhere.
const EVERYBODY: [&str; 5] = ["any", "all", "everybody", "everyone", "everything"];

/// Peers, as written.
///
/// `N` is what a dialect has as the name of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peers<N> {
    /// One address, or all from one to another.
    Range(AddressRange),
    /// A host of the policy, or a name to be looked up.
    Name(N),
}

impl<N> Peers<N> {
    /// Whether these are all addresses of a family.
    pub fn is_everybody(&self) -> bool {
        match self {
            Self::Range(range) => range.is_everybody(),
            Self::Name(_) => false,
        }
    }
}

impl<N: FromStr> Peers<N> {
    /// Divides values into the words that name peers, which come first, and the rest. Returns none if there
    /// are too few values.
    pub fn split(items: &[Item]) -> Option<(&[Item], &[Item])> {
        // `a - b` and `a / n` may have blanks.
        let parts = match items.get(1) {
            Some(between) if between.is_word("-") || between.is_word("/") => 3,
            _ => 1,
        };
        items.split_at_checked(parts)
    }

    /// Reads the hosts and addresses that these words name. Reports words that name nothing.
    pub fn read(items: &[Item], is_host: impl Fn(&N) -> bool, field: &Field<'_>) -> Option<Self> {
        let written = field.together(items)?;
        let found = Found(shown_together(items));
        let mistake = match AddressRange::parse(&written) {
            Ok(range) => return Some(Self::Range(range)),
            Err(RangeFault::Backwards) => StatementMistake::RangeBackwards { found },
            Err(RangeFault::Mapped) => StatementMistake::MappedNetwork { found },
            Err(RangeFault::PrefixTooLong(most)) => StatementMistake::PrefixTooLong { found, most },
            Err(RangeFault::HostBits(network)) => {
                StatementMistake::NetworkHostBits { found, network }
            }
            Err(RangeFault::Form) => {
                // A name that ends in a number is a slip in an address, unless it is a host's name.
                let last = written.rsplit('.').next().unwrap_or_default();
                let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
                match written.parse::<N>() {
                    Ok(name) if EVERYBODY.contains(&written.as_str()) && !is_host(&name) => {
                        StatementMistake::EverybodyByWord { found }
                    }
                    Ok(name) if items.len() == 1 && (!numeric || is_host(&name)) => {
                        return Some(Self::Name(name));
                    }
                    _ => StatementMistake::InvalidNetwork { found },
                }
            }
        };
        field.refuse(&items[0], mistake)
    }
}

impl<N: fmt::Display> fmt::Display for Peers<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) => range.fmt(formatter),
            Self::Name(name) => name.fmt(formatter),
        }
    }
}
