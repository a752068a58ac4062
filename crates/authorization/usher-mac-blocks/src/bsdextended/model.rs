//! A rule as data, with names unresolved.

use serde::Serialize;
use usher_language::Origin;

use crate::account::NamedAccount;

/// A rule: which processes may do what with which files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRule {
    /// The processes.
    pub subject: RuleSubject,
    /// The files.
    pub object: RuleObject,
    /// The access of the processes to the files.
    pub mode: AccessMode,
    /// Its place in the text.
    pub origin: Origin,
}

/// The processes of a rule. A condition that is missing matches every process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSubject {
    /// Their users.
    pub users: Option<Membership>,
    /// Their groups.
    pub groups: Option<Membership>,
}

/// The files of a rule. A condition that is missing matches every file. `Some(false)`
/// is the condition with `not`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleObject {
    /// Their owners.
    pub users: Option<Membership>,
    /// Their groups.
    pub groups: Option<Membership>,
    /// The file system of this path; if the bool is false, all others.
    pub file_system: Option<(bool, String)>,
    /// Files with the set-user-ID bit.
    pub suid: Option<bool>,
    /// Files with the set-group-ID bit.
    pub sgid: Option<bool>,
    /// Files whose owner is the process's user.
    pub uid_of_subject: Option<bool>,
    /// Files whose group is one of the process's.
    pub gid_of_subject: Option<bool>,
    /// Types of files; if the bool is false, all others.
    pub types: Option<(bool, FileTypes)>,
}

/// Users or groups of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Whether all others are meant.
    pub not: bool,
    /// In the order of the text, 1 to [`MAXIMUM_RANGES`](crate::limits::MAXIMUM_RANGES).
    pub accounts: Vec<AccountRange>,
}

/// One user or group, or a range of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountRange {
    /// By name.
    Name(String),
    /// By number, first and last.
    Numbers(u32, u32),
}

/// Types of files: letters of `rdbclsp` in this order, each at most once, at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileTypes(String);

/// Kinds of access: letters of `arswx` in this order, each at most once, or `n` for none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessMode(String);

impl AccessRule {
    /// The users and groups that it names.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = NamedAccount<'_>> {
        let memberships = [
            (&self.subject.users, false),
            (&self.subject.groups, true),
            (&self.object.users, false),
            (&self.object.groups, true),
        ];
        let named = memberships.into_iter().flat_map(|(membership, is_group)| {
            let accounts = membership.iter().flat_map(|members| &members.accounts);
            accounts.map(move |account| (account, is_group))
        });
        named.filter_map(|(account, is_group)| match account {
            AccountRange::Name(name) => Some(NamedAccount {
                is_group,
                name,
                origin: &self.origin,
            }),
            AccountRange::Numbers(..) => None,
        })
    }
}

impl Membership {
    /// Whether root is one of the named accounts.
    pub(super) fn names_root(&self) -> bool {
        self.accounts.iter().any(|account| match account {
            AccountRange::Name(name) => name == "root",
            AccountRange::Numbers(first, _) => *first == 0,
        })
    }
}

impl FileTypes {
    /// The types of these letters, in any order. None for other letters, or if a letter stands
    /// twice.
    pub fn parse(text: &str) -> Option<Self> {
        in_order(text, "rdbclsp").map(Self)
    }

    /// The letters.
    pub fn letters(&self) -> &str {
        &self.0
    }
}

impl AccessMode {
    /// The mode of these letters, in any order. None for other letters, or if a letter stands twice.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "n" => Some(Self::default()),
            text => in_order(text, "arswx").map(Self),
        }
    }

    /// The letters.
    pub fn letters(&self) -> &str {
        &self.0
    }
}

impl Default for AccessMode {
    /// No access.
    fn default() -> Self {
        Self("n".to_owned())
    }
}

/// The letters of a text in the order of the alphabet, if it has at least one, and no other and none
/// twice.
fn in_order(text: &str, alphabet: &str) -> Option<String> {
    let ordered: String = alphabet
        .chars()
        .filter(|letter| text.contains(*letter))
        .collect();
    (!text.is_empty() && ordered.len() == text.len()).then_some(ordered)
}
