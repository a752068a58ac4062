//! Messages: sections of named values, lists and sections.

use zeroize::{Zeroize, Zeroizing};

/// Largest packet that charon sends or takes, in bytes.
pub const LARGEST_MESSAGE: usize = 512 * 1024;

/// Limit of sections inside each other. charon's own messages have five.
const DEEPEST: usize = 8;

/// Limit of elements of one message. charon's largest has one IKE SA, with about forty elements a child.
const MOST_ELEMENTS: usize = 16_384;

/// Limit of characters of a text that are read. charon's own are names, numbers and sentences.
const LONGEST_TEXT: usize = 1_024;

const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

/// Bytes are no message, or something cannot be put into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end inside an element, or before the end of a section or list.
    #[error("its message ends too early")]
    Truncated,
    /// An element stands where it cannot.
    #[error("its message has an element {0} in the wrong place")]
    Misplaced(u8),
    /// A name is not text.
    #[error("its message has a name that is not text")]
    Name,
    /// Sections are nested deeper than charon's.
    #[error("its message nests more than {DEEPEST} sections")]
    TooDeep,
    /// More elements than charon sends.
    #[error("its message has more than {MOST_ELEMENTS} elements")]
    TooMany,
    /// Larger than the protocol permits.
    #[error("its packet has more than {LARGEST_MESSAGE} bytes")]
    TooLarge,
    /// The messages that belong to one command are larger together than any that charon sends.
    #[error("its answer does not end")]
    TooMuch,
    /// A packet of a kind that does not belong here.
    #[error("its packet is of kind {0}, which was not asked for")]
    Unexpected(u8),
    /// A name to be sent has more than 255 bytes, or a value more than 65,535.
    #[error("a name or a value is too long for VICI")]
    TooLong,
}

/// The value of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Value(Vec<u8>),
    List(Vec<Vec<u8>>),
    Section(Section),
}

/// Named values, lists and sections in their order; a message is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    items: Vec<(String, Item)>,
}

impl Section {
    /// An empty section.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value.
    #[must_use]
    pub fn value(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = Item::Value(value.as_ref().to_vec());
        self.items.push((name.to_owned(), value));
        self
    }

    /// Adds a list.
    #[must_use]
    pub fn list<V: AsRef<[u8]>>(mut self, name: &str, values: impl IntoIterator<Item = V>) -> Self {
        let values = values.into_iter().map(|value| value.as_ref().to_vec());
        let list = Item::List(values.collect());
        self.items.push((name.to_owned(), list));
        self
    }

    /// Adds a section.
    #[must_use]
    pub fn section(mut self, name: &str, section: Section) -> Self {
        self.items.push((name.to_owned(), Item::Section(section)));
        self
    }

    /// The text of a value, at most 1,024 characters of it; control characters, which a terminal would
    /// obey, are replaced. None: there is no such value, or it is not text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match self.find(name)? {
            Item::Value(value) => Some(plain(std::str::from_utf8(value).ok()?)),
            Item::List(_) | Item::Section(_) => None,
        }
    }

    /// The decimal number of a value.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The texts of a list; none when there is no such list.
    #[must_use]
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.find(name) {
            Some(Item::List(values)) => values
                .iter()
                .filter_map(|value| std::str::from_utf8(value).ok().map(plain))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// A section by its name.
    #[must_use]
    pub fn inner(&self, name: &str) -> Option<&Section> {
        match self.find(name)? {
            Item::Section(section) => Some(section),
            Item::Value(_) | Item::List(_) => None,
        }
    }

    /// All inner sections, with their names.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.items.iter().filter_map(|(name, item)| match item {
            Item::Section(section) => Some((name.as_str(), section)),
            Item::Value(_) | Item::List(_) => None,
        })
    }

    /// The names of the section's items, for sections that are used as sets.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(|(name, _)| name.as_str())
    }

    fn find(&self, name: &str) -> Option<&Item> {
        let item = self.items.iter().find(|(own, _)| own == name);
        item.map(|(_, item)| item)
    }

    /// The bytes of the message. They may hold a private key, so they are wiped when dropped.
    ///
    /// # Errors
    /// [`MessageError::TooLong`].
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, MessageError> {
        let mut bytes = Zeroizing::new(Vec::new());
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, bytes: &mut Vec<u8>) -> Result<(), MessageError> {
        for (name, item) in &self.items {
            match item {
                Item::Value(value) => {
                    write_name(bytes, KEY_VALUE, name)?;
                    write_value(bytes, value)?;
                }
                Item::List(values) => {
                    write_name(bytes, LIST_START, name)?;
                    for value in values {
                        bytes.push(LIST_ITEM);
                        write_value(bytes, value)?;
                    }
                    bytes.push(LIST_END);
                }
                Item::Section(section) => {
                    write_name(bytes, SECTION_START, name)?;
                    section.write(bytes)?;
                    bytes.push(SECTION_END);
                }
            }
        }
        Ok(())
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`MessageError`] when the bytes are none, or beyond a limit.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > LARGEST_MESSAGE {
            return Err(MessageError::TooLarge);
        }
        let mut reader = Reader(bytes);
        // The sections that are open, from the outermost on, with their names.
        let mut open: Vec<(String, Section)> = Vec::new();
        let mut current = Section::new();
        for _ in 0..MOST_ELEMENTS {
            let Some(kind) = reader.next_kind() else {
                return if open.is_empty() {
                    Ok(current)
                } else {
                    Err(MessageError::Truncated)
                };
            };
            match kind {
                KEY_VALUE => {
                    let name = reader.name()?;
                    let value = reader.value()?;
                    current.items.push((name, Item::Value(value)));
                }
                LIST_START => {
                    let name = reader.name()?;
                    let values = reader.list()?;
                    current.items.push((name, Item::List(values)));
                }
                SECTION_START if open.len() == DEEPEST => return Err(MessageError::TooDeep),
                SECTION_START => open.push((reader.name()?, std::mem::take(&mut current))),
                SECTION_END => {
                    let (name, outer) = open.pop().ok_or(MessageError::Misplaced(kind))?;
                    let ended = std::mem::replace(&mut current, outer);
                    current.items.push((name, Item::Section(ended)));
                }
                _ => return Err(MessageError::Misplaced(kind)),
            }
        }
        if reader.0.is_empty() && open.is_empty() {
            Ok(current)
        } else {
            Err(MessageError::TooMany)
        }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // Values only, for the one message that carries a private key.
        if let Self::Value(value) = self {
            value.zeroize();
        }
    }
}

/// The beginning of the text, with control characters replaced. It never has more bytes than the text:
/// a name that was decoded can be encoded.
fn plain(text: &str) -> String {
    text.chars()
        .take(LONGEST_TEXT)
        .map(|character| {
            if character.is_control() {
                '?'
            } else {
                character
            }
        })
        .collect()
}

fn write_name(bytes: &mut Vec<u8>, kind: u8, name: &str) -> Result<(), MessageError> {
    let length = u8::try_from(name.len()).map_err(|_| MessageError::TooLong)?;
    bytes.extend([kind, length]);
    bytes.extend(name.as_bytes());
    Ok(())
}

fn write_value(bytes: &mut Vec<u8>, value: &[u8]) -> Result<(), MessageError> {
    let length = u16::try_from(value.len()).map_err(|_| MessageError::TooLong)?;
    bytes.extend(length.to_be_bytes());
    bytes.extend(value);
    Ok(())
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn next_kind(&mut self) -> Option<u8> {
        let (kind, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*kind)
    }

    fn take(&mut self, length: usize) -> Result<&[u8], MessageError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(MessageError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn name(&mut self) -> Result<String, MessageError> {
        let length = self.take(1)?[0];
        let name = std::str::from_utf8(self.take(length.into())?);
        name.map(plain).map_err(|_| MessageError::Name)
    }

    fn value(&mut self) -> Result<Vec<u8>, MessageError> {
        let high = self.take(1)?[0];
        let low = self.take(1)?[0];
        Ok(self.take(u16::from_be_bytes([high, low]).into())?.to_vec())
    }

    fn list(&mut self) -> Result<Vec<Vec<u8>>, MessageError> {
        let mut values = Vec::new();
        while values.len() < MOST_ELEMENTS {
            match self.next_kind().ok_or(MessageError::Truncated)? {
                LIST_ITEM => values.push(self.value()?),
                LIST_END => return Ok(values),
                other => return Err(MessageError::Misplaced(other)),
            }
        }
        Err(MessageError::TooMany)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Section {
        Section::new()
            .value("version", "2")
            .list("addrs", ["192.0.2.1", "192.0.2.2"])
            .section("children", Section::new().section("a", Section::new()))
    }

    #[test]
    fn a_message_has_the_bytes_of_the_specification() {
        let message = Section::new()
            .value("k", "v")
            .list("l", ["i"])
            .section("s", Section::new());
        let expected = b"\x03\x01k\x00\x01v\x04\x01l\x05\x00\x01i\x06\x01\x01s\x02";
        let bytes = message.encode().expect("short names");
        assert_eq!(bytes.as_slice(), expected);
        assert_eq!(Section::decode(expected), Ok(message));
    }

    #[test]
    fn every_beginning_of_a_message_is_an_error_or_a_message() {
        let bytes = example().encode().expect("short names");
        let whole = (0..=bytes.len()).filter(|end| Section::decode(&bytes[..*end]).is_ok());
        // Between the outermost elements.
        assert_eq!(whole.count(), 4);
    }

    #[test]
    fn deep_nesting_is_refused() {
        let nested = |depth: usize| {
            let mut bytes = b"\x01\x00".repeat(depth);
            bytes.extend(vec![SECTION_END; depth]);
            Section::decode(&bytes)
        };
        assert!(nested(DEEPEST).is_ok());
        assert_eq!(nested(DEEPEST + 1), Err(MessageError::TooDeep));
        assert_eq!(nested(100_000), Err(MessageError::TooDeep));
    }

    #[test]
    fn a_text_is_cut_where_no_text_of_charon_s_ends() {
        let text = |length: usize| {
            let message = Section::new().value("errmsg", "x".repeat(length));
            message.text("errmsg").map(|text| text.len())
        };
        assert_eq!(text(LONGEST_TEXT), Some(LONGEST_TEXT));
        assert_eq!(text(65_535), Some(LONGEST_TEXT));
    }

    #[test]
    fn a_name_of_control_characters_can_be_sent_again() {
        let bytes = [b"\x03\xff".as_slice(), &[7; 255], b"\x00\x00"].concat();
        let message = Section::decode(&bytes).expect("a message");
        assert!(message.encode().is_ok());
    }

    #[test]
    fn too_many_elements_are_refused() {
        let many = |count: usize| Section::decode(&b"\x03\x00\x00\x00".repeat(count));
        assert!(many(MOST_ELEMENTS).is_ok());
        assert_eq!(many(MOST_ELEMENTS + 1), Err(MessageError::TooMany));
    }

    #[test]
    fn long_names_and_values_are_not_sent() {
        let name = Section::new().value(&"n".repeat(256), "");
        assert_eq!(name.encode().err(), Some(MessageError::TooLong));
        let value = Section::new().value("n", vec![0; 65_536]);
        assert_eq!(value.encode().err(), Some(MessageError::TooLong));
        assert!(Section::new().value("n", vec![0; 65_535]).encode().is_ok());
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        let message = Section::new().value("errmsg", "\x1b[2Jgone");
        assert_eq!(message.text("errmsg").as_deref(), Some("?[2Jgone"));
    }

    #[test]
    fn the_corpus_has_the_outcomes_that_it_names() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/vici");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the corpus") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let outcome = match Section::decode(&std::fs::read(&path).expect("a file")) {
                Ok(_) => "accepted",
                Err(MessageError::Truncated) => "truncated",
                Err(MessageError::Misplaced(_)) => "misplaced",
                Err(MessageError::TooDeep) => "too_deep",
                Err(MessageError::Name) => "name",
                Err(other) => panic!("{name}: {other}"),
            };
            assert_eq!(name.split('-').next(), Some(outcome), "{name}");
            count += 1;
        }
        assert!(count >= 10, "{count}");
    }
}
