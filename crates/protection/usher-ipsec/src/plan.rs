//! The tables in the form that both the monitor and the SPD are filled from: for each
//! application the networks, and for each network lines of ports, the first of which decides.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use sha2::{Digest as _, Sha256};
use usher_protection::{Tables, Treatment};

use crate::error::IpsecError;
use crate::marks::{BYPASS, DISCARD, MarkMask};

/// Limit of lines of ports that a network may have.
pub(crate) const MOST_LINES: usize = 1024;

/// One line; the ports that it does not name are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    pub local: Option<u16>,
    pub remote: Option<u16>,
    /// A class number.
    pub class: u8,
}

impl Line {
    fn all(class: u8) -> Self {
        Self {
            local: None,
            remote: None,
            class,
        }
    }

    pub fn is_of_all_ports(self) -> bool {
        self.local.is_none() && self.remote.is_none()
    }
}

/// The networks of an application with their lines. The last line of each is of all ports.
pub(crate) type Networks = Vec<(IpNet, Vec<Line>)>;

/// An application's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Application {
    pub networks: Networks,
    /// 0: one treatment for everything.
    pub signature: u16,
}

impl Application {
    /// The class number of what no other network or port decides.
    pub fn remaining(&self, ipv4: bool) -> u8 {
        let default = self
            .networks
            .iter()
            .find(|(network, _)| network.prefix_len() == 0 && network.addr().is_ipv4() == ipv4);
        default
            .and_then(|(_, lines)| lines.last())
            .map_or(DISCARD, |line| line.class)
    }

    /// The mark of a new socket of this family.
    pub fn creation_mark(&self, mask: MarkMask, ipv4: bool) -> u32 {
        mask.numbered(self.remaining(ipv4)) | mask.signed(self.signature)
    }
}

/// The first half of the SHA-256 of rules.
pub(crate) type Digest = [u8; 16];

/// Numbers of signatures that outlive a policy, and the process: a socket that was marked before must
/// not mean other rules now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signatures {
    known: BTreeMap<Digest, u16>,
}

impl Signatures {
    /// The numbers that an earlier process has left. A number that the mask does not hold, or that two rules
    /// have, does not count.
    pub fn left(numbers: BTreeMap<Digest, u32>, mask: MarkMask) -> Self {
        let mut owners: BTreeMap<u16, Vec<Digest>> = BTreeMap::new();
        for (digest, number) in numbers {
            if let Some(number) = u16::try_from(number).ok().filter(|one| *one != 0) {
                owners.entry(number).or_default().push(digest);
            }
        }
        let single = owners
            .into_iter()
            .filter(|(number, owners)| *number <= mask.signatures() && owners.len() == 1);
        let known =
            single.flat_map(|(number, owners)| owners.into_iter().map(move |one| (one, number)));
        Self {
            known: known.collect(),
        }
    }

    /// The number of each signature, by the digest of its rules.
    pub fn known(&self) -> &BTreeMap<Digest, u16> {
        &self.known
    }

    /// The parts of all applications. Rules that had a signature keep it. Others get one that neither the
    /// policy in force nor an open socket (`carried`) uses, as long as there is one.
    pub fn plan(
        &mut self,
        tables: &Tables,
        carried: &BTreeSet<u16>,
        mask: MarkMask,
    ) -> Result<Vec<Application>, IpsecError> {
        let mut applications = Vec::with_capacity(tables.applications.len());
        let mut wanted: BTreeMap<Networks, u16> = BTreeMap::new();
        for rules in &tables.applications {
            let lines = |(network, treatment): &(IpNet, Treatment)| {
                Ok((*network, plan_lines(tables, *treatment)?))
            };
            let networks = rules.networks.iter().map(lines);
            let networks = networks.collect::<Result<Networks, IpsecError>>()?;
            if rules.signature != 0 {
                wanted.insert(networks.clone(), 0);
            }
            applications.push(Application {
                networks,
                signature: rules.signature,
            });
        }
        self.number(&mut wanted, carried, mask)?;
        for application in &mut applications {
            if application.signature != 0 {
                application.signature = wanted[&application.networks];
            }
        }
        self.known = wanted
            .iter()
            .map(|(networks, number)| (digest(networks), *number))
            .collect();
        Ok(applications)
    }

    fn number(
        &self,
        wanted: &mut BTreeMap<Networks, u16>,
        carried: &BTreeSet<u16>,
        mask: MarkMask,
    ) -> Result<(), IpsecError> {
        let room = mask.signatures();
        if wanted.len() > usize::from(room) {
            return Err(IpsecError::Signatures {
                asked: wanted.len(),
                room,
                mask: mask.bits(),
            });
        }
        let mut taken = vec![false; usize::from(room) + 1];
        for (networks, number) in wanted.iter_mut() {
            *number = self.known.get(&digest(networks)).copied().unwrap_or(0);
            taken[usize::from(*number)] = true;
        }
        let mut former = vec![false; usize::from(room) + 1];
        for number in self.known.values().chain(carried) {
            former[usize::from(*number)] = true;
        }
        let fresh = (1..=room).filter(|number| !former[usize::from(*number)]);
        let reused = (1..=room).filter(|number| former[usize::from(*number)]);
        let mut free = fresh
            .chain(reused)
            .filter(|number| !taken[usize::from(*number)]);
        for number in wanted.values_mut().filter(|number| **number == 0) {
            // There are as many as `room`, and each is wanted once.
            *number = free.next().unwrap_or(room);
        }
        Ok(())
    }
}

/// The digest of rules. Its form never changes, because the rules of an earlier process are found by it.
fn digest(networks: &Networks) -> Digest {
    let mut hash = Sha256::new();
    for (network, lines) in networks {
        let family = if network.addr().is_ipv4() { 4 } else { 6 };
        hash.update([family, network.prefix_len()]);
        match network {
            IpNet::V4(network) => hash.update(network.addr().octets()),
            IpNet::V6(network) => hash.update(network.addr().octets()),
        }
        // Only the last line is of all ports, so it shows the end.
        for line in lines {
            hash.update(line.local.unwrap_or(0).to_be_bytes());
            hash.update(line.remote.unwrap_or(0).to_be_bytes());
            hash.update([line.class]);
        }
    }
    let mut digest = Digest::default();
    let half = digest.len();
    digest.copy_from_slice(&hash.finalize()[..half]);
    digest
}

fn plan_lines(tables: &Tables, treatment: Treatment) -> Result<Vec<Line>, IpsecError> {
    let list = match treatment {
        Treatment::Bypass => return Ok(vec![Line::all(BYPASS)]),
        Treatment::Discard => return Ok(vec![Line::all(DISCARD)]),
        Treatment::Items(list) => &tables.item_lists[list],
    };
    let mut lines: Vec<Line> = Vec::with_capacity(list.len() + 1);
    for item in list {
        let (class, level) = tables.classes[item.class];
        let line = Line {
            local: item.local_port.map(Into::into),
            remote: item.remote_port.map(Into::into),
            class: class.mark(level),
        };
        let same = |other: &Line| (other.local, other.remote) == (line.local, line.remote);
        if !lines.iter().any(same) {
            lines.push(line);
        }
        if line.is_of_all_ports() {
            break;
        }
    }
    if !lines.last().is_some_and(|line| line.is_of_all_ports()) {
        lines.push(Line::all(DISCARD));
    }
    if lines.len() > MOST_LINES {
        return Err(IpsecError::Items {
            asked: list.len(),
            room: MOST_LINES - 1,
        });
    }
    Ok(lines)
}
