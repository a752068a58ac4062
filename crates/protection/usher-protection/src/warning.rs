//! Warnings about `application` blocks: statements that never decide, traffic that none covers, and
//! traffic that another block protects better.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use usher_base::HostName;
use usher_language::{AddressRange, AddressSet, Name, Place, mistakes, shown};

use crate::class::Level;
use crate::model::{Application, Network, NetworkType, ProtectionItem};
use crate::names::Names;
use crate::ports::PortPairs;
use crate::program::{ProgramName, SYSTEM_FOLDERS};

mistakes! {
    /// Something in `application` blocks that has no effect, or another than it seems. Never a reason
    /// to refuse the policy.
    pub enum ProtectionWarning {
        /// A `network` whose addresses earlier ones of its block have.
        NetworkShadowed { peers: String, place: Place }
            => "{place}: `network {peers}` never decides: networks before it have all its addresses";
            "move it before them, or remove it";
        /// A `network` of loopback addresses.
        NetworkOfLoopback { peers: String, place: Place }
            => "{place}: `network {peers}` never decides: traffic that stays on a host always passes";
            "remove it";
        /// An item of a protection whose ports earlier ones have.
        ItemShadowed { item: String, place: Place }
            => "{place}: `{item}` never decides: items before it have all its ports";
            "move it before them, or remove it";
        /// A protection that no network names, or only such as never decide.
        ProtectionUnused { protection: Name, place: Place }
            => "{place}: `protection {protection}` is named by no network that decides anything";
            "name it in a `network` statement, or remove it";
        /// A protection whose items do not have all ports.
        PortsLeftOut { protection: Name, place: Place }
            => "{place}: `protection {protection}` has no item for some ports: their traffic is \
                discarded";
            "end with `localport=any remoteport=any ...;`";
        /// An `application` block whose networks do not have all addresses.
        AddressesLeftOut { application: String, place: Place, address: IpAddr }
            => "{place}: `application {application}` has no network for some addresses, among \
                them {address}: what no network has is discarded";
            "end with `network 0.0.0.0/0 ...;` and `network ::/0 ...;`";
        /// A name without an address.
        UnresolvedName { name: HostName, place: Place, reason: String, meanwhile: &'static str }
            => "{place}: the address of `{name}` cannot be found: {}; until it is, {meanwhile}",
                shown(128, reason);
            "write its address, give it a `host` block, or see to it that this host finds the name";
        /// A file of another block, in a folder of the system, that the name of a program can mean.
        ProgramOfTwo { program: String, place: Place, path: String, other: Place }
            => "{place}: `{program}` is also the name of `{path}`, whose policy is at {other}: one \
                file would have two policies";
            "name the program by one of the two, in one block";
        /// An `optional` item, and a `mandatory` one of another block about the same peers and ports.
        OptionalBesideMandatory { item: String, place: Place, other: String, mandatory: Place }
            => "{place}: `{item}` lets traffic pass in the clear that `application {other}` demands \
                to be protected at {mandatory}";
            "write the same level in both";
    }
}

/// The statements of one policy's blocks that are probably not meant, in a fixed order.
pub fn warnings(applications: &[Application], names: &Names) -> Vec<ProtectionWarning> {
    let mut warnings = Vec::new();
    let deciding: Vec<Vec<Rule<'_>>> = applications
        .iter()
        .map(|block| warn_of_block(block, names, &mut warnings))
        .collect();
    warn_of_programs(applications, &mut warnings);
    warn_of_optional(applications, &deciding, &mut warnings);
    warnings
}

/// A name in one block that can be a path of another.
fn warn_of_programs(applications: &[Application], warnings: &mut Vec<ProtectionWarning>) {
    let mut paths: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
    for (number, block) in applications.iter().enumerate() {
        for program in &block.programs {
            if let ProgramName::Path(path) = program
                && let Some((folder, name)) = path.rsplit_once('/')
                && SYSTEM_FOLDERS.contains(&folder)
            {
                paths.entry(name).or_default().push((number, path));
            }
        }
    }
    for (number, block) in applications.iter().enumerate() {
        for program in &block.programs {
            let ProgramName::Name(name) = program else {
                continue;
            };
            let paths = paths.get(name.as_str()).into_iter().flatten();
            for (other, path) in paths.filter(|(other, _)| *other != number) {
                warnings.push(ProtectionWarning::ProgramOfTwo {
                    program: name.clone(),
                    place: block.origin.place.clone(),
                    path: (*path).to_owned(),
                    other: applications[*other].origin.place.clone(),
                });
            }
        }
    }
}

/// An item, and the addresses of the networks that name its protection, without what networks
/// before them have.
struct Rule<'p> {
    peers: Rc<Vec<AddressRange>>,
    item: &'p ProtectionItem,
}

/// Warns of one block by itself. Returns its rules that decide anything.
fn warn_of_block<'p>(
    block: &'p Application,
    names: &Names,
    warnings: &mut Vec<ProtectionWarning>,
) -> Vec<Rule<'p>> {
    let loopback = [
        AddressRange::new(
            Ipv4Addr::new(127, 0, 0, 0).into(),
            Ipv4Addr::new(127, 255, 255, 255).into(),
        ),
        AddressRange::new(Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
    ];
    let mut never = AddressSet::default();
    let mut covered = AddressSet::default();
    for range in loopback.into_iter().flatten() {
        never.add(range);
        covered.add(range);
    }
    let mut deciding = Vec::new();
    for (network, addresses) in block.networks.iter().zip(block.addresses(names)) {
        let (peers, place) = (network.peers.to_string(), network.origin.place.clone());
        // A name that has not been looked up has no addresses yet.
        let all_in = |set: &AddressSet| {
            !addresses.is_empty() && addresses.iter().all(|&range| set.covers(range))
        };
        if all_in(&never) {
            warnings.push(ProtectionWarning::NetworkOfLoopback { peers, place });
        } else if all_in(&covered) {
            warnings.push(ProtectionWarning::NetworkShadowed { peers, place });
        } else {
            let ranges = addresses.iter();
            let peers = ranges.flat_map(|&range| covered.missing(range)).collect();
            deciding.push((network, Rc::new(peers)));
        }
        for range in addresses {
            covered.add(range);
        }
    }
    if let Some(address) = covered.first_missing() {
        warnings.push(ProtectionWarning::AddressesLeftOut {
            application: block.name(),
            place: block.origin.place.clone(),
            address,
        });
    }
    let protects = |(network, peers): (&'p Network, _)| match &network.network_type {
        NetworkType::Protected(name) => Some((name, peers)),
        NetworkType::Trusted | NetworkType::Untrusted => None,
    };
    let named: Vec<(&Name, Rc<Vec<AddressRange>>)> =
        deciding.into_iter().filter_map(protects).collect();
    let used: BTreeSet<&Name> = named.iter().map(|(name, _)| *name).collect();
    let mut items: HashMap<&Name, Vec<&ProtectionItem>> = HashMap::new();
    for (name, protection) in &block.protections {
        if !used.contains(name) {
            warnings.push(ProtectionWarning::ProtectionUnused {
                protection: name.clone(),
                place: protection.origin.place.clone(),
            });
        }
        let mut covered = PortPairs::default();
        for item in &protection.items {
            let (local, remote) = item.ports();
            if covered.covers(local, remote) {
                warnings.push(ProtectionWarning::ItemShadowed {
                    item: item.to_string(),
                    place: item.origin.place.clone(),
                });
            } else {
                items.entry(name).or_default().push(item);
            }
            covered.add(local, remote);
        }
        if !covered.covers(None, None) {
            warnings.push(ProtectionWarning::PortsLeftOut {
                protection: name.clone(),
                place: protection.origin.place.clone(),
            });
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

/// Warns of `optional` where another program's block says `mandatory` about the same peers: with
/// the same ports, or with the two exchanged, as the two ends of a connection have them.
fn warn_of_optional(
    applications: &[Application],
    deciding: &[Vec<Rule<'_>>],
    warnings: &mut Vec<ProtectionWarning>,
) {
    let mut mandatory: HashMap<Ports, Ranges<'_>> = HashMap::new();
    for (block, rules) in deciding.iter().enumerate() {
        for Rule { peers, item } in rules {
            if item.level == Level::Optional {
                continue;
            }
            let (local, remote) = item.ports();
            for pair in [(local, remote), (remote, local)] {
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
            let other = searched_under(item.ports()).find_map(|ports| {
                let index = mandatory.get(&ports)?;
                let mut ranges = peers.iter();
                ranges.find_map(|range| index.overlapping(range.first(), range.last(), block))
            });
            if let Some((other_block, other)) = other
                && told.insert(&item.origin.place)
            {
                warnings.push(ProtectionWarning::OptionalBesideMandatory {
                    item: item.to_string(),
                    place: item.origin.place.clone(),
                    other: applications[other_block].name(),
                    mandatory: other.clone(),
                });
            }
        }
    }
}

/// The key by which rules with a port in common are found, so that not every rule is compared with each other
/// one. A rule is filed under its port, or `any`, and under "whichever". A rule for `any` is searched for under
/// "whichever", a rule for a port under the port and under `any`.
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

/// Ranges by their first address. Each entry also has, of the ranges up to it, those of two blocks that reach
/// furthest. So one search finds an overlapping range of another block.
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
