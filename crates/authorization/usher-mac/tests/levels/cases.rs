//! Processes, objects and elements about which the modules are asked.

use proptest::prelude::*;
use usher_label::{Level, Levels, Range, TypedValue};

use crate::asked::words;
use crate::model::Ways;

/// An element as the module sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    Nothing,
    Unknown,
    Of(Levels),
}

impl Element {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Of(levels) => TypedValue::Levels(levels.clone()).to_bytes().to_vec(),
            Self::Nothing => vec![0; 120],
            Self::Unknown => {
                let mut bytes = vec![0; 120];
                bytes[..4].copy_from_slice(&5u32.to_ne_bytes());
                bytes
            }
        }
    }
}

#[derive(Debug, Clone)]
pub struct Case {
    pub own: Element,
    pub object: Element,
    pub last: Element,
    /// Bits of `access`.
    pub access: u32,
    /// What mprotect(2) can make of a mapping.
    pub permitted: u32,
    /// The type of the file, in four bits, and its device.
    pub kind: u32,
    pub special: (u32, u32),
    pub argument: u32,
    pub interface: u32,
    pub capability: u32,
    /// Fills all fields at which modules that decide by labels may not look.
    pub noise: u32,
}

impl Case {
    /// The file as the framework hands it on, with what follows it.
    pub fn file(&self, rest: &[u32]) -> Vec<u8> {
        let (special, noise) = (self.special.0 << 20 | self.special.1, self.noise);
        let mode = self.kind << 12 | noise & 0o7777;
        let mut bytes = words(&[
            noise,
            0,
            noise >> 3,
            noise >> 5,
            noise >> 7,
            mode,
            special,
            0,
        ]);
        bytes.extend(words(rest));
        bytes
    }

    /// The level of the file if it has none.
    pub fn usual_of_file(&self, usual: &Level) -> Level {
        let (major, minor) = self.special;
        let is_for_everybody = match major {
            4 | 204 | 229 => true,
            1 => [3, 5, 7, 8, 9].contains(&minor),
            5 => [0, 2].contains(&minor),
            136..=143 => true,
            _ => false,
        };
        if self.kind == 0 || self.kind == 2 && is_for_everybody {
            return Level::Equal;
        }
        usual.clone()
    }

    pub fn usual_of_packet(&self) -> Level {
        if self.interface > 1 {
            Level::Low
        } else {
            Level::Equal
        }
    }

    pub fn ways(&self) -> Ways {
        Ways {
            reads: self.access & (1 | 4) != 0,
            writes: self.access & (2 | 8) != 0,
        }
    }

    pub fn ways_of_mapping(&self) -> Ways {
        Ways {
            reads: self.permitted & 1 != 0,
            writes: self.permitted & 2 != 0,
        }
    }
}

/// Few grades and compartments, so that levels are often comparable.
fn level() -> impl Strategy<Value = Level> {
    let few = [
        "low",
        "high",
        "equal",
        "0",
        "5",
        "5:1",
        "5:2",
        "5:1+2",
        "9",
        "9:2",
        "9:1+2",
        "9:256",
        "65535:1+2+256",
    ];
    prop::sample::select(few.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn range() -> impl Strategy<Value = Range> {
    (level(), level()).prop_filter_map("no range", |(one, other)| {
        Range::new(one.clone(), other.clone())
            .or_else(|_| Range::new(other, one))
            .ok()
    })
}

fn levels() -> impl Strategy<Value = Levels> {
    prop_oneof![
        4 => level().prop_map(Levels::Effective),
        1 => range().prop_map(Levels::Range),
        4 => (level(), range()).prop_map(|(level, range)| Levels::Both(level, range)),
    ]
}

fn element() -> impl Strategy<Value = Element> {
    prop_oneof![
        2 => Just(Element::Nothing),
        1 => Just(Element::Unknown),
        12 => levels().prop_map(Element::Of),
    ]
}

pub fn case() -> impl Strategy<Value = Case> {
    let elements = (element(), element(), element());
    let file = (
        prop::sample::select(vec![0u32, 1, 2, 4, 6, 8, 12]),
        prop::sample::select(vec![
            (1u32, 1u32),
            (1, 3),
            (1, 9),
            (4, 1),
            (4, 64),
            (204, 64),
            (5, 0),
            (5, 1),
            (8, 0),
            (10, 237),
            (136, 7),
            (0, 0),
        ]),
    );
    let numbers = (0u32..19, 0u32..4, 0u32..4, 0u32..48, any::<u32>());
    (elements, file, numbers, any::<bool>()).prop_map(
        |(elements, (kind, special), numbers, read_only)| {
            let (own, object, last) = elements;
            let (access, permitted, interface, capability, noise) = numbers;
            let argument = if read_only { 0o10000 } else { access };
            Case {
                own,
                object,
                last,
                access,
                permitted,
                kind,
                special,
                argument,
                interface,
                capability,
                noise,
            }
        },
    )
}
