//! The elements that a program asks for.

use std::fmt;
use std::str::FromStr;

use usher_language::Found;

use crate::element::ElementName;
use crate::label::LabelError;
use crate::mistake::LabelMistake;
use crate::words::parts;

/// Names of elements, separated by commas: `?biba,mls`, as mac_prepare(3) takes them. Displays as it
/// was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementList {
    wanted: Vec<Wanted>,
}

/// One element of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Its name.
    pub name: ElementName,
    /// Written with `?`: an object without it is no error.
    pub is_optional: bool,
}

impl ElementList {
    /// The elements, as they were written: at least one, each once.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }
}

impl FromStr for ElementList {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for (span, part) in parts(text)? {
            let refused = |mistake| LabelError { span, mistake };
            let (is_optional, word) = match part.strip_prefix('?') {
                Some(word) => (true, word),
                None => (false, part),
            };
            let (word, has_value) = match word.split_once('/') {
                Some((word, _)) => (word, true),
                None => (word, false),
            };
            let name: ElementName = word.parse().map_err(|_| {
                let found = Found::from(word);
                refused(LabelMistake::InvalidName { found })
            })?;
            if has_value {
                let name = name.to_string();
                return Err(refused(LabelMistake::ValueInList { name }));
            }
            if wanted.iter().any(|other| other.name == name) {
                let name = name.to_string();
                return Err(refused(LabelMistake::Repeated { name }));
            }
            wanted.push(Wanted { name, is_optional });
        }
        Ok(Self { wanted })
    }
}

impl fmt::Display for ElementList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, wanted) in self.wanted.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let mark = if wanted.is_optional { "?" } else { "" };
            write!(formatter, "{comma}{mark}{}", wanted.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_prints_as_it_was_written() {
        let list: ElementList = "?mls,biba,?partition".parse().unwrap();
        assert_eq!(list.to_string(), "?mls,biba,?partition");
        let optional: Vec<_> = list.wanted().iter().map(|one| one.is_optional).collect();
        assert_eq!(optional, [true, false, true]);
    }

    #[test]
    fn a_label_is_no_list_and_a_name_stands_once() {
        for (text, told) in [
            ("biba/high", "names the element `biba` with a value"),
            ("biba,?biba", "stands twice"),
            ("??biba", "`?biba` is not the name"),
            ("", "is empty"),
        ] {
            let error = text.parse::<ElementList>().unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}
