//! Exact sets of addresses: what earlier statements cover.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::address::{AddressRange, address_number};

/// A set of addresses: for IPv4 and IPv6, the last addresses of ranges by their first ones. Ranges neither
/// overlap nor touch.
#[derive(Debug, Default)]
pub struct AddressSet([BTreeMap<u128, u128>; 2]);

impl AddressSet {
    /// Adds a range.
    pub fn add(&mut self, range: AddressRange) {
        let (mut first, mut last) = range_numbers(range);
        let set = &mut self.0[family(range)];
        // Ranges that overlap or touch the new one become one with it.
        while let Some((&start, &end)) = set.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            set.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        set.insert(first, last);
    }

    /// Whether all addresses of a range are in the set.
    pub fn covers(&self, range: AddressRange) -> bool {
        let (first, last) = range_numbers(range);
        let set = &self.0[family(range)];
        let before = set.range(..=first).next_back();
        before.is_some_and(|(_, &end)| end >= last)
    }

    /// The parts of a range that are not in the set.
    pub fn missing(&self, range: AddressRange) -> Vec<AddressRange> {
        let (mut first, last) = range_numbers(range);
        let set = &self.0[family(range)];
        let mut missing = Vec::new();
        let begun_before = set.range(..first).next_back();
        for (&start, &end) in begun_before.into_iter().chain(set.range(first..=last)) {
            if start > first {
                missing.push(range.part(first, start - 1));
            }
            if end >= last {
                return missing;
            }
            first = first.max(end + 1);
        }
        missing.push(range.part(first, last));
        missing
    }

    /// The lowest address that is not in the set, IPv4 first.
    pub fn first_missing(&self) -> Option<IpAddr> {
        let all = AddressRange::EVERYBODY.into_iter();
        let mut missing = all.flat_map(|all| self.missing(all));
        missing.next().map(AddressRange::first)
    }
}

fn family(range: AddressRange) -> usize {
    usize::from(range.first().is_ipv6())
}

fn range_numbers(range: AddressRange) -> (u128, u128) {
    (address_number(range.first()), address_number(range.last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        AddressRange::parse(text).expect("a range")
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut set = AddressSet::default();
        for text in ["10.0.0.0/25", "10.0.1.0/24", "10.0.0.129-10.0.0.255"] {
            set.add(range(text));
        }
        assert!(!set.covers(range("10.0.0.0/23")));
        assert!(set.covers(range("10.0.0.129-10.0.1.255")));
        set.add(range("10.0.0.128"));
        assert!(set.covers(range("10.0.0.0/23")));
        assert!(!set.covers(range("::a00:0/119")), "the other family");
    }

    #[test]
    fn a_range_without_the_set_is_its_other_parts() {
        let mut set = AddressSet::default();
        let missing = |set: &AddressSet, text: &str| {
            let parts = set.missing(range(text)).into_iter();
            parts.map(|part| part.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(missing(&set, "10.0.0.0/24"), ["10.0.0.0/24"]);
        set.add(range("10.0.0.0/30"));
        set.add(range("10.0.0.8"));
        assert_eq!(missing(&set, "10.0.0.8"), [""; 0]);
        assert_eq!(
            missing(&set, "10.0.0.0/28"),
            ["10.0.0.4/30", "10.0.0.9 - 10.0.0.15"]
        );
        assert_eq!(missing(&set, "10.0.0.2-10.0.0.4"), ["10.0.0.4"]);
        set.add(range("0.0.0.0/0"));
        assert_eq!(missing(&set, "255.0.0.0/8"), [""; 0]);
        assert_eq!(missing(&set, "::/0"), ["::/0"]);
    }

    #[test]
    fn what_is_missing_is_found_in_both_families() {
        let mut set = AddressSet::default();
        let missing = |set: &AddressSet| set.first_missing().map(|address| address.to_string());
        assert_eq!(missing(&set), Some("0.0.0.0".to_owned()));
        set.add(range("0.0.0.0-255.255.255.254"));
        assert_eq!(missing(&set), Some("255.255.255.255".to_owned()));
        set.add(range("255.255.255.255"));
        assert_eq!(missing(&set), Some("::".to_owned()));
        set.add(range("::/1"));
        assert_eq!(missing(&set), Some("8000::".to_owned()));
        set.add(range("8000::/1"));
        assert_eq!(missing(&set), None);
    }
}
