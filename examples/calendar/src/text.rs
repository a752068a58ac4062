//! Splits iCalendar text (RFC 5545, section 3.1) into its components and joins them again without
//! loss: a calendar file belongs to its user and to other programs, and parts that this program does
//! not know stay as they were.

mod property;

use std::fmt;
use std::str::FromStr;

pub use property::Property;

/// Longest accepted text, in bytes.
pub const MAXIMUM_TEXT: usize = 4 << 20;
/// Longest content line, its folded parts put together, in bytes.
pub const MAXIMUM_LINE: usize = 64 << 10;
/// Most components directly in a calendar.
pub const MAXIMUM_COMPONENTS: usize = 20_000;
/// Deepest nesting of components; RFC 5545 has three levels.
const MAXIMUM_DEPTH: usize = 4;

/// Reasons that a text is not a calendar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text has too many bytes.
    #[error("longer than {MAXIMUM_TEXT} bytes")]
    TooLong,
    /// A content line has too many bytes.
    #[error("line {line}: longer than {MAXIMUM_LINE} bytes")]
    LineTooLong {
        /// Counted from 1; for a folded line, its first part.
        line: usize,
    },
    /// Neither a property nor the continuation of one.
    #[error("line {line}: not NAME:VALUE")]
    NoProperty {
        /// As above.
        line: usize,
    },
    /// BEGIN and END do not match.
    #[error("line {line}: END does not match its BEGIN")]
    Unbalanced {
        /// As above.
        line: usize,
    },
    /// Components are nested too deeply.
    #[error("line {line}: components stand more than {MAXIMUM_DEPTH} deep")]
    TooDeep {
        /// As above.
        line: usize,
    },
    /// The text has too many components.
    #[error("more than {MAXIMUM_COMPONENTS} components")]
    TooMany,
    /// Not exactly one VCALENDAR.
    #[error("a calendar is one BEGIN:VCALENDAR ... END:VCALENDAR and nothing else")]
    NotOneCalendar,
}

/// A component of a calendar: an event, a time zone, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// `VEVENT`, `VTIMEZONE`, ...; in capital letters.
    pub kind: String,
    /// Its own properties; those of components within it are only in `raw`.
    pub properties: Vec<Property>,
    /// The text itself, with BEGIN and END.
    pub raw: String,
}

/// The direct contents of a calendar, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Property(Property, String),
    Component(Component),
}

/// A calendar (`VCALENDAR`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    begin: String,
    pieces: Vec<Piece>,
    end: String,
}

impl Component {
    /// The first property of that name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .iter()
            .find(|property| property.name == name)
    }

    /// All properties of that name.
    pub fn properties<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Property> {
        self.properties
            .iter()
            .filter(move |property| property.name == name)
    }

    /// The value of that property as text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        self.property(name).map(Property::text)
    }

    /// Puts a property before the component's own, and removes those of the same name.
    pub fn set(&mut self, name: &str, value: &str) {
        let line = format!("{name}:{value}\r\n");
        let mut depth = 0;
        let mut raw = String::with_capacity(self.raw.len() + line.len());
        for content in Lines::new(&self.raw) {
            let property = Property::parse(&content.text);
            match property.as_ref().map(|property| property.name.as_str()) {
                Some("BEGIN") => depth += 1,
                Some("END") => depth -= 1,
                Some(other) if depth == 1 && other == name => continue,
                _ => {}
            }
            raw.push_str(content.raw);
            if depth == 1 && raw.len() == content.raw.len() {
                raw.push_str(&line);
            }
        }
        self.raw = raw;
        self.properties.retain(|property| property.name != name);
        self.properties.insert(
            0,
            Property {
                name: name.to_owned(),
                parameters: Vec::new(),
                value: value.to_owned(),
            },
        );
    }
}

impl Calendar {
    /// An empty calendar.
    #[must_use]
    pub fn new() -> Self {
        let property = |name: &str, value: &str| {
            let property = Property {
                name: name.to_owned(),
                parameters: Vec::new(),
                value: value.to_owned(),
            };
            Piece::Property(property, format!("{name}:{value}\r\n"))
        };
        Self {
            begin: "BEGIN:VCALENDAR\r\n".to_owned(),
            pieces: vec![
                property("VERSION", "2.0"),
                property("PRODID", "-//Usher//calendar example//EN"),
            ],
            end: "END:VCALENDAR\r\n".to_owned(),
        }
    }

    /// Its components, in their order.
    pub fn components(&self) -> impl Iterator<Item = &Component> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Component(component) => Some(component),
            Piece::Property(..) => None,
        })
    }

    /// Its method (RFC 5546): `REQUEST`, `CANCEL`, ...; in capital letters.
    #[must_use]
    pub fn method(&self) -> Option<String> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::Property(property, _) if property.name == "METHOD" => {
                Some(property.value.trim().to_ascii_uppercase())
            }
            _ => None,
        })
    }

    /// Adds a component after the others.
    pub fn push(&mut self, mut component: Component) {
        if !component.raw.ends_with('\n') {
            component.raw.push_str("\r\n");
        }
        self.pieces.push(Piece::Component(component));
    }

    /// Removes the components for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Component) -> bool) {
        self.pieces.retain(|piece| match piece {
            Piece::Component(component) => keep(component),
            Piece::Property(..) => true,
        });
    }
}

impl Default for Calendar {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.begin)?;
        for piece in &self.pieces {
            match piece {
                Piece::Property(_, raw) => formatter.write_str(raw)?,
                Piece::Component(component) => formatter.write_str(&component.raw)?,
            }
        }
        formatter.write_str(&self.end)
    }
}

impl FromStr for Calendar {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() > MAXIMUM_TEXT {
            return Err(TextError::TooLong);
        }
        let mut calendar = Self {
            begin: String::new(),
            pieces: Vec::new(),
            end: String::new(),
        };
        // The kinds of the components that are open at this point.
        let mut inside: Vec<String> = Vec::new();
        for line in Lines::new(text) {
            if line.text.len() > MAXIMUM_LINE {
                return Err(TextError::LineTooLong { line: line.number });
            }
            // RFC 5545 has no empty lines, but editors and mail programs leave them.
            if line.text.trim().is_empty() {
                calendar.keep(&inside, line.raw);
                continue;
            }
            let line_number = line.number;
            let property = Property::parse(line.text.trim_start_matches('\u{feff}'))
                .ok_or(TextError::NoProperty { line: line_number })?;
            let kind = property.value.trim().to_ascii_uppercase();
            match property.name.as_str() {
                "BEGIN" => {
                    let first = calendar.begin.is_empty();
                    match inside.len() {
                        0 if kind != "VCALENDAR" || !first => {
                            return Err(TextError::NotOneCalendar);
                        }
                        0 => calendar.begin.push_str(line.raw),
                        1 => {
                            if calendar.pieces.len() == MAXIMUM_COMPONENTS {
                                return Err(TextError::TooMany);
                            }
                            calendar.pieces.push(Piece::Component(Component {
                                kind: kind.clone(),
                                properties: Vec::new(),
                                raw: line.raw.to_owned(),
                            }));
                        }
                        MAXIMUM_DEPTH => return Err(TextError::TooDeep { line: line_number }),
                        _ => calendar.keep(&inside, line.raw),
                    }
                    inside.push(kind);
                }
                "END" => {
                    if inside.last() != Some(&kind) {
                        return Err(TextError::Unbalanced { line: line_number });
                    }
                    if inside.len() == 1 {
                        calendar.end.push_str(line.raw);
                    } else {
                        calendar.keep(&inside, line.raw);
                    }
                    inside.pop();
                }
                _ => match (inside.len(), calendar.pieces.last_mut()) {
                    (0, _) => return Err(TextError::NotOneCalendar),
                    (1, _) => calendar
                        .pieces
                        .push(Piece::Property(property, line.raw.to_owned())),
                    (2, Some(Piece::Component(component))) => {
                        component.raw.push_str(line.raw);
                        component.properties.push(property);
                    }
                    _ => calendar.keep(&inside, line.raw),
                },
            }
        }
        if calendar.end.is_empty() {
            return Err(TextError::NotOneCalendar);
        }
        Ok(calendar)
    }
}

impl Calendar {
    /// Keeps text without meaning here in its place.
    fn keep(&mut self, inside: &[String], raw: &str) {
        let place = match (inside.len(), self.pieces.last_mut()) {
            (0, _) if self.end.is_empty() => &mut self.begin,
            (0, _) => &mut self.end,
            (_, Some(Piece::Property(_, text))) => text,
            (_, Some(Piece::Component(component))) => &mut component.raw,
            (_, None) => &mut self.begin,
        };
        place.push_str(raw);
    }
}

/// A content line: one or, folded, several lines of the text.
struct Line<'a> {
    number: usize,
    raw: &'a str,
    text: String,
}

/// The content lines of a text. Their `raw` parts together are the text.
struct Lines<'a> {
    rest: &'a str,
    number: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            number: 1,
        }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let whole = self.rest;
        let number = self.number;
        let mut text = String::new();
        let mut length = 0;
        for part in whole.split_inclusive('\n') {
            let continues = part.strip_prefix([' ', '\t']);
            let part_text = match (length, continues) {
                (0, _) => part,
                (_, Some(rest)) => rest,
                (_, None) => break,
            };
            text.push_str(part_text.trim_end_matches(['\r', '\n']));
            length += part.len();
            self.number += 1;
        }
        if length == 0 {
            return None;
        }
        let (raw, rest) = whole.split_at(length);
        self.rest = rest;
        Some(Line { number, raw, text })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEETING: &str = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nMETHOD:request\r\n\r\n\
        BEGIN:VEVENT\r\nUID:1@x\r\nSUMMARY:Lunch\\, with the \r\n whole\\nteam\r\n\
        DTSTART;TZID=\"Europe/Berlin\";X-A=\"a:b;c\":20260105T120000\r\n\
        BEGIN:VALARM\r\nSUMMARY:not this one\r\nEND:VALARM\r\nEND:VEVENT\r\n\
        X-OTHER:kept\r\nEND:VCALENDAR\r\n";

    #[test]
    fn a_calendar_is_read_and_written_without_a_byte_of_difference() -> Result<(), TextError> {
        for text in [MEETING.to_owned(), MEETING.replace("\r\n", "\n")] {
            let calendar: Calendar = text.parse()?;
            assert_eq!(calendar.to_string(), text);
            assert_eq!(calendar.method().as_deref(), Some("REQUEST"));
            let event = calendar.components().next().expect("there is one");
            assert_eq!(event.kind, "VEVENT");
            assert_eq!(
                event.text("SUMMARY").as_deref(),
                Some("Lunch, with the whole\nteam")
            );
            let start = event.property("DTSTART").expect("there is one");
            assert_eq!(start.parameter("TZID"), Some("Europe/Berlin"));
            assert_eq!(start.parameter("X-A"), Some("a:b;c"));
            assert_eq!(start.value, "20260105T120000");
        }
        Ok(())
    }

    #[test]
    fn what_is_no_calendar_is_refused_with_its_line() {
        let refused = |text: &str| text.parse::<Calendar>().expect_err(text);
        assert_eq!(refused(""), TextError::NotOneCalendar);
        assert_eq!(
            refused(&format!("{MEETING}{MEETING}")),
            TextError::NotOneCalendar
        );
        assert_eq!(
            refused("BEGIN:VCALENDAR\nnothing\n"),
            TextError::NoProperty { line: 2 }
        );
        assert_eq!(
            refused("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR\n"),
            TextError::Unbalanced { line: 3 }
        );
        let deep = "BEGIN:VCALENDAR\n".to_owned() + &"BEGIN:A\n".repeat(MAXIMUM_DEPTH);
        assert_eq!(
            refused(&deep),
            TextError::TooDeep {
                line: MAXIMUM_DEPTH + 1
            }
        );
        let long = format!("BEGIN:VCALENDAR\nX:{}\n", "x".repeat(MAXIMUM_LINE));
        assert_eq!(refused(&long), TextError::LineTooLong { line: 2 });
        assert_eq!(refused(&"x".repeat(MAXIMUM_TEXT + 1)), TextError::TooLong);
    }

    #[test]
    fn components_are_taken_out_and_added_and_the_rest_stays() -> Result<(), TextError> {
        let mut calendar: Calendar = MEETING.parse()?;
        let mut event = calendar.components().next().expect("there is one").clone();
        calendar.retain(|_| false);
        assert!(!calendar.to_string().contains("VEVENT"));
        assert!(calendar.to_string().contains("X-OTHER:kept"));
        event.set("SUMMARY", "Dinner");
        event.set("STATUS", "CANCELLED");
        calendar.push(event);
        let again: Calendar = calendar.to_string().parse()?;
        let event = again.components().next().expect("there is one");
        assert_eq!(event.text("SUMMARY").as_deref(), Some("Dinner"));
        assert_eq!(event.text("STATUS").as_deref(), Some("CANCELLED"));
        assert_eq!(event.properties("SUMMARY").count(), 1);
        assert!(event.raw.contains("SUMMARY:not this one"));
        Ok(())
    }

    proptest! {
        #[test]
        fn whatever_is_taken_for_a_calendar_is_written_as_it_was(
            lines in proptest::collection::vec(
                prop_oneof![
                    Just("BEGIN:VEVENT\r\n".to_owned()),
                    Just("END:VEVENT\n".to_owned()),
                    Just("BEGIN:VALARM\n".to_owned()),
                    Just("END:VALARM\n".to_owned()),
                    Just("\n".to_owned()),
                    "[A-Za-z;=:\"\\\\ \t\u{e9}-]{0,12}\r?\n",
                ],
                0..20,
            )
        ) {
            let text = format!("BEGIN:VCALENDAR\n{}END:VCALENDAR\n", lines.concat());
            if let Ok(calendar) = text.parse::<Calendar>() {
                prop_assert_eq!(calendar.to_string(), text);
            }
        }
    }
}
