//! Compiles `application` blocks to [`Tables`].
//!
//! The text decides by its order: the first network that has the peer. The kernel decides by the longest
//! prefix. Of two networks that have the peer, one lies inside the other. So both agree once every network
//! that lies inside an earlier one is left out: of those that are left, the longest is the earliest. Ranges
//! are cut into networks before.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU16;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use usher_language::Diagnostic;

use crate::class::{Class, Level};
use crate::limits::MAXIMUM_NETWORKS;
use crate::mistake::ProtectionMistake;
use crate::model::{Application, NetworkType, Protection};
use crate::names::Names;
use crate::tables::{Item, Rules, Tables, Treatment};

/// The tables of a policy, with what its names stand for at the moment. `signatures`: the number of
/// different ones that the mask of the socket mark has room for.
///
/// The entry of an application depends on its own block and on `names` alone.
///
/// # Errors
///
/// A [`ProtectionMistake`] at the block that needs more signatures or more entries than there is room
/// for ([`MAXIMUM_NETWORKS`]): then there are no tables at all.
pub fn compile(
    applications: &[Application],
    names: &Names,
    signatures: u16,
) -> Result<Tables, Diagnostic> {
    let mut compiler = Compiler::default();
    let mut left = MAXIMUM_NETWORKS;
    let mut rules = Vec::new();
    for block in applications {
        let refuse = |mistake| Diagnostic::at(&block.origin, mistake);
        let application = block.name();
        let networks = compiler.networks(block, names);
        left = match left.checked_sub(networks.len()) {
            Some(left) => left,
            None => return Err(refuse(ProtectionMistake::TooManyNetworks { application })),
        };
        let signature = u16::try_from(compiler.signature(&networks)).ok();
        let Some(signature) = signature.filter(|signature| *signature <= signatures) else {
            let most = signatures;
            let mistake = ProtectionMistake::TooManySignatures { application, most };
            return Err(refuse(mistake));
        };
        rules.push(Rules {
            programs: block.programs.clone(),
            signature,
            networks,
        });
    }
    Ok(compiler.tables(rules))
}

/// An item whose class has no index yet.
type ItemOfClass = (Option<NonZeroU16>, Option<NonZeroU16>, (Class, Level));

/// Parts of the tables that applications share, and maps to find them again.
#[derive(Default)]
struct Compiler {
    lists: Vec<Vec<ItemOfClass>>,
    list_indices: HashMap<Vec<ItemOfClass>, usize>,
    signatures: HashMap<Vec<(IpNet, Treatment)>, usize>,
}

impl Compiler {
    /// The networks of a block for the longest-prefix match.
    fn networks(&mut self, block: &Application, names: &Names) -> Vec<(IpNet, Treatment)> {
        let mut taken = Prefixes::default();
        for (network, ranges) in block.deciding(names).networks {
            let treatment = match &network.network_type {
                NetworkType::Trusted => Treatment::Bypass,
                NetworkType::Untrusted => Treatment::Discard,
                NetworkType::Protected(name) => match block.protections.get(name) {
                    Some(protection) => self.treatment(protection),
                    None => Treatment::Discard,
                },
            };
            for range in ranges {
                for prefix in range.networks() {
                    taken.take(prefix, treatment);
                }
            }
        }
        for all in [Ipv4Net::default().into(), Ipv6Net::default().into()] {
            taken.take(all, Treatment::Discard);
        }
        taken.into_needed()
    }

    /// The list of a protection's items, which is made if there is none like it.
    fn treatment(&mut self, protection: &Protection) -> Treatment {
        let deciding = protection.deciding().into_iter();
        let items = deciding.map(|item| (item.local, item.remote, (item.class(), item.level)));
        let mut items: Vec<ItemOfClass> = items.collect();
        // Items just before the item of all ports are needless if they say the same.
        if let Some(last @ (None, None, class)) = items.last().copied() {
            items.pop();
            while items.last().is_some_and(|(.., other)| *other == class) {
                items.pop();
            }
            items.push(last);
        }
        let lists = &mut self.lists;
        let index = self.list_indices.entry(items).or_insert_with_key(|items| {
            lists.push(items.clone());
            lists.len() - 1
        });
        Treatment::Items(*index)
    }

    /// The signature of these networks: 0 where all traffic has one treatment, else a number from 1
    /// on.
    fn signature(&mut self, networks: &[(IpNet, Treatment)]) -> usize {
        let is_one = match networks {
            [(_, one), (_, other)] if one == other => match one {
                Treatment::Items(list) => matches!(*self.lists[*list], [(None, None, _)]),
                Treatment::Bypass | Treatment::Discard => true,
            },
            _ => false,
        };
        if is_one {
            return 0;
        }
        let next = self.signatures.len() + 1;
        *self.signatures.entry(networks.to_vec()).or_insert(next)
    }

    /// The tables, with the classes that the lists need.
    fn tables(self, applications: Vec<Rules>) -> Tables {
        let classes = self.lists.iter().flatten().map(|(.., class)| *class);
        let classes: BTreeSet<(Class, Level)> = classes.collect();
        let indices: BTreeMap<_, usize> = classes.iter().copied().zip(0..).collect();
        let item = |(local_port, remote_port, class)| Item {
            local_port,
            remote_port,
            class: indices[&class],
        };
        let lists = self.lists.into_iter();
        let lists = lists.map(|items| items.into_iter().map(item).collect());
        Tables {
            item_lists: lists.collect(),
            classes: classes.into_iter().collect(),
            applications,
            ..Tables::default()
        }
    }
}

/// Prefixes, each with the treatment that it was taken for first.
#[derive(Default)]
struct Prefixes {
    taken: HashSet<IpNet>,
    in_order: Vec<(IpNet, Treatment)>,
}

impl Prefixes {
    /// Takes a prefix, unless an earlier one has all its addresses.
    fn take(&mut self, prefix: IpNet, treatment: Treatment) {
        let mut around = Some(prefix);
        while let Some(network) = around {
            if self.taken.contains(&network) {
                return;
            }
            around = network.supernet();
        }
        self.taken.insert(prefix);
        self.in_order.push((prefix, treatment));
    }

    /// The prefixes in their order, without those that say the same as the next larger one around them.
    fn into_needed(mut self) -> Vec<(IpNet, Treatment)> {
        // A network comes right before those inside of it.
        self.in_order.sort_unstable();
        let mut needed = Vec::new();
        let mut around: Vec<(IpNet, Treatment)> = Vec::new();
        for entry in self.in_order {
            while around
                .last()
                .is_some_and(|(outer, _)| !outer.contains(&entry.0))
            {
                around.pop();
            }
            if around
                .last()
                .is_none_or(|(_, treatment)| *treatment != entry.1)
            {
                needed.push(entry);
                around.push(entry);
            }
        }
        needed
    }
}
