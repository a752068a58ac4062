//! Groups of accounts that `users` blocks name. The caller finds out who is in them, because this
//! crate does no I/O; which of these accounts a policy takes is decided here.

use std::collections::{BTreeMap, BTreeSet};

use usher_base::UserName;

use crate::names::GroupName;

/// By group the names of its accounts, as the system says them, or why they are not known.
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
    /// Those of its accounts that can be users.
    pub members: BTreeSet<UserName>,
    /// The others: `root`, accounts of Usher's daemons, what is no user name.
    pub left_out: BTreeSet<String>,
}

impl Group {
    /// Of a group with these accounts.
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

/// Whether an account is one of Usher's own daemons' (`usher-signer` and its like).
pub(crate) fn is_ushers(account: &UserName) -> bool {
    account.as_ref().starts_with("usher-")
}
