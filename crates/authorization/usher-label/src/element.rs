//! The parts of an element: `biba/high` has the name `biba` and the value `high`.

use usher_language::names;

use crate::limits::{MAXIMUM_NAME, MAXIMUM_VALUE};

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
