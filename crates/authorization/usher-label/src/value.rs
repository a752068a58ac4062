//! Values that the framework knows: each kind has one grammar, and one form for each meaning.

use std::fmt;

use usher_language::{Found, digits, names};

use crate::level::{Level, Range};
use crate::limits::{MAXIMUM_NAME, MAXIMUM_VALUE};
use crate::mistake::ValueMistake;

/// The rule for the names of elements and of object classes.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= MAXIMUM_NAME
        && text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

names! {
    /// The name of an element, which is its policy module's: a small letter, then small letters,
    /// digits and `_`, at most [`MAXIMUM_NAME`] bytes.
    ElementName, InvalidElementName("the name of an element is a small letter, then small letters, digits or `_`, at most 31 in all"):
        is_name;
    /// The value of an element: ASCII letters and digits, `_`, `.`, `:`, `+`, `-`, `(`, `)`, `[`,
    /// `]`, `=` and `@`, 1 to [`MAXIMUM_VALUE`] bytes. None of them needs quotes in the files that hold
    /// labels, none is invisible.
    ElementValue, InvalidElementValue("the value of an element has letters, digits and `_.:+-()[]=@`, 1 to 255 of them"):
        |text| {
            (1..=MAXIMUM_VALUE).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_.:+-()[]=@".contains(&byte))
        };
}

/// The kind of the values of a module's elements, which the module declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementKind {
    /// A level, a range of levels, or both: `high(low-high)`.
    Levels,
    /// Levels without compartments, or a level with an auxiliary one: `high[low]`.
    Auxiliary,
    /// A number: `7`.
    Number,
    /// A name: `httpd_t`.
    Name,
}

names! {
    /// A value of the kind [`ElementKind::Name`]: letters, digits, `_`, `.`, `-`, `@`, `:` and `+`, 1
    /// to 63 bytes.
    NameValue, InvalidNameValue("a name has letters, digits and `_.-@:+`, 1 to 63 of them"):
        |text| {
            (1..=63).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_.-@:+".contains(&byte))
        };
}

/// The level at which an object is, the range of levels that it may take, or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Levels {
    /// `high`
    Effective(Level),
    /// `(low-high)`
    Range(Range),
    /// `high(low-high)`
    Both(Level, Range),
}

/// Levels, or a level with the one that new objects get: an element of FreeBSD's mac_lomac(4). No level has
/// a compartment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Auxiliary {
    /// Without an auxiliary level.
    Plain(Levels),
    /// `high[low]`, or `[low]` without a level of its own.
    With(Option<Level>, Level),
}

/// A value that is understood. Displays in its canonical form: two values are equal if their texts are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TypedValue {
    /// Of [`ElementKind::Levels`].
    Levels(Levels),
    /// Of [`ElementKind::Auxiliary`].
    Auxiliary(Auxiliary),
    /// Of [`ElementKind::Number`].
    Number(u32),
    /// Of [`ElementKind::Name`].
    Name(NameValue),
}

impl ElementKind {
    /// The kinds of values of Usher's own modules, as each declares it (bpf/mac/modules).
    pub const OF_MODULES: [(&str, Self); 5] = [
        ("biba", Self::Levels),
        ("mls", Self::Levels),
        ("lomac", Self::Auxiliary),
        ("partition", Self::Number),
        ("te", Self::Name),
    ];

    /// The kind of the values of one of Usher's own modules. None for other modules: the kernel knows their
    /// kinds while they are in force.
    pub fn of_module(name: &str) -> Option<Self> {
        let known = Self::OF_MODULES.iter().find(|(module, _)| *module == name);
        known.map(|(_, kind)| *kind)
    }

    /// Reads a value of this kind.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn read(self, value: &ElementValue) -> Result<TypedValue, ValueMistake> {
        let text = value.as_ref();
        let found = || Found::from(text);
        Ok(match self {
            Self::Levels => TypedValue::Levels(Levels::read(text, true)?),
            Self::Auxiliary => TypedValue::Auxiliary(Auxiliary::read(text)?),
            Self::Number => {
                let number = digits(text).and_then(|number| u32::try_from(number).ok());
                let number = number.ok_or_else(|| ValueMistake::InvalidNumber { found: found() });
                TypedValue::Number(number?)
            }
            Self::Name => {
                let name = text.parse();
                TypedValue::Name(name.map_err(|_| ValueMistake::InvalidName { found: found() })?)
            }
        })
    }
}

impl TypedValue {
    /// The kind of the value.
    pub fn kind(&self) -> ElementKind {
        match self {
            Self::Levels(_) => ElementKind::Levels,
            Self::Auxiliary(_) => ElementKind::Auxiliary,
            Self::Number(_) => ElementKind::Number,
            Self::Name(_) => ElementKind::Name,
        }
    }

    /// The canonical text of the value, as a label has it.
    ///
    /// # Errors
    ///
    /// The text would be longer than a value may be: levels with very many compartments, which a module has
    /// put together from several values.
    pub fn to_value(&self) -> Result<ElementValue, ValueMistake> {
        let text = self.to_string();
        let length = text.len();
        text.parse().map_err(|_| ValueMistake::TooLong { length })
    }
}

impl Levels {
    /// The level at which the object is.
    pub fn effective(&self) -> Option<&Level> {
        match self {
            Self::Effective(level) | Self::Both(level, _) => Some(level),
            Self::Range(_) => None,
        }
    }

    /// The range of levels that it may take.
    pub fn range(&self) -> Option<&Range> {
        match self {
            Self::Range(range) | Self::Both(_, range) => Some(range),
            Self::Effective(_) => None,
        }
    }

    fn read(text: &str, has_compartments: bool) -> Result<Self, ValueMistake> {
        let level = |text| Level::read(text, has_compartments);
        let Some((effective, range)) = text.split_once('(') else {
            return Ok(Self::Effective(level(text)?));
        };
        let Some(range) = range.strip_suffix(')') else {
            let found = Found::from(range);
            return Err(ValueMistake::NotClosed { found });
        };
        let range = Range::read(range, has_compartments)?;
        Ok(match effective {
            "" => Self::Range(range),
            effective => Self::Both(level(effective)?, range),
        })
    }
}

impl Auxiliary {
    fn read(text: &str) -> Result<Self, ValueMistake> {
        let Some((effective, auxiliary)) = text.split_once('[') else {
            return Ok(Self::Plain(Levels::read(text, false)?));
        };
        let Some(auxiliary) = auxiliary.strip_suffix(']') else {
            let found = Found::from(auxiliary);
            return Err(ValueMistake::NotClosed { found });
        };
        let effective = match effective {
            "" => None,
            effective => Some(Level::read(effective, false)?),
        };
        Ok(Self::With(effective, Level::read(auxiliary, false)?))
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Effective(level) => level.fmt(formatter),
            Self::Range(range) => range.fmt(formatter),
            Self::Both(level, range) => write!(formatter, "{level}{range}"),
        }
    }
}

impl fmt::Display for Auxiliary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(levels) => levels.fmt(formatter),
            Self::With(None, auxiliary) => write!(formatter, "[{auxiliary}]"),
            Self::With(Some(level), auxiliary) => write!(formatter, "{level}[{auxiliary}]"),
        }
    }
}

impl fmt::Display for TypedValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Levels(levels) => levels.fmt(formatter),
            Self::Auxiliary(auxiliary) => auxiliary.fmt(formatter),
            Self::Number(number) => number.fmt(formatter),
            Self::Name(name) => name.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_language::Mistake;

    use ElementKind::{Auxiliary as Aux, Levels as Lev, Name, Number};

    fn read(kind: ElementKind, text: &str) -> Result<TypedValue, ValueMistake> {
        kind.read(&text.parse().unwrap())
    }

    #[test]
    fn values_are_read_and_printed_canonically() {
        for (kind, text, canonical) in [
            (Lev, "high", "high"),
            (Lev, "(low-high)", "(low-high)"),
            (Lev, "equal(equal-equal)", "equal(equal-equal)"),
            (Lev, "10:6+3+2+3(5:2-20:2+3+6)", "10:2+3+6(5:2-20:2+3+6)"),
            (Lev, "65535:256+1", "65535:1+256"),
            (Aux, "high[low]", "high[low]"),
            (Aux, "[5]", "[5]"),
            (Aux, "7(low-equal)", "7(low-equal)"),
            (Number, "4294967295", "4294967295"),
            (Name, "user_u:user_r@host-1.x+", "user_u:user_r@host-1.x+"),
        ] {
            let value = read(kind, text).unwrap();
            assert_eq!(value.to_string(), canonical);
            assert_eq!(value.kind(), kind);
            assert_eq!(value.to_value().unwrap().as_ref(), canonical);
        }
    }

    #[test]
    fn each_mistake_of_a_value_has_text_and_remedy() {
        for (kind, text, told) in [
            (Lev, "65536", "`65536` is not a grade"),
            (Lev, "07", "`07` is not a grade"),
            (Lev, "10:", "`` is not a compartment"),
            (Lev, "10:0", "`0` is not a compartment"),
            (Lev, "10:1+257", "`257` is not a compartment"),
            (Lev, "10:1++2", "`` is not a compartment"),
            (Lev, "high:1", "`high:1` has compartments"),
            (Lev, "high(low-high", "`low-high` is not closed"),
            (Lev, "high(low-high)low", "`low-high)low` is not closed"),
            (Lev, "high(low)", "`low` is not a range"),
            (
                Lev,
                "(high-low)",
                "the range from high to low ends before it begins",
            ),
            (Lev, "(5:1-6:2)", "the range from 5:1 to 6:2 ends before"),
            (Lev, "high[low]", "`high[low]` is not a grade"),
            (Aux, "10:1", "`10:1` is not a grade"),
            (
                Aux,
                "high(low-high)[low]",
                "`high(low-high)` is not a grade",
            ),
            (Aux, "high[low](low-high)", "`low](low-high)` is not closed"),
            (Aux, "high[]", "`` is not a grade"),
            (Number, "4294967296", "`4294967296` is not a number"),
            (Number, "00", "`00` is not a number"),
            (Name, "a=b", "`a=b` is not a name"),
        ] {
            let mistake = read(kind, text).unwrap_err();
            assert!(mistake.to_string().starts_with(told), "{mistake}");
            assert!(!mistake.remedy().is_empty());
        }
    }

    #[test]
    fn a_value_that_grew_too_long_has_no_text() {
        let all: Vec<_> = (1..=256).map(|number: u32| number.to_string()).collect();
        let text = format!("1:{}", all.join("+"));
        let level: Level = text.parse().unwrap();
        let value = TypedValue::Levels(Levels::Effective(level));
        let mistake = value.to_value().unwrap_err();
        assert_eq!(mistake, ValueMistake::TooLong { length: text.len() });
        assert_eq!(read(Name, &"n".repeat(63)).unwrap().to_string().len(), 63);
        assert!(read(Name, &"n".repeat(64)).is_err());
    }
}
