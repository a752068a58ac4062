//! `application` blocks: what never decides, what is left out, and what is protected less than
//! elsewhere.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use usher_language::{AddressRange, AddressSet, Name, Place};

use super::PolicyWarning;
use crate::application::{ApplicationPolicy, Level, Network, ProtectionItem, Treatment};
use crate::model::Policy;
use crate::ports::PortPairs;

pub(super) fn warn(policy: &Policy, warnings: &mut Vec<PolicyWarning>) {
    let deciding: Vec<Vec<Rule<'_>>> = policy
        .applications
        .iter()
        .map(|block| warn_of_block(block, warnings))
        .collect();
    warn_of_optional(policy, &deciding, warnings);
}

/// An item, and the addresses of the networks that name its protection, without what networks
/// before them have.
struct Rule<'p> {
    peers: Rc<Vec<AddressRange>>,
    item: &'p ProtectionItem,
}

/// What one block says of itself; its rules that decide anything.
fn warn_of_block<'p>(
    block: &'p ApplicationPolicy,
    warnings: &mut Vec<PolicyWarning>,
) -> Vec<Rule<'p>> {
    let mut covered = AddressSet::default();
    let mut deciding = Vec::new();
    for network in &block.networks {
        // A name that has not been looked up has no addresses yet.
        let known = !network.addresses.is_empty();
        if known && network.addresses.iter().all(|&range| covered.covers(range)) {
            warnings.push(PolicyWarning::NetworkShadowed {
                peers: network.peers.to_string(),
                place: network.origin.place.clone(),
            });
        } else {
            let ranges = network.addresses.iter();
            let peers = ranges.flat_map(|&range| covered.missing(range)).collect();
            deciding.push((network, Rc::new(peers)));
        }
        for &range in &network.addresses {
            covered.add(range);
        }
    }
    let all_known = block
        .networks
        .iter()
        .all(|network| !network.addresses.is_empty());
    if let Some(address) = covered.first_missing().filter(|_| all_known) {
        warnings.push(PolicyWarning::AddressesLeftOut {
            application: block
                .applications
                .first()
                .map(ToString::to_string)
                .unwrap_or_default(),
            place: block.origin.place.clone(),
            address,
        });
    }
    let protects = |(network, peers): (&'p Network, _)| match &network.treatment {
        Treatment::Protected(name) => Some((name, peers)),
        Treatment::Trusted | Treatment::Untrusted => None,
    };
    let named: Vec<(&Name, Rc<Vec<AddressRange>>)> =
        deciding.into_iter().filter_map(protects).collect();
    let used: BTreeSet<&Name> = named.iter().map(|(name, _)| *name).collect();
    let mut items: HashMap<&Name, Vec<&ProtectionItem>> = HashMap::new();
    for (name, protection) in &block.protections {
        if !used.contains(name) {
            warnings.push(PolicyWarning::ProtectionUnused {
                protection: name.clone(),
                place: protection.origin.place.clone(),
            });
        }
        let mut covered = PortPairs::default();
        for item in &protection.items {
            if covered.covers(item.local, item.remote) {
                warnings.push(PolicyWarning::ItemShadowed {
                    item: item.to_string(),
                    place: item.origin.place.clone(),
                });
            } else {
                items.entry(name).or_default().push(item);
            }
            covered.add(item.local, item.remote);
        }
    }
    named
        .into_iter()
        .flat_map(|(name, peers)| {
            let items = items.get(name).map_or(&[][..], Vec::as_slice);
            items.iter().map(move |item| Rule {
                peers: Rc::clone(&peers),
                item,
            })
        })
        .collect()
}

/// `optional` where another program's block says `mandatory` about the same peers: with the same
/// ports, or with the two ports changed about, as the two ends of a connection have them.
fn warn_of_optional(
    policy: &Policy,
    deciding: &[Vec<Rule<'_>>],
    warnings: &mut Vec<PolicyWarning>,
) {
    let mut mandatory: HashMap<Ports, Ranges<'_>> = HashMap::new();
    for (block, rules) in deciding.iter().enumerate() {
        for Rule { peers, item } in rules {
            if item.level == Level::Optional {
                continue;
            }
            for pair in [(item.local, item.remote), (item.remote, item.local)] {
                for ports in filed_under(pair) {
                    let ranges = mandatory.entry(ports).or_default();
                    for range in peers.iter() {
                        let place = &item.origin.place;
                        ranges.0.push((range.first(), range.last(), block, place));
                    }
                }
            }
        }
    }
    let mandatory: HashMap<Ports, Index<'_>> = mandatory
        .into_iter()
        .map(|(ports, ranges)| (ports, ranges.index()))
        .collect();
    for (block, rules) in deciding.iter().enumerate() {
        let mut told = BTreeSet::new();
        for Rule { peers, item } in rules {
            if item.level == Level::Mandatory {
                continue;
            }
            let other = searched_under((item.local, item.remote)).find_map(|ports| {
                let index = mandatory.get(&ports)?;
                let mut ranges = peers.iter();
                ranges.find_map(|range| index.overlapping(range.first(), range.last(), block))
            });
            if let Some((other_block, other)) = other
                && told.insert(&item.origin.place)
            {
                let programs = &policy.applications[other_block].applications;
                warnings.push(PolicyWarning::OptionalBesideMandatory {
                    item: item.to_string(),
                    place: item.origin.place.clone(),
                    other: programs
                        .first()
                        .map(ToString::to_string)
                        .unwrap_or_default(),
                    mandatory: other.clone(),
                });
            }
        }
    }
}

/// Rules are found by port without comparing each with each: a rule is filed under its port and
/// under "whichever"; `any` looks under "whichever", a port under itself and under `any`.
type Ports = (Selector, Selector);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Selector {
    Whichever,
    Port(Option<u16>),
}

fn filed_under((local, remote): (Option<u16>, Option<u16>)) -> impl Iterator<Item = Ports> {
    let ways = |port| [Selector::Whichever, Selector::Port(port)];
    pairs(ways(local), ways(remote))
}

fn searched_under((local, remote): (Option<u16>, Option<u16>)) -> impl Iterator<Item = Ports> {
    let ways = |port: Option<u16>| match port {
        None => [Selector::Whichever; 2],
        Some(_) => [Selector::Port(port), Selector::Port(None)],
    };
    pairs(ways(local), ways(remote))
}

fn pairs(locals: [Selector; 2], remotes: [Selector; 2]) -> impl Iterator<Item = Ports> {
    locals
        .into_iter()
        .flat_map(move |local| remotes.map(|remote| (local, remote)))
}

/// First and last address, the block, and where it says so.
type Range<'p> = (IpAddr, IpAddr, usize, &'p Place);

#[derive(Default)]
struct Ranges<'p>(Vec<Range<'p>>);

/// Ranges by their first address, each with those of two blocks that reach furthest up to it: so
/// one that overlaps and is not the asking block's is found in one search.
struct Index<'p>(Vec<(IpAddr, [Option<Range<'p>>; 2])>);

impl<'p> Ranges<'p> {
    fn index(mut self) -> Index<'p> {
        self.0
            .sort_by_key(|&(first, last, block, _)| (first, last, block));
        let mut furthest: [Option<Range<'p>>; 2] = [None; 2];
        let index = self.0.into_iter().map(|range| {
            let (first, last, block, _) = range;
            let beyond = |other: Option<Range<'p>>| other.is_none_or(|(_, end, ..)| last > end);
            match furthest {
                [Some((_, end, same, _)), _] if same == block && last > end => {
                    furthest[0] = Some(range);
                }
                [Some((.., same, _)), _] if same == block => {}
                [best, _] if beyond(best) => furthest = [Some(range), best],
                [_, second] if beyond(second) => furthest[1] = Some(range),
                _ => {}
            }
            (first, furthest)
        });
        Index(index.collect())
    }
}

impl<'p> Index<'p> {
    /// The block and the place of a range of another block that overlaps with this one.
    fn overlapping(&self, first: IpAddr, last: IpAddr, block: usize) -> Option<(usize, &'p Place)> {
        let before = self.0.partition_point(|(start, _)| *start <= last);
        let (_, furthest) = self.0.get(before.checked_sub(1)?)?;
        let mut furthest = furthest.iter().flatten();
        let &(.., found, place) =
            furthest.find(|(_, end, other, _)| *other != block && *end >= first)?;
        Some((found, place))
    }
}
