//! A label: its elements, its text, how a partial one changes a whole one, and the elements that a program asks
//! for. `biba/high` is an element with the name `biba` and the value `high`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use usher_language::{Found, Span};

use crate::limits::{MAXIMUM_ELEMENTS, MAXIMUM_TEXT};
use crate::mistake::{LabelError, LabelMistake, ValueMistake};
use crate::value::{ElementKind, ElementName, ElementValue};
use crate::words::parts;

/// The label of an object, or the part of one that a program sets. Displays in the canonical form:
/// elements by name, separated by commas.
///
/// Holds at most [`MAXIMUM_ELEMENTS`] and at most [`MAXIMUM_TEXT`] bytes of text. The default has no element:
/// it is the label of an object that has none of the elements asked for. Its text is empty, and can be
/// neither parsed nor stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Label {
    elements: BTreeMap<ElementName, ElementValue>,
}

/// The label lacks an element that was asked for without `?`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the label has no element `{0}`; ask for `?{0}` where it may be missing")]
pub struct MissingElement(pub ElementName);

impl Label {
    /// The label that an attribute holds. Elements may stand in any order; there is no zero byte at
    /// the end.
    ///
    /// # Errors
    ///
    /// The first mistake. An object with such an attribute is unlabelled; its label does not count as empty.
    pub fn from_attribute(bytes: &[u8]) -> Result<Self, LabelError> {
        let text = std::str::from_utf8(bytes).map_err(|error| LabelError {
            span: Span {
                offset: error.valid_up_to(),
                length: bytes.len() - error.valid_up_to(),
            },
            mistake: LabelMistake::NotText,
        })?;
        text.parse()
    }

    /// The label of one element.
    pub fn of_one(name: ElementName, value: ElementValue) -> Self {
        Self {
            elements: BTreeMap::from([(name, value)]),
        }
    }

    /// True when the label has no element.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The elements, by name.
    pub fn elements(&self) -> impl Iterator<Item = (&ElementName, &ElementValue)> {
        self.elements.iter()
    }

    /// The value of an element.
    pub fn value(&self, name: &str) -> Option<&ElementValue> {
        self.elements.get(name)
    }

    /// Checks the values of Usher's own modules, which the kernel refuses only while the module is in force.
    ///
    /// # Errors
    ///
    /// The first element that no module takes, and its mistake.
    pub fn check_values(&self) -> Result<(), (String, ValueMistake)> {
        for (name, value) in &self.elements {
            let kind = ElementKind::of_module(name.as_ref());
            if let Some(Err(mistake)) = kind.map(|kind| kind.read(value)) {
                return Err((format!("{name}/{value}"), mistake));
            }
        }
        Ok(())
    }

    /// This label after `partial` was set: its elements replace those of the same name, and the others
    /// stay, as mac_set_file(3) has it.
    ///
    /// # Errors
    ///
    /// The result would have too many elements, or too long a text.
    pub fn with(&self, partial: &Self) -> Result<Self, LabelMistake> {
        let mut elements = self.elements.clone();
        for (name, value) in &partial.elements {
            elements.insert(name.clone(), value.clone());
        }
        Self::of(elements)
    }

    /// The elements of a list.
    ///
    /// # Errors
    ///
    /// The label lacks an element that the list does not mark as optional.
    pub fn select(&self, list: &ElementList) -> Result<Self, MissingElement> {
        let mut elements = BTreeMap::new();
        for wanted in list.wanted() {
            match self.elements.get(&wanted.name) {
                Some(value) => {
                    elements.insert(wanted.name.clone(), value.clone());
                }
                None if wanted.is_optional => {}
                None => return Err(MissingElement(wanted.name.clone())),
            }
        }
        Ok(Self { elements })
    }

    fn of(elements: BTreeMap<ElementName, ElementValue>) -> Result<Self, LabelMistake> {
        let count = elements.len();
        if count > MAXIMUM_ELEMENTS {
            return Err(LabelMistake::TooManyElements { count });
        }
        let length = text_length(&elements);
        if length > MAXIMUM_TEXT {
            return Err(LabelMistake::TooLong { length });
        }
        Ok(Self { elements })
    }
}

fn text_length(elements: &BTreeMap<ElementName, ElementValue>) -> usize {
    let each = elements
        .iter()
        .map(|(name, value)| name.as_ref().len() + 1 + value.as_ref().len());
    each.sum::<usize>() + elements.len().saturating_sub(1)
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let mut elements = BTreeMap::new();
        for (span, part) in parts(text)? {
            let refused = |mistake| LabelError { span, mistake };
            let Some((name, value)) = part.split_once('/') else {
                let found = Found::from(part);
                return Err(refused(LabelMistake::NoValue { found }));
            };
            let name: ElementName = name.parse().map_err(|_| {
                let found = Found::from(name);
                refused(LabelMistake::InvalidName { found })
            })?;
            let value: ElementValue = value.parse().map_err(|_| {
                let (name, found) = (name.to_string(), Found::from(value));
                refused(LabelMistake::InvalidValue { name, found })
            })?;
            if elements.insert(name.clone(), value).is_some() {
                let name = name.to_string();
                return Err(refused(LabelMistake::Repeated { name }));
            }
        }
        Ok(Self { elements })
    }
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.elements.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{name}/{value}")?;
        }
        Ok(())
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

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

    fn label(text: &str) -> Label {
        text.parse().unwrap()
    }

    #[test]
    fn elements_are_printed_by_name() {
        assert_eq!(label("mls/low,biba/high").to_string(), "biba/high,mls/low");
        let long = "biba/10:2+3+6(5:2-20:2+3+6),mls/equal(equal-equal),partition/0";
        assert_eq!(label(long).to_string(), long);
    }

    #[test]
    fn each_mistake_names_its_place_and_a_remedy() {
        for (text, place, told) in [
            ("", 1, "the label is empty"),
            ("biba/high,", 11, "an element is missing"),
            (",biba/high", 1, "an element is missing"),
            ("biba/high,mls", 11, "the element `mls` has no value"),
            ("biba/high,Mls/low", 11, "`Mls` is not the name"),
            ("biba/high, mls/low", 11, "` mls` is not the name"),
            ("biba/", 1, "`` is not a value for the element `biba`"),
            ("biba/a/b", 1, "`a/b` is not a value"),
            ("biba/hi\ngh", 1, "`hi\\ngh` is not a value"),
            ("biba/high\0", 1, "`high\\u{0}` is not a value"),
            ("biba/high,biba/low", 11, "the element `biba` stands twice"),
        ] {
            let error = text.parse::<Label>().unwrap_err();
            let expected = format!("at byte {place} of the label: {told}");
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert!(!error.remedy().is_empty());
        }
    }

    #[test]
    fn the_longest_label_is_read_and_a_longer_one_refused() {
        let part = |name: &str, length: usize| format!("{name}/{}", "v".repeat(length));
        let whole = |last: usize| {
            let parts = [
                part("a", 253),
                part("b", 253),
                part("c", 253),
                part("d", last),
            ];
            parts.join(",")
        };
        let longest = whole(254);
        assert_eq!(longest.len(), MAXIMUM_TEXT);
        assert_eq!(label(&longest).to_string(), longest);
        let error = whole(255).parse::<Label>().unwrap_err();
        assert_eq!(error.mistake, LabelMistake::TooLong { length: 1025 });
    }

    #[test]
    fn eight_elements_are_read_and_nine_refused() {
        let of = |count: usize| {
            let parts: Vec<_> = (0..count).map(|index| format!("m{index}/x")).collect();
            parts.join(",")
        };
        assert_eq!(label(&of(8)).elements().count(), 8);
        let error = of(9).parse::<Label>().unwrap_err();
        assert_eq!(error.mistake, LabelMistake::TooManyElements { count: 9 });
    }

    #[test]
    fn a_partial_label_replaces_its_elements_only() {
        let whole = label("biba/high,mls/low");
        let changed = whole.with(&label("mls/high,partition/0")).unwrap();
        assert_eq!(changed, label("biba/high,mls/high,partition/0"));
    }

    #[test]
    fn a_partial_label_cannot_make_a_whole_one_too_large() {
        let eight = label("a/x,b/x,c/x,d/x,e/x,f/x,g/x,h/x");
        assert!(eight.with(&label("a/y")).is_ok());
        let mistake = eight.with(&label("i/x")).unwrap_err();
        assert_eq!(mistake, LabelMistake::TooManyElements { count: 9 });
        let long = |names: [&str; 2]| {
            let value = "v".repeat(255);
            label(&names.map(|name| format!("{name}/{value}")).join(","))
        };
        let three = long(["a", "b"]).with(&label("c/x")).unwrap();
        let mistake = three.with(&long(["d", "e"])).unwrap_err();
        assert!(matches!(mistake, LabelMistake::TooLong { .. }));
    }

    #[test]
    fn only_an_optional_element_may_be_missing() {
        let whole = label("biba/high,mls/low");
        let selected = |list: &str| whole.select(&list.parse().unwrap());
        assert_eq!(selected("mls,?partition").unwrap(), label("mls/low"));
        assert_eq!(selected("?partition").unwrap(), Label::default());
        let missing = selected("mls,partition").unwrap_err();
        assert!(missing.to_string().contains("no element `partition`"));
    }

    #[test]
    fn bytes_of_no_text_are_no_label() {
        let error = Label::from_attribute(b"biba/\xff").unwrap_err();
        assert_eq!(
            (error.span.offset, error.mistake),
            (5, LabelMistake::NotText)
        );
        assert_eq!(
            Label::from_attribute(b"biba/low").unwrap(),
            label("biba/low")
        );
    }

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
