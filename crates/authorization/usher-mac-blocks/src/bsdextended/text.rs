//! Rules back to text: the words of a rule, and its canonical form.

use std::fmt::{self, Display, Formatter};

use usher_language::{Quoted, joined};

use super::model::{AccessRule, AccountRange, Membership};

/// The conditions of `subject`, in the canonical order.
pub const SUBJECT: [&str; 2] = ["uid", "gid"];

/// The conditions of `object`, in the canonical order.
pub const OBJECT: [&str; 8] = [
    "uid",
    "gid",
    "filesys",
    "suid",
    "sgid",
    "uid_of_subject",
    "gid_of_subject",
    "type",
];

/// Whether a word is one of a rule's own: it ends the values of the condition before it.
pub(super) fn is_reserved(word: &str) -> bool {
    OBJECT.contains(&word) || ["not", "subject", "object", "mode"].contains(&word)
}

impl Display for AccessRule {
    /// The canonical form, without `;`.
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let subject = [&self.subject.users, &self.subject.groups];
        let subject: Vec<String> = memberships(subject).collect();
        let object = &self.object;
        let file_system = object.file_system.as_ref();
        let types = object.types.as_ref();
        let flags = [
            object.suid,
            object.sgid,
            object.uid_of_subject,
            object.gid_of_subject,
        ];
        let flags = OBJECT[3..7].iter().zip(flags);
        let object: Vec<String> = memberships([&object.users, &object.groups])
            .chain(file_system.map(|(is, path)| format!("{}filesys {}", not(!is), Quoted(path))))
            .chain(flags.filter_map(|(flag, is)| Some(format!("{}{flag}", not(!is?)))))
            .chain(types.map(|(is, types)| format!("{}type {}", not(!is), types.letters())))
            .collect();
        formatter.write_str("rule")?;
        for (side, conditions) in [("subject", subject), ("object", object)] {
            if !conditions.is_empty() {
                write!(formatter, " {side} {}", joined(conditions, " "))?;
            }
        }
        write!(formatter, " mode {}", self.mode.letters())
    }
}

fn memberships(conditions: [&Option<Membership>; 2]) -> impl Iterator<Item = String> {
    let conditions = SUBJECT.into_iter().zip(conditions);
    conditions.filter_map(|(condition, membership)| {
        let Membership {
            not: turned,
            accounts,
        } = membership.as_ref()?;
        Some(format!(
            "{}{condition} {}",
            not(*turned),
            joined(accounts, " ")
        ))
    })
}

fn not(turned: bool) -> &'static str {
    if turned { "not " } else { "" }
}

impl Display for AccountRange {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Numbers(first, last) if first == last => write!(formatter, "{first}"),
            Self::Numbers(first, last) => write!(formatter, "{first}:{last}"),
        }
    }
}
