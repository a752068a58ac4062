//! Kinds of values: the form that a text must have, and its meaning.

use crate::address::digits;
use crate::faults::StatementMistake;
use crate::item::{Item, Value};
use crate::mistake::Found;
use crate::name::Name;
use crate::print::{Size, seconds};
use crate::report::Reporter;

/// The kind of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Digits without sign or leading zero.
    Number {
        /// The lowest.
        least: u64,
        /// The highest.
        most: u64,
    },
    /// A TCP port, 1 to 65,535.
    Port,
    /// A whole number with the unit s, m or h; limits in seconds.
    Duration {
        /// The shortest.
        least: u64,
        /// The longest.
        most: u64,
    },
    /// A number of bytes with the unit K, M, G or T, powers of 1,024; limits in bytes.
    Size {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// A whole number with `%`, from 1 on.
    Percent {
        /// The highest.
        most: u64,
    },
    /// Exactly so many octal digits.
    Octal(usize),
    /// One of a few words.
    Choice(Vec<String>),
    /// A [`Name`].
    Name,
    /// A word whose meaning the dialect knows, with the placeholder for it in forms.
    Word(String),
    /// A string, with the placeholder for it in forms, which has quotes.
    Text(String),
}

/// A value that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// A number: seconds, bytes or percent if the kind has a unit.
    Number(u64),
    /// A word.
    Word(String),
    /// A string, without its quotes.
    Text(String),
}

impl Kind {
    /// The placeholders for values of this kind in forms.
    pub(crate) fn placeholders(&self) -> Vec<String> {
        let one = |text: &str| vec![text.to_owned()];
        match self {
            Self::Number { .. } => one("NUMBER"),
            Self::Port => one("PORT"),
            Self::Duration { .. } => one("10m"),
            Self::Size { .. } => one("512M"),
            Self::Percent { .. } => one("50%"),
            Self::Octal(digits) => vec!["027".chars().cycle().take(*digits).collect()],
            Self::Choice(words) => words.clone(),
            Self::Name => one("NAME"),
            Self::Word(what) | Self::Text(what) => one(what),
        }
    }

    /// The number that a text means; none for a text of another kind, and for kinds that are no
    /// numbers.
    pub fn number(&self, text: &str) -> Option<u64> {
        let (number, least, most) = match *self {
            Self::Number { least, most } => (digits(text), least, most),
            Self::Port => (digits(text), 1, u16::MAX.into()),
            Self::Duration { least, most } => {
                let units = [('s', 1), ('m', 60), ('h', 3600)];
                let duration = units.into_iter().find_map(|(letter, unit)| {
                    digits(text.strip_suffix(letter)?)?.checked_mul(unit)
                });
                (duration, least, most)
            }
            Self::Size { least, most } => {
                let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
                let size = units.into_iter().find_map(|(letter, power)| {
                    digits(text.strip_suffix(letter)?)?.checked_mul(1 << power)
                });
                (size, least, most)
            }
            Self::Percent { most } => (text.strip_suffix('%').and_then(digits), 1, most),
            Self::Octal(length) => {
                let octal = |byte: u8| (b'0'..=b'7').contains(&byte);
                let is_octal = text.len() == length && text.bytes().all(octal);
                let number = u64::from_str_radix(text, 8).ok();
                (number.filter(|_| is_octal), 0, u64::MAX)
            }
            Self::Choice(_) | Self::Name | Self::Word(_) | Self::Text(_) => return None,
        };
        number.filter(|number| (least..=most).contains(number))
    }

    /// The value that an item means; reports an item of another kind.
    pub fn read(&self, item: &Item, reporter: &Reporter<'_>) -> Option<Checked> {
        let found = || Found(item.shown());
        let mistake = match (&item.value, self) {
            (Value::Broken, _) => return None,
            (Value::Text(text), Self::Text(_)) => return Some(Checked::Text(text.clone())),
            (Value::Word(_), Self::Text(_)) => StatementMistake::ExpectedString { found: found() },
            (Value::Text(_), _) => StatementMistake::ExpectedWord { found: found() },
            (Value::Word(word), kind) => {
                let is_word = match kind {
                    Self::Choice(choices) => choices.contains(word),
                    Self::Name => word.parse::<Name>().is_ok(),
                    kind => matches!(kind, Self::Word(_)),
                };
                if is_word {
                    return Some(Checked::Word(word.clone()));
                }
                match self.number(word) {
                    Some(number) => return Some(Checked::Number(number)),
                    None => self.mistake(word),
                }
            }
        };
        reporter.refuse(item.location, mistake)
    }

    /// The mistake of a word that is of another kind.
    fn mistake(&self, word: &str) -> StatementMistake {
        let (not, write) = match self {
            Self::Number { least, most } => {
                let range = format!("a number from {least} to {most}");
                (range.clone(), range)
            }
            Self::Port => ("a TCP port".into(), "a number from 1 to 65535".into()),
            Self::Duration { least, most } => {
                let amount = word.strip_suffix(['s', 'm', 'h']).unwrap_or_default();
                let is_number = amount.bytes().all(|byte| byte.is_ascii_digit());
                let (least, most) = (seconds(*least), seconds(*most));
                if is_number && !amount.is_empty() {
                    (
                        format!("between {least} and {most}"),
                        format!("{least} to {most}"),
                    )
                } else {
                    (
                        "a duration".into(),
                        "a whole number and a unit, such as 90s, 5m or 8h".into(),
                    )
                }
            }
            Self::Size { least, most } => (
                "a size of memory".into(),
                format!(
                    "a whole number and a unit, such as 512M or 4G; {} at least, {} at most",
                    Size(*least),
                    Size(*most)
                ),
            ),
            Self::Percent { most } => (
                "a percentage".into(),
                format!("a whole number and `%`, such as 50% or 200%; 1% to {most}%"),
            ),
            Self::Octal(digits) => (
                format!("a number of {digits} octal digits"),
                format!("{digits} octal digits, such as 027 or 077"),
            ),
            Self::Choice(words) => (format!("one of {}", words.join(", ")), words.join(" or ")),
            // Every word is a `Word`, and `read` handles strings.
            Self::Name | Self::Word(_) | Self::Text(_) => return Name::mistake(word),
        };
        let found = Found::from(word);
        StatementMistake::NotOfKind { found, not, write }
    }
}

/// Declares an enum of words of the language.
#[macro_export]
macro_rules! words {
    ($($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal,)+
    })+) => {
        $($(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All words, in the order of the language.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The value of this word, if there is one.
            pub fn of_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }

            /// The kind of value that is one of these words.
            pub fn kind() -> $crate::Kind {
                let words = Self::ALL.iter().map(|one| one.word().to_owned());
                $crate::Kind::Choice(words.collect())
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str(self.word())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        })+
    };
}
