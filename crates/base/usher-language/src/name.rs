//! Names, and how dialects read theirs.

use std::str::FromStr;

use crate::faults::StatementMistake;
use crate::mistake::Found;

/// The rule for one kind of a dialect's names.
#[derive(Clone, Copy, Debug)]
pub struct NameRule {
    /// `user`, `host`.
    pub noun: &'static str,
    /// The sentence of messages that describes valid names.
    pub rule: &'static str,
    /// `any` is no such name: it is the language's word for all.
    pub any_is_reserved: bool,
}

impl NameRule {
    /// Reads a word as a name.
    ///
    /// # Errors
    ///
    /// The mistake of a word that is no such name.
    pub fn parse<N: FromStr>(&self, word: &str) -> Result<N, StatementMistake> {
        let reserved = self.any_is_reserved && word == "any";
        let name = word.parse().ok().filter(|_| !reserved);
        name.ok_or_else(|| StatementMistake::InvalidName {
            noun: self.noun,
            rule: self.rule,
            found: Found::from(word),
        })
    }
}

/// Declares a name: a text of a fixed form, checked when it is made.
#[macro_export]
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident, $fault:ident($told:literal): $holds:expr;)+) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        #[doc = concat!("The text is not a [`", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $fault;

        impl ::std::fmt::Display for $fault {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str($told)
            }
        }

        impl ::std::error::Error for $fault {}

        impl ::std::str::FromStr for $name {
            type Err = $fault;

            fn from_str(text: &str) -> Result<Self, $fault> {
                let holds: fn(&str) -> bool = $holds;
                if holds(text) { Ok(Self(text.to_owned())) } else { Err($fault) }
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl ::std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        })+
    };
}

names! {
    /// The name of a block: a letter or digit, then letters, digits, `_`, `.` and `-`, 1 to 32 bytes,
    /// all ASCII. `any` is reserved.
    Name, InvalidName("a name is a letter or digit, then letters, digits, `_`, `.` or `-`, at most 32 in all"):
        |text| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric();
            text.len() <= 32
                && text != "any"
                && text.bytes().next().is_some_and(letter)
                && text.bytes().all(|byte| letter(byte) || b"_.-".contains(&byte))
        };
}

impl Name {
    /// The rule for names, as a sentence of messages.
    pub const RULE: &'static str = "the name of a block is a letter or digit, then letters, digits, \
                                    `_`, `.` or `-`, at most 32 in all, and not `any`";

    pub(crate) fn mistake(found: &str) -> StatementMistake {
        StatementMistake::InvalidName {
            noun: "block",
            rule: Self::RULE,
            found: Found::from(found),
        }
    }
}

/// Words that sentences list: `a, b or c`.
pub(crate) fn listed<'w>(words: impl IntoIterator<Item = &'w str>, conjunction: &str) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("{} {conjunction} {last}", others.join(", "))
        }
        _ => words.concat(),
    }
}
