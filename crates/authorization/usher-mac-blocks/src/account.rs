//! Users and groups as statements name them.

use std::fmt::{self, Display, Formatter};

use usher_language::{Field, Found, Item, Origin, digits};

use crate::mistake::MacMistake;

/// The largest number of a user or group: the next one means that none is set.
const LAST_ID: u64 = u32::MAX as u64 - 1;

/// Limit of characters of a name.
const LONGEST_NAME: usize = 64;

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccountId {
    /// By name.
    Name(String),
    /// By number.
    Number(u32),
}

impl AccountId {
    /// Whether this is root, the user or the group.
    pub fn is_root(&self) -> bool {
        match self {
            Self::Name(name) => name == "root",
            Self::Number(number) => *number == 0,
        }
    }

    /// A value of a statement; reported where it is neither a name nor a number. `noun`: user or group.
    pub(crate) fn read(field: &Field<'_>, item: &Item, noun: &'static str) -> Option<Self> {
        let word = item.word().or_else(|| field.expected_word(item))?;
        let found = Found::from(word);
        Self::of(word).or_else(|| field.refuse(item, MacMistake::NoAccount { found, noun }))
    }

    /// The account of this name or number; none for a text that is neither.
    pub fn of(text: &str) -> Option<Self> {
        let named = || is_account_name(text).then(|| Self::Name(text.to_owned()));
        id(text).map(Self::Number).or_else(named)
    }
}

/// A user or a group that a statement names. Only the host knows whether it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedAccount<'p> {
    /// It is a group, or else a user.
    pub is_group: bool,
    /// Its name.
    pub name: &'p str,
    /// The statement.
    pub origin: &'p Origin,
}

impl<'p> NamedAccount<'p> {
    /// The account if it is given by name. Every host knows an account that is given by number.
    pub(crate) fn of(account: &'p AccountId, is_group: bool, origin: &'p Origin) -> Option<Self> {
        match account {
            AccountId::Name(name) => Some(Self {
                is_group,
                name,
                origin,
            }),
            AccountId::Number(_) => None,
        }
    }
}

impl Display for AccountId {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Number(number) => write!(formatter, "{number}"),
        }
    }
}

/// A number of a user or group.
pub(crate) fn id(text: &str) -> Option<u32> {
    let number = digits(text).filter(|number| *number <= LAST_ID)?;
    u32::try_from(number).ok()
}

/// Whether an account or a group can have this name. No name begins with a digit, because it could not be
/// told from a number.
pub(crate) fn is_account_name(text: &str) -> bool {
    let begins = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    let goes_on = |letter: char| letter.is_ascii_alphanumeric() || "_.-@+\\$".contains(letter);
    text.len() <= LONGEST_NAME && text.starts_with(begins) && text.chars().all(goes_on)
}
