//! Properties of any text: print and parse are inverse, no byte makes a parser panic, and merging
//! keeps what it should.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use usher_label::{
    Defaults, ElementKind, ElementList, FileKind, Flavour, Label, Level, LoginLabels, LoginSubject,
    Range, Specification, TypedValue,
};
use usher_language::Source;

fn source(text: String) -> Source {
    Source {
        name: "text".to_owned(),
        text,
    }
}

fn label() -> impl Strategy<Value = Label> {
    let elements = btree_map(
        "[a-z][a-z0-9_]{0,30}",
        "[A-Za-z0-9_.:+()\\[\\]=@-]{1,80}",
        1..=8,
    );
    elements.prop_map(|elements| {
        let parts = elements
            .iter()
            .map(|(name, value)| format!("{name}/{value}"));
        parts.collect::<Vec<_>>().join(",").parse().unwrap()
    })
}

/// Texts that are nearly right, so that parsers are tried beyond their first check.
fn nearly(parts: &'static [&'static str]) -> impl Strategy<Value = String> {
    vec(
        prop_oneof![8 => prop::sample::select(parts).prop_map(str::to_owned), 1 => ".{0,3}"],
        0..40,
    )
    .prop_map(|parts| parts.concat())
}

const KINDS: [ElementKind; 4] = [
    ElementKind::Levels,
    ElementKind::Auxiliary,
    ElementKind::Number,
    ElementKind::Name,
];

/// A level other than `equal`, close enough to others that many pairs are in order.
fn level() -> impl Strategy<Value = Level> {
    prop_oneof![
        "(low|high|[0-2]|[0-2]:[1-3]|[0-2]:[1-3]\\+[1-3])".prop_map(|text| text.parse().unwrap()),
        "[1-9][0-9]{0,3}:[1-9][0-9]?\\+[1-9][0-9]?".prop_map(|text| text.parse().unwrap()),
    ]
}

proptest! {
    #[test]
    fn a_value_of_any_kind_has_one_canonical_text(
        text in nearly(&["low", "high", "equal", "0", "1", "65535", "256", "(", "-", ")", "[", "]", ":", "+", "x"])
    ) {
        let Ok(value) = text.parse() else { return Ok(()) };
        for kind in KINDS {
            if let Ok(typed) = kind.read(&value) {
                let canonical = typed.to_value().unwrap();
                prop_assert!(canonical.as_ref().len() <= text.len());
                prop_assert_eq!(kind.read(&canonical).unwrap(), typed.clone());
                prop_assert_eq!(TypedValue::from_bytes(&typed.to_bytes()).unwrap(), typed);
            }
        }
    }

    #[test]
    fn bytes_of_an_element_are_those_of_its_value(kind in 0..6_u32, rest in vec(0..3_u8, 116)) {
        let bytes: Vec<u8> = kind.to_ne_bytes().into_iter().chain(rest).collect();
        let bytes = bytes.try_into().unwrap();
        if let Ok(value) = TypedValue::from_bytes(&bytes) {
            prop_assert_eq!(value.to_bytes(), bytes);
        }
    }

    #[test]
    fn levels_without_equal_are_in_partial_order(a in level(), b in level(), c in level()) {
        prop_assert!(a.dominates(&a));
        prop_assert!(!(a.dominates(&b) && b.dominates(&a)) || a == b);
        prop_assert!(!(a.dominates(&b) && b.dominates(&c)) || a.dominates(&c));
        prop_assert!(Level::High.dominates(&a) && a.dominates(&Level::Low));
        prop_assert!(Level::Equal.dominates(&a) && a.dominates(&Level::Equal));
    }

    #[test]
    fn a_range_contains_its_ends_and_nothing_beyond(a in level(), b in level(), c in level()) {
        let Ok(range) = Range::new(a.clone(), b.clone()) else {
            prop_assert!(!b.dominates(&a));
            return Ok(());
        };
        prop_assert!(range.contains(&a) && range.contains(&b));
        prop_assert_eq!(range.contains(&c), b.dominates(&c) && c.dominates(&a));
    }

    #[test]
    fn a_label_survives_its_text(label in label()) {
        let text = label.to_string();
        prop_assert_eq!(Label::from_attribute(text.as_bytes()).unwrap(), label);
    }

    #[test]
    fn what_is_read_prints_canonically(
        text in nearly(&["biba", "mls", "/", ",", "high", "low", "(", ")", "?", "a1_"])
    ) {
        if let Ok(label) = text.parse::<Label>() {
            let canonical = label.to_string();
            prop_assert_eq!(canonical.len(), text.len());
            prop_assert_eq!(canonical.parse::<Label>().unwrap().to_string(), canonical);
        }
        if let Ok(list) = text.parse::<ElementList>() {
            prop_assert_eq!(list.to_string(), text);
        }
    }

    // Threat model: M128
    #[test]
    fn any_bytes_are_a_label_or_a_mistake(bytes in vec(any::<u8>(), 0..1100)) {
        if let Err(error) = Label::from_attribute(&bytes) {
            prop_assert!(error.span.end() <= bytes.len());
        }
    }

    #[test]
    fn a_merge_has_the_partial_label_and_the_rest_of_the_whole(whole in label(), partial in label()) {
        let Ok(merged) = whole.with(&partial) else { return Ok(()) };
        for (name, value) in merged.elements() {
            let expected = partial.value(name.as_ref()).or(whole.value(name.as_ref()));
            prop_assert_eq!(Some(value), expected);
        }
        for (name, _) in whole.elements().chain(partial.elements()) {
            prop_assert!(merged.value(name.as_ref()).is_some());
        }
        prop_assert_eq!(merged.with(&partial).unwrap(), merged);
    }

    // Threat model: M128
    #[test]
    fn any_text_is_a_mac_conf_or_mistakes(
        text in nearly(&["default_labels", "default_file_labels", " ", "\t", "file", "?biba", ",", "mls", "\n", "#"])
    ) {
        if let Err(found) = Defaults::parse(source(text)) {
            prop_assert!(!found.is_empty());
        }
    }

    // Threat model: M128
    #[test]
    fn any_text_is_a_mac_login_or_mistakes(
        text in nearly(&["user", "group", "default", " ", "\t", "alice", "staff", "biba/low", ",", "-", "\n", "\n", "#"])
    ) {
        match LoginLabels::parse(source(text)) {
            Err(found) => prop_assert!(!found.is_empty()),
            Ok(labels) => {
                let lines = labels.lines().map(|line| {
                    let label = line.label.as_ref().map_or("-".to_owned(), ToString::to_string);
                    format!("{} {label}\n", line.subject)
                });
                let again = LoginLabels::parse(source(lines.collect())).unwrap();
                let bare = |labels: &LoginLabels| -> Vec<_> {
                    labels.lines().map(|line| (line.subject.clone(), line.label.clone())).collect()
                };
                prop_assert_eq!(bare(&again), bare(&labels));
            }
        }
    }

    #[test]
    fn one_line_of_mac_login_decides_the_most_specific(
        lines in vec((0..5_usize, "[a-c]", label()), 0..8),
        user in "[a-d]",
        member_of in vec("[a-c]", 0..3)
    ) {
        let text = lines.iter().map(|(kind, name, label)| match kind {
            0 | 1 => format!("user {name} {label}\n"),
            2 | 3 => format!("group {name} {label}\n"),
            _ => format!("default {label}\n"),
        });
        let Ok(labels) = LoginLabels::parse(source(text.collect())) else { return Ok(()) };
        let is_member = |group: &str| Ok::<_, ()>(member_of.iter().any(|one| one == group));
        let found = labels.decide(&user, is_member).unwrap();
        // By rank, and within a rank by the order of the file.
        let ranked = lines.iter().zip(1..).filter_map(|((kind, name, label), number)| match kind {
            0 | 1 if *name == user => Some((0, number, label)),
            2 | 3 if member_of.contains(name) => Some((1, number, label)),
            4 => Some((2, number, label)),
            _ => None,
        });
        let expected = ranked.min_by_key(|(rank, number, _)| (*rank, *number));
        prop_assert_eq!(
            found.map(|line| (line.line, line.label.clone())),
            expected.map(|(_, number, label)| (number, Some(label.clone())))
        );
        let rank = found.map(|line| match line.subject {
            LoginSubject::User(_) => 0,
            LoginSubject::Group(_) => 1,
            LoginSubject::Default => 2,
        });
        prop_assert_eq!(rank, expected.map(|(rank, _, _)| rank));
    }

    // Threat model: M128
    #[test]
    fn any_text_is_a_specification_or_mistakes(
        text in nearly(&["/etc", "(/.*)?", " ", "\t", "-d", "--", "biba/low", ",", "\n", "#", "[", ")", "{9}", "<<none>>"]),
        path in vec(any::<u8>(), 0..40)
    ) {
        for flavour in [Flavour::Labels, Flavour::Contexts] {
            match Specification::parse(source(text.clone()), flavour) {
                Err(found) => prop_assert!(!found.is_empty()),
                Ok(file) => {
                    let decided = file.find(&path, FileKind::Regular).map(|entry| entry.line);
                    // Line by line, the last match is the same.
                    let alone = file.entries().iter().rfind(|entry| {
                        let lines = text.lines().nth(entry.line - 1).unwrap();
                        let one = Specification::parse(source(lines.to_owned()), flavour).unwrap();
                        one.find(&path, FileKind::Regular).is_some()
                    });
                    prop_assert_eq!(decided, alone.map(|entry| entry.line));
                }
            }
        }
    }
}
