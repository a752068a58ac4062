//! The users of several sets together: their names, the times of guests, and the principals whose
//! certificates make their holders users. The caller finds out who is in a group, because this crate does no
//! I/O. This module decides which of these accounts a policy takes.

use std::collections::{BTreeMap, BTreeSet};

use usher_base::UserName;
use usher_language::Name;

use crate::moment::Moment;
use crate::names::{GroupName, Principal};

/// A `users` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Users {
    /// The block's name.
    pub name: Name,
    /// The users that it lists.
    pub members: BTreeSet<UserName>,
    /// The groups of accounts that it names, as they were when they were looked up.
    pub groups: BTreeMap<GroupName, Group>,
    /// Users who are in the set until a time. None of them is also in [`Self::members`].
    pub guests: BTreeMap<UserName, Moment>,
    /// In the policy of a time ([`crate::Policy::at`]), the guests whose time was over by then.
    pub former: BTreeMap<UserName, Moment>,
    /// Holders of a certificate that names one of these are in the set, too.
    pub principals: BTreeSet<Principal>,
}

impl Users {
    /// All its users by name, including guests whose time is over. A name may appear more than once.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        self.lasting().chain(self.guests.keys())
    }

    /// Its users without the guests. A name may appear more than once.
    pub fn lasting(&self) -> impl Iterator<Item = &UserName> {
        let groups = self.groups.values();
        self.members
            .iter()
            .chain(groups.flat_map(|group| &group.members))
    }

    /// Whether a user is in the set by name, a guest whatever the time.
    pub fn has(&self, user: &UserName) -> bool {
        let mut groups = self.groups.values();
        self.members.contains(user)
            || self.guests.contains_key(user)
            || groups.any(|group| group.members.contains(user))
    }
}

/// Users, some of them until a time. A user of several sets is one until the latest of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    names: BTreeSet<UserName>,
    /// Users who are guests in every set that has them, with the time until which they are: seconds since
    /// 1970.
    guests: BTreeMap<UserName, u64>,
    principals: BTreeSet<Principal>,
}

/// A principal of a certificate whose authority policy trusts to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedPrincipal<'c> {
    /// A principal of the certificate.
    pub name: &'c str,
    /// The second, since 1970, from which on the authority is no longer trusted with this principal. The
    /// certificate itself may end earlier.
    pub until: u64,
}

impl Members {
    /// The members of these sets.
    pub fn of<'u>(sets: impl IntoIterator<Item = &'u Users>) -> Self {
        let mut members = Self::default();
        let mut always = BTreeSet::new();
        for set in sets {
            always.extend(set.lasting().cloned());
            members.principals.extend(set.principals.iter().cloned());
            for (user, until) in &set.guests {
                let latest = members.guests.entry(user.clone()).or_default();
                *latest = until.unix_time().max(*latest);
            }
        }
        members.guests.retain(|user, _| !always.contains(user));
        members.names = always;
        members.names.extend(members.guests.keys().cloned());
        members
    }

    /// All names, also those of guests whose time is over (see [`Self::until`]). Users by a certificate are
    /// not among them.
    pub fn names(&self) -> &BTreeSet<UserName> {
        &self.names
    }

    /// The second, since 1970, at which a user's time ends: [`u64::MAX`] for a user who is no guest;
    /// none for a name that is not in the sets.
    pub fn until(&self, user: &UserName) -> Option<u64> {
        let never = self.names.contains(user).then_some(u64::MAX);
        self.guests.get(user).copied().or(never)
    }

    /// Principals of which one suffices in a certificate to make its holder a user.
    pub fn principals(&self) -> &BTreeSet<Principal> {
        &self.principals
    }

    /// The second, since 1970, at which the time of a certificate with these principals ends; none
    /// if they make its holder no user.
    pub(crate) fn until_by(&self, principals: &[TrustedPrincipal<'_>]) -> Option<u64> {
        let named = principals
            .iter()
            .filter(|principal| self.principals.contains(principal.name));
        named.map(|principal| principal.until).max()
    }

    /// Whether this is a user by name at this time, in seconds since 1970.
    pub fn has(&self, user: &UserName, now: u64) -> bool {
        self.until(user).is_some_and(|until| until > now)
    }

    /// Whether there is no user, at any time and by any certificate.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.principals.is_empty()
    }

    /// The members who are left at a time.
    pub(crate) fn at(&self, now: u64) -> Self {
        let mut left = self.clone();
        left.guests.retain(|_, until| *until > now);
        left.names.retain(|user| self.has(user, now));
        left
    }

    pub(crate) fn has_any_over(&self, now: u64) -> bool {
        self.guests.values().any(|until| *until <= now)
    }
}

/// The names of each group's accounts, as the system returns them, or why they are not known.
pub type Groups = BTreeMap<GroupName, Result<BTreeSet<String>, Unresolved>>;

/// The reason why the caller could not look a name up, for messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unresolved(pub String);

/// Limit of accounts of a group.
pub const MAXIMUM_GROUP_MEMBERS: usize = 65_536;

/// A group in a `users` block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The accounts that can be users.
    pub members: BTreeSet<UserName>,
    /// The other accounts: `root`, those of Usher's daemons, and names that no user can have.
    pub left_out: BTreeSet<String>,
}

impl Group {
    /// A group with these accounts.
    pub(crate) fn of(accounts: &BTreeSet<String>) -> Self {
        let mut group = Self::default();
        for account in accounts {
            match account.parse::<UserName>() {
                Ok(user) if may_be_user(&user) => {
                    group.members.insert(user);
                }
                _ => {
                    group.left_out.insert(account.clone());
                }
            }
        }
        group
    }
}

/// Whether an account may be a user of services at all: neither `root` nor one of Usher's daemons.
pub fn may_be_user(account: &UserName) -> bool {
    account.as_ref() != "root" && !is_ushers(account)
}

/// Whether an account is that of one of Usher's daemons, such as `usher-signer`.
pub(crate) fn is_ushers(account: &UserName) -> bool {
    account.as_ref().starts_with("usher-")
}
