//! Kinds of values that several modules have.

use usher_language::{Fields, Kind, Shape};

/// One of these words.
pub(crate) fn choice(words: &[&str]) -> Kind {
    Kind::Choice(words.iter().map(ToString::to_string).collect())
}

/// `yes` or `no`.
pub(crate) fn yes_or_no() -> Shape {
    Shape::One(choice(&["yes", "no"]))
}

/// The value of a statement that says `yes` or `no`, if it is there.
pub(crate) fn is_yes(fields: &Fields<'_>, keyword: &str) -> Option<bool> {
    fields.word(keyword).map(|word| word == "yes")
}
