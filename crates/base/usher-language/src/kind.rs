//! Kinds of values: what a text must be, and what it then means.

use serde::{Deserialize, Serialize};

use crate::faults::StatementMistake;
use crate::item::{Item, Value};
use crate::mistake::Found;
use crate::name::{Name, is_keyword};
use crate::print::{Size, seconds};
use crate::report::Reporter;

/// What a value may be.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// A word, whose meaning the dialect knows; what forms call it.
    Word(String),
    /// A string; what forms call it, with its quotes.
    Text(String),
}

/// A value that was checked, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Checked {
    /// A number, by its kind in seconds, bytes, percent or as it is; as the text has it.
    Number(u64, String),
    /// A word.
    Word(String),
    /// A string, without its quotes.
    Text(String),
}

impl Kind {
    /// How forms write it.
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

    /// Whether a text can have it.
    pub(crate) fn has_values(&self) -> bool {
        match self {
            Self::Number { least, most }
            | Self::Duration { least, most }
            | Self::Size { least, most } => least <= most,
            Self::Percent { most } => *most > 0,
            Self::Octal(digits) => (1..=21).contains(digits),
            Self::Choice(words) => !words.is_empty() && words.iter().all(|word| is_keyword(word)),
            Self::Port | Self::Name | Self::Word(_) | Self::Text(_) => true,
        }
    }

    /// The number that a text means; none for kinds that are no numbers.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn number(&self, text: &str) -> Result<Option<u64>, StatementMistake> {
        let found = || Found::from(text);
        let within = |number: Option<u64>, least: u64, most: u64| {
            number.filter(|number| (least..=most).contains(number))
        };
        let number = match *self {
            Self::Number { least, most } => {
                let number = within(digits(text), least, most);
                number.ok_or_else(|| StatementMistake::InvalidNumber {
                    found: found(),
                    least,
                    most,
                })
            }
            Self::Port => {
                let port = within(digits(text), 1, u16::MAX.into());
                port.ok_or_else(|| StatementMistake::InvalidPort { found: found() })
            }
            Self::Duration { least, most } => {
                let units = [('s', 1), ('m', 60), ('h', 3600)];
                let split = units.into_iter().find_map(|(letter, unit)| {
                    let amount = text.strip_suffix(letter)?;
                    let is_number =
                        !amount.is_empty() && amount.bytes().all(|byte| byte.is_ascii_digit());
                    is_number.then_some((amount, unit))
                });
                let Some((amount, unit)) = split else {
                    return Err(StatementMistake::InvalidDuration { found: found() });
                };
                let duration = digits(amount).and_then(|amount| amount.checked_mul(unit));
                let duration = within(duration, least, most);
                duration.ok_or_else(|| StatementMistake::DurationOutOfRange {
                    found: found(),
                    least,
                    most,
                })
            }
            Self::Size { least, most } => {
                let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
                let size = units.into_iter().find_map(|(letter, power)| {
                    digits(text.strip_suffix(letter)?)?.checked_mul(1 << power)
                });
                let size = within(size, least, most);
                size.ok_or_else(|| StatementMistake::InvalidSize {
                    found: found(),
                    least,
                    most,
                })
            }
            Self::Percent { most } => {
                let percent = within(text.strip_suffix('%').and_then(digits), 1, most);
                percent.ok_or_else(|| StatementMistake::InvalidPercent {
                    found: found(),
                    most,
                })
            }
            Self::Octal(digits) => {
                let octal =
                    text.len() == digits && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
                let number = u64::from_str_radix(text, 8).ok().filter(|_| octal);
                number.ok_or_else(|| StatementMistake::InvalidOctal {
                    found: found(),
                    digits,
                })
            }
            Self::Choice(_) | Self::Name | Self::Word(_) | Self::Text(_) => return Ok(None),
        };
        number.map(Some)
    }

    /// The value that an item means; reported where it is none of this kind.
    pub fn read(&self, item: &Item, reporter: &Reporter<'_>) -> Option<Checked> {
        let found = || Found(item.shown());
        let word = match (&item.value, self) {
            (Value::Broken, _) => return None,
            (Value::Text(text), Self::Text(_)) => return Some(Checked::Text(text.clone())),
            (Value::Word(_), Self::Text(_)) => {
                let mistake = StatementMistake::ExpectedString { found: found() };
                return reporter.refuse(item.location, mistake);
            }
            (Value::Text(_), _) => {
                let mistake = StatementMistake::ExpectedWord { found: found() };
                return reporter.refuse(item.location, mistake);
            }
            (Value::Word(word), _) => word,
        };
        let mistake = match self.number(word) {
            Ok(Some(number)) => return Some(Checked::Number(number, self.print(number))),
            Err(mistake) => mistake,
            Ok(None) => match self {
                Self::Choice(choices) if !choices.contains(word) => {
                    StatementMistake::UnknownChoice {
                        found: found(),
                        choices: choices.clone(),
                    }
                }
                Self::Name if word.parse::<Name>().is_err() => Name::mistake(word),
                _ => return Some(Checked::Word(word.clone())),
            },
        };
        reporter.refuse(item.location, mistake)
    }

    /// A number in the text that the canonical form has for it.
    fn print(&self, number: u64) -> String {
        match self {
            Self::Duration { .. } => seconds(number).to_string(),
            Self::Size { .. } => Size(number).to_string(),
            Self::Percent { .. } => format!("{number}%"),
            Self::Octal(digits) => format!("{number:0digits$o}"),
            _ => number.to_string(),
        }
    }
}

/// Decimal digits without sign or leading zero; zero itself is one digit.
pub fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = plain && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| canonical)
}
