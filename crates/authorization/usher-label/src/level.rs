//! Levels: grades with compartments, their order, and ranges of them.

use std::fmt;
use std::str::FromStr;

use usher_language::{Found, digits};

use crate::mistake::ValueMistake;

/// A level of confidentiality or integrity: `low`, `10:2+3`, `high` or `equal`. Displays canonically,
/// compartments in ascending order.
///
/// [`Level::dominates`] is its order, as FreeBSD's mac_biba(4) and mac_mls(4) have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Below every grade.
    Low,
    /// A number, and the compartments that it is about.
    Grade(u16, Compartments),
    /// Above every grade.
    High,
    /// Exempt: dominates every level, and is dominated by every level.
    Equal,
}

/// A set of compartments. They have the numbers 1 to [`Compartments::LAST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Compartments([u64; 4]);

/// Two levels, of which the higher one dominates the lower one. Displays as `(low-high)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    low: Level,
    high: Level,
}

impl Compartments {
    /// The highest number of a compartment.
    pub const LAST: u16 = 256;

    /// Adds a compartment. Returns false for a number that no compartment has.
    #[must_use]
    pub fn insert(&mut self, number: u16) -> bool {
        if !(1..=Self::LAST).contains(&number) {
            return false;
        }
        let index = usize::from(number - 1);
        self.0[index / 64] |= 1 << (index % 64);
        true
    }

    /// True without a compartment.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True where all compartments of the other set are here, too.
    pub fn contains_all(&self, other: &Self) -> bool {
        let mut words = self.0.iter().zip(other.0);
        words.all(|(own, other)| other & !own == 0)
    }

    /// The numbers of the compartments, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        (1..=Self::LAST).filter(|number| {
            let index = usize::from(number - 1);
            self.0[index / 64] & 1 << (index % 64) != 0
        })
    }

    /// The set as bytes: compartment `number` is bit `(number - 1) % 8` of byte `(number - 1) / 8`.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The set of these bytes, as [`Self::to_bytes`] writes them.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut set = Self::default();
        for (index, byte) in bytes.iter().enumerate() {
            set.0[index / 8] |= u64::from(*byte) << (index % 8 * 8);
        }
        set
    }
}

impl Level {
    /// Whether information at the other level may flow up to this one: this level is at least as high, and
    /// has all of its compartments.
    pub fn dominates(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Equal | Self::High, _) | (_, Self::Equal | Self::Low) => true,
            (Self::Low, _) | (_, Self::High) => false,
            (Self::Grade(own, compartments), Self::Grade(grade, others)) => {
                own >= grade && compartments.contains_all(others)
            }
        }
    }

    /// Reads a level. `has_compartments`: levels of its kind may have compartments.
    pub(crate) fn read(text: &str, has_compartments: bool) -> Result<Self, ValueMistake> {
        let (grade, listed) = match text.split_once(':') {
            Some((grade, listed)) if has_compartments => (grade, Some(listed)),
            _ => (text, None),
        };
        let level = match grade {
            "low" => Self::Low,
            "high" => Self::High,
            "equal" => Self::Equal,
            _ => {
                let number = digits(grade).and_then(|number| u16::try_from(number).ok());
                let found = Found::from(grade);
                let number = number.ok_or(ValueMistake::InvalidGrade { found })?;
                Self::Grade(
                    number,
                    listed.map_or(Ok(Compartments::default()), read_set)?,
                )
            }
        };
        match (level, listed) {
            (level @ Self::Grade(..), _) | (level, None) => Ok(level),
            (_, Some(_)) => Err(ValueMistake::CompartmentsOfWord {
                found: Found::from(text),
            }),
        }
    }
}

fn read_set(listed: &str) -> Result<Compartments, ValueMistake> {
    let mut set = Compartments::default();
    for word in listed.split('+') {
        let number = digits(word).and_then(|number| u16::try_from(number).ok());
        if !number.is_some_and(|number| set.insert(number)) {
            let found = Found::from(word);
            return Err(ValueMistake::InvalidCompartment { found });
        }
    }
    Ok(set)
}

impl Range {
    /// A range.
    ///
    /// # Errors
    ///
    /// The second level does not dominate the first.
    pub fn new(low: Level, high: Level) -> Result<Self, ValueMistake> {
        if high.dominates(&low) {
            return Ok(Self { low, high });
        }
        Err(ValueMistake::RangeBackwards {
            low: low.to_string(),
            high: high.to_string(),
        })
    }

    /// The lower end of the range.
    pub fn low(&self) -> &Level {
        &self.low
    }

    /// The higher end of the range.
    pub fn high(&self) -> &Level {
        &self.high
    }

    /// Whether a level lies in the range.
    pub fn contains(&self, level: &Level) -> bool {
        self.high.dominates(level) && level.dominates(&self.low)
    }

    /// Reads what stands between the parentheses.
    pub(crate) fn read(text: &str, has_compartments: bool) -> Result<Self, ValueMistake> {
        let Some((low, high)) = text.split_once('-') else {
            let found = Found::from(text);
            return Err(ValueMistake::NoRange { found });
        };
        let low = Level::read(low, has_compartments)?;
        Self::new(low, Level::read(high, has_compartments)?)
    }
}

impl FromStr for Level {
    type Err = ValueMistake;

    fn from_str(text: &str) -> Result<Self, ValueMistake> {
        Self::read(text, true)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Low => formatter.write_str("low"),
            Self::High => formatter.write_str("high"),
            Self::Equal => formatter.write_str("equal"),
            Self::Grade(grade, compartments) => {
                write!(formatter, "{grade}")?;
                for (index, number) in compartments.numbers().enumerate() {
                    let mark = if index == 0 { ':' } else { '+' };
                    write!(formatter, "{mark}{number}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "({}-{})", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(text: &str) -> Level {
        text.parse().unwrap()
    }

    #[test]
    fn a_level_dominates_those_below_it() {
        for (higher, lower) in [
            ("high", "65535:1"),
            ("5", "low"),
            ("6", "5"),
            ("5:1+2", "5:2"),
            ("5:1+2", "4"),
        ] {
            assert!(level(higher).dominates(&level(lower)), "{higher} {lower}");
            assert!(!level(lower).dominates(&level(higher)), "{higher} {lower}");
        }
    }

    #[test]
    fn neither_of_two_levels_apart_dominates_the_other() {
        assert!(!level("6:1").dominates(&level("5:2")));
        assert!(!level("5:2").dominates(&level("6:1")));
    }

    #[test]
    fn equal_dominates_and_is_dominated() {
        for other in ["low", "0", "65535:256", "high", "equal"] {
            assert!(level("equal").dominates(&level(other)));
            assert!(level(other).dominates(&level("equal")));
        }
    }

    #[test]
    fn a_range_has_what_lies_between_its_ends() {
        let range = Range::new(level("5:2"), level("20:2+3+6")).unwrap();
        for inside in ["5:2", "20:2+3+6", "10:2+6", "equal"] {
            assert!(range.contains(&level(inside)), "{inside}");
        }
        for outside in ["4:2", "5", "21:2", "10:2+4", "low", "high"] {
            assert!(!range.contains(&level(outside)), "{outside}");
        }
    }

    #[test]
    fn compartments_survive_their_bytes() {
        let mut set = Compartments::default();
        assert!(set.insert(1) && set.insert(10) && set.insert(256));
        assert!(!set.insert(0) && !set.insert(257));
        let bytes = set.to_bytes();
        assert_eq!((bytes[0], bytes[1], bytes[31]), (1, 2, 128));
        assert_eq!(Compartments::from_bytes(&bytes), set);
    }
}
