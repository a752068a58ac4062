//! mac.conf: the elements that programs ask for when they do not choose.

use std::collections::BTreeMap;

use usher_language::{
    Diagnostic, Found, Location, MAXIMUM_SOURCE_BYTES, Reporter, Source, Span, SyntaxMistake,
    names, nearest,
};

use crate::label::ElementList;
use crate::limits::MAXIMUM_CLASSES;
use crate::mistake::DefaultsMistake;
use crate::value::is_name;
use crate::words::{numbered_lines, words};

names! {
    /// The name of an object class: `file`, `ifnet`, `process`, `socket`, or another of the same form.
    ClassName, InvalidClassName("the name of a class is a small letter, then small letters, digits or `_`, at most 31 in all"):
        is_name;
}

/// The statements for one class each, which FreeBSD calls deprecated.
const OLDER: [(&str, &str); 3] = [
    ("default_file_labels", "file"),
    ("default_ifnet_labels", "ifnet"),
    ("default_process_labels", "process"),
];

/// The elements by object class, as mac.conf(5) declares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    classes: BTreeMap<ClassName, ElementList>,
}

impl Defaults {
    /// Reads a whole file. `#` begins a comment; a later line replaces an earlier one for its class, as
    /// on FreeBSD.
    ///
    /// # Errors
    ///
    /// All mistakes, with their places. FreeBSD's library ignores lines with mistakes; here a program
    /// learns of them instead of asking for less than its administrator wrote.
    pub fn parse(source: Source) -> Result<Self, Vec<Diagnostic>> {
        let sources = [source];
        let reporter = Reporter::new(&sources);
        let defaults = Self::read(&sources[0].text, &reporter);
        match reporter.finish() {
            found if found.is_empty() => Ok(defaults),
            found => Err(found),
        }
    }

    /// The elements of a class. `None` where the file does not name it.
    pub fn elements(&self, class: &str) -> Option<&ElementList> {
        self.classes.get(class)
    }

    /// All classes with their elements, by name.
    pub fn classes(&self) -> impl Iterator<Item = (&ClassName, &ElementList)> {
        self.classes.iter()
    }

    fn read(text: &str, reporter: &Reporter<'_>) -> Self {
        let mut defaults = Self::default();
        if let Some(too_long) = length_mistake(text) {
            reporter.report(begin(), too_long);
            return defaults;
        }
        for (offset, line) in numbered_lines(text) {
            let line = line.split('#').next().unwrap_or_default();
            let words = words(offset, line);
            if words.is_empty() {
                continue;
            }
            if let Some((class, elements)) = read_line(&words, reporter) {
                defaults.classes.insert(class, elements);
            }
            if defaults.classes.len() > MAXIMUM_CLASSES {
                reporter.report(at(words[0].0), DefaultsMistake::TooManyClasses);
                return defaults;
            }
            if reporter.is_full() {
                return defaults;
            }
        }
        defaults
    }
}

fn read_line(words: &[(Span, &str)], reporter: &Reporter<'_>) -> Option<(ClassName, ElementList)> {
    let (statement_span, statement) = words[0];
    let (class_span, class, list) = match (statement, &words[1..]) {
        ("default_labels", [(span, class), list]) => (*span, *class, *list),
        ("default_labels", _) => {
            let form = "default_labels CLASS ELEMENTS";
            return reporter.refuse(at(statement_span), wrong_form(statement, form));
        }
        _ => {
            let Some((_, class)) = OLDER.iter().find(|(older, _)| *older == statement) else {
                let known = OLDER.iter().map(|(older, _)| *older);
                let mistake = DefaultsMistake::UnknownStatement {
                    found: Found::from(statement),
                    nearest: nearest(statement, known.chain(["default_labels"])),
                };
                return reporter.refuse(at(statement_span), mistake);
            };
            let [list] = words[1..] else {
                let form = "default_labels CLASS ELEMENTS";
                return reporter.refuse(at(statement_span), wrong_form(statement, form));
            };
            (statement_span, *class, list)
        }
    };
    let Ok(name) = class.parse() else {
        let found = Found::from(class);
        return reporter.refuse(at(class_span), DefaultsMistake::InvalidClass { found });
    };
    match list.1.parse() {
        Ok(elements) => Some((name, elements)),
        Err(error) => reporter.refuse(within(list.0, error.span), error.mistake),
    }
}

fn wrong_form(statement: &str, form: &'static str) -> DefaultsMistake {
    let statement = statement.to_owned();
    DefaultsMistake::WrongForm { statement, form }
}

/// The mistake of a text that is too long to be read.
pub(crate) fn length_mistake(text: &str) -> Option<SyntaxMistake> {
    let length = text.len();
    (length > MAXIMUM_SOURCE_BYTES).then_some(SyntaxMistake::SourceTooLong { length })
}

/// The beginning of the only source.
pub(crate) fn begin() -> Location {
    at(Span::default())
}

/// A place of the only source.
pub(crate) fn at(span: Span) -> Location {
    Location { source: 0, span }
}

/// The place of a part of a word.
pub(crate) fn within(word: Span, part: Span) -> Location {
    at(Span {
        offset: word.offset + part.offset,
        length: part.length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Defaults, Vec<Diagnostic>> {
        Defaults::parse(Source {
            name: "mac.conf".to_owned(),
            text: text.to_owned(),
        })
    }

    #[test]
    fn both_forms_are_read_and_the_later_line_counts() {
        let defaults = parse(
            "#\n# Default label set\n\ndefault_labels file ?biba,?lomac # more\n\
             default_labels\tsocket mls\ndefault_process_labels ?biba,partition\n\
             default_file_labels ?biba\n",
        )
        .unwrap();
        let list = |class: &str| defaults.elements(class).map(ToString::to_string);
        assert_eq!(list("file").as_deref(), Some("?biba"));
        assert_eq!(list("socket").as_deref(), Some("mls"));
        assert_eq!(list("process").as_deref(), Some("?biba,partition"));
        assert_eq!(list("ifnet"), None);
        assert_eq!(defaults.classes().count(), 3);
    }

    #[test]
    fn each_mistake_of_mac_conf_names_its_place_and_a_remedy() {
        for (text, told, remedy) in [
            (
                "default_label file biba",
                "mac.conf:1:1: there is no statement `default_label`",
                "did you mean `default_labels`?",
            ),
            (
                "\ndefault_labels file\n",
                "mac.conf:2:1: `default_labels` has too few or too many words",
                "write `default_labels CLASS ELEMENTS`",
            ),
            (
                "default_labels file ?biba mls\n",
                "mac.conf:1:1: `default_labels` has too few or too many words",
                "write",
            ),
            (
                "default_labels File biba\n",
                "mac.conf:1:16: `File` is not the name of an object class",
                "classes are",
            ),
            (
                "default_labels file ?biba,,mls\n",
                "mac.conf:1:27: an element is missing",
                "write one comma",
            ),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found[0].to_string().starts_with(told), "{}", found[0]);
            assert!(found[0].remedy().contains(remedy), "{}", found[0].remedy());
        }
    }

    #[test]
    fn one_class_too_many_is_refused() {
        let of = |count: usize| -> String {
            (0..count)
                .map(|index| format!("default_labels c{index} biba\n"))
                .collect()
        };
        assert_eq!(parse(&of(64)).unwrap().classes().count(), 64);
        let found = parse(&of(65)).unwrap_err();
        assert!(
            found[0]
                .to_string()
                .starts_with("mac.conf:65:1: there are more than 64")
        );
    }
}
