//! Sets of users, exact and small. Users who are in the same sets of all policies form a class, a
//! set is a bitmap of classes, and equal sets have one number (docs/adr/0025-sets-of-users.md).

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use usher_base::UserName;
use usher_policy::{Service, joined, may_be_user};

use crate::network::{Holders, Network};

/// A set of users of a [`Universe`]. Equal sets have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(u32);

impl SetId {
    /// The empty set, in every universe.
    pub const NOBODY: Self = Self(0);
}

/// All users of some networks, and the sets made of them.
#[derive(Debug, Default)]
pub struct Universe<'n> {
    /// The users of each class, by name.
    classes: Vec<Vec<&'n UserName>>,
    class_of: HashMap<&'n UserName, u32>,
    /// Bits of each set: bit `c % 64` of word `c / 64` is class `c`.
    sets: Vec<Box<[u64]>>,
    numbers: HashMap<Box<[u64]>, SetId>,
    /// The policies' sets, by address: they are borrowed, so none moves.
    borrowed: HashMap<usize, SetId>,
    /// Sets already made of two others.
    made: HashMap<(Operation, SetId, SetId), SetId>,
    samples: HashMap<SetId, Arc<Sample>>,
    /// Users who each form a class.
    set_apart: Vec<&'n UserName>,
    /// By a service's address, the users whom no certificate makes users of the service; computed once for
    /// each service.
    pub(crate) barred: HashMap<usize, SetId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Both,
    Without,
    Either,
}

impl<'n> Universe<'n> {
    /// The users of these networks together.
    pub fn new(networks: &[&'n Network]) -> Self {
        let sets = distinct_sets(networks);
        let mut class_of: HashMap<&'n UserName, u32> = HashMap::new();
        // Every set splits each class into the users inside and outside it.
        let mut classes = 1;
        for set in &sets {
            let mut within: HashMap<u32, u32> = HashMap::new();
            for user in *set {
                let class = class_of.entry(user).or_insert(0);
                *class = *within.entry(*class).or_insert_with(|| {
                    classes += 1;
                    classes - 1
                });
            }
        }
        let set_apart = not_certifiable_everywhere(networks, class_of.keys().copied());
        for user in &set_apart {
            class_of.insert(user, classes);
            classes += 1;
        }
        let mut universe = Self {
            class_of,
            set_apart: set_apart.into_iter().collect(),
            ..Self::default()
        };
        universe.number_classes();
        universe.of_classes([]);
        for set in sets {
            let classes: Vec<usize> = set.iter().map(|user| universe.class(user)).collect();
            let number = universe.of_classes(classes);
            universe.borrowed.insert(address_of_set(set), number);
        }
        universe
    }

    /// Numbers the non-empty classes, in the order of the users' names.
    fn number_classes(&mut self) {
        let mut users: Vec<&'n UserName> = self.class_of.keys().copied().collect();
        users.sort();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for user in users {
            let Some(class) = self.class_of.get_mut(user) else {
                continue;
            };
            let next = self.classes.len();
            let number = *numbers
                .entry(*class)
                .or_insert(u32::try_from(next).expect("fewer classes than users"));
            if number as usize == next {
                self.classes.push(Vec::new());
            }
            *class = number;
            self.classes[number as usize].push(user);
        }
    }

    fn words(&self) -> usize {
        self.classes.len().div_ceil(64)
    }

    /// The class of a user in the universe.
    fn class(&self, user: &UserName) -> usize {
        self.class_of[user] as usize
    }

    fn of_classes(&mut self, classes: impl IntoIterator<Item = usize>) -> SetId {
        let mut bits = vec![0; self.words()];
        for class in classes {
            bits[class / 64] |= 1 << (class % 64);
        }
        self.number(bits)
    }

    fn number(&mut self, bits: Vec<u64>) -> SetId {
        let bits = bits.into_boxed_slice();
        if let Some(number) = self.numbers.get(&bits) {
            return *number;
        }
        let number = SetId(u32::try_from(self.sets.len()).expect("memory ends before"));
        self.sets.push(bits.clone());
        self.numbers.insert(bits, number);
        number
    }

    fn make(&mut self, operation: Operation, left: SetId, right: SetId) -> SetId {
        if let Some(number) = self.made.get(&(operation, left, right)) {
            return *number;
        }
        let bits = self.bits(left).iter().zip(self.bits(right));
        let bits = bits.map(|(left, right)| match operation {
            Operation::Both => left & right,
            Operation::Without => left & !right,
            Operation::Either => left | right,
        });
        let bits = bits.collect();
        let number = self.number(bits);
        self.made.insert((operation, left, right), number);
        number
    }

    fn bits(&self, set: SetId) -> &[u64] {
        &self.sets[set.0 as usize]
    }

    /// A set of one of the networks' policies, or of the known states of their users.
    pub(crate) fn of(&self, set: &'n BTreeSet<UserName>) -> SetId {
        self.borrowed[&address_of_set(set)]
    }

    /// All users of the universe.
    pub(crate) fn everybody(&mut self) -> SetId {
        self.of_classes(0..self.classes.len())
    }

    /// The set of one user of [`Self::set_apart`].
    pub(crate) fn single(&mut self, user: &UserName) -> SetId {
        self.of_classes([self.class(user)])
    }

    /// Users who each form a class.
    pub(crate) fn set_apart(&self) -> Vec<&'n UserName> {
        self.set_apart.clone()
    }

    /// Whether a policy or a known state of users names a user.
    pub(crate) fn knows(&self, user: &UserName) -> bool {
        self.class_of.contains_key(user)
    }

    /// The users in both sets.
    pub fn both(&mut self, left: SetId, right: SetId) -> SetId {
        self.make(Operation::Both, left, right)
    }

    /// The users in `left` but not in `right`.
    pub fn without(&mut self, left: SetId, right: SetId) -> SetId {
        self.make(Operation::Without, left, right)
    }

    /// The users in either set.
    pub fn either(&mut self, left: SetId, right: SetId) -> SetId {
        self.make(Operation::Either, left, right)
    }

    /// Whether a user is in a set.
    pub fn contains(&self, set: SetId, user: &UserName) -> bool {
        let class = self.class_of.get(user);
        class.is_some_and(|&class| self.has(set, class as usize))
    }

    fn has(&self, set: SetId, class: usize) -> bool {
        self.bits(set)[class / 64] >> (class % 64) & 1 == 1
    }

    /// The users of a set, by name.
    pub fn users(&self, set: SetId) -> Vec<&'n UserName> {
        let classes = (0..self.classes.len()).filter(|&class| self.has(set, class));
        let users = classes.flat_map(|class| &self.classes[class]);
        let mut users: Vec<&'n UserName> = users.copied().collect();
        users.sort();
        users
    }

    /// The size of a set and its first users; computed once for each set.
    pub fn sample(&mut self, set: SetId) -> Arc<Sample> {
        if let Some(known) = self.samples.get(&set) {
            return Arc::clone(known);
        }
        let users = self.users(set);
        let sample = Arc::new(Sample {
            count: users.len(),
            first: users.into_iter().take(SHOWN).cloned().collect(),
        });
        self.samples.insert(set, Arc::clone(&sample));
        sample
    }

    /// The classes: groups of users who are in the same sets of all policies.
    pub fn classes(&self) -> &[Vec<&'n UserName>] {
        &self.classes
    }
}

/// The part of a set that is shown to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The number of users.
    pub count: usize,
    /// The first users by name, at most [`SHOWN`].
    pub first: Vec<UserName>,
}

/// Limit of names of a [`Sample`].
pub const SHOWN: usize = 8;

impl fmt::Display for Sample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&joined(&self.first, ", "))?;
        match self.count - self.first.len() {
            0 => Ok(()),
            rest => write!(formatter, " and {rest} more"),
        }
    }
}

fn address_of_set(set: &BTreeSet<UserName>) -> usize {
    std::ptr::from_ref(set).addr()
}

/// Every distinct set of users that affects a decision.
fn distinct_sets<'n>(networks: &[&'n Network]) -> Vec<&'n BTreeSet<UserName>> {
    let mut sets: HashMap<usize, &'n BTreeSet<UserName>> = HashMap::new();
    let mut order = Vec::new();
    let mut take = |set: &'n BTreeSet<UserName>| {
        if sets.insert(address_of_set(set), set).is_none() {
            order.push(set);
        }
    };
    for host in networks.iter().flat_map(|network| network.hosts()) {
        host.policy
            .services
            .values()
            .for_each(|service| take(service.users.names()));
        host.policy
            .client_services()
            .for_each(|entry| take(entry.users.names()));
        take(&host.users.disabled);
        let keys = host.users.keys.iter().flat_map(|keys| keys.values());
        keys.for_each(&mut take);
        for service in host.policy.services.values() {
            for principal in service.users.principals() {
                if let Holders::These(users) = host.users.certified(service, principal) {
                    take(users);
                }
            }
        }
    }
    order
}

/// The users whom no certificate makes users of every service, as far as these networks know them:
/// those who can never be users, and accounts of services.
fn not_certifiable_everywhere<'n>(
    networks: &[&'n Network],
    users: impl Iterator<Item = &'n UserName>,
) -> BTreeSet<&'n UserName> {
    let hosts = networks.iter().flat_map(|network| network.hosts());
    let services = hosts.flat_map(|host| host.policy.services.values());
    let mut services = services
        .filter(|service| !service.users.principals().is_empty())
        .peekable();
    if services.peek().is_none() {
        return BTreeSet::new();
    }
    let accounts = services.filter_map(Service::account);
    users
        .filter(|user| !may_be_user(user))
        .chain(accounts)
        .collect()
}
