//! Values as the kernel holds them: `struct usher_mac_element` of bpf/include/usher_mac_label.h.
//!
//! Unused bytes are zero, so that equal values are equal bytes.

use crate::Label;
use crate::level::{Compartments, Level, Range};
use crate::value::{Auxiliary, ElementKind, Levels, NameValue, TypedValue};

/// Size of an element in bytes.
pub const ELEMENT_SIZE: usize = 120;

/// Where the value begins.
const VALUE: usize = 8;

/// Size of a level: its kind, its grade, its compartments.
const LEVEL_SIZE: usize = 36;

/// Where the auxiliary level stands: behind three levels, without compartments.
const AUXILIARY: usize = VALUE + 3 * LEVEL_SIZE;

const LOW: u16 = 1;
const HIGH: u16 = 2;
const EQUAL: u16 = 3;
const GRADE: u16 = 4;

/// Bytes that are no element of any kind, or an element that is not in the canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no element; kernel programs and library are of different versions")]
pub struct InvalidElement;

impl ElementKind {
    /// The kind's number in the kernel.
    pub fn number(self) -> u32 {
        match self {
            Self::Levels => 1,
            Self::Auxiliary => 2,
            Self::Number => 3,
            Self::Name => 4,
        }
    }

    /// The kind with this number in the kernel; `None` for others, among them 0, of modules that
    /// label nothing.
    pub fn of_number(number: u32) -> Option<Self> {
        let kinds = [Self::Levels, Self::Auxiliary, Self::Number, Self::Name];
        kinds.into_iter().find(|kind| kind.number() == number)
    }
}

impl TypedValue {
    /// The element in the kernel's bytes.
    pub fn to_bytes(&self) -> [u8; ELEMENT_SIZE] {
        let mut bytes = [0; ELEMENT_SIZE];
        bytes[..4].copy_from_slice(&self.kind().number().to_ne_bytes());
        match self {
            Self::Levels(levels) => put_levels(&mut bytes, levels),
            Self::Auxiliary(Auxiliary::Plain(levels)) => put_levels(&mut bytes, levels),
            Self::Auxiliary(Auxiliary::With(level, auxiliary)) => {
                put_level(&mut bytes[VALUE..], level.as_ref());
                let [kind, grade] = head(auxiliary);
                bytes[AUXILIARY..AUXILIARY + 2].copy_from_slice(&kind);
                bytes[AUXILIARY + 2..].copy_from_slice(&grade);
            }
            Self::Number(number) => {
                bytes[VALUE..VALUE + 4].copy_from_slice(&number.to_ne_bytes());
            }
            Self::Name(name) => {
                let name = name.as_ref().as_bytes();
                bytes[VALUE..VALUE + name.len()].copy_from_slice(name);
            }
        }
        bytes
    }

    /// The element that the kernel holds.
    ///
    /// # Errors
    ///
    /// No value has these bytes.
    pub fn from_bytes(bytes: &[u8; ELEMENT_SIZE]) -> Result<Self, InvalidElement> {
        let value = Self::read(bytes).ok_or(InvalidElement)?;
        if value.to_bytes() == *bytes {
            Ok(value)
        } else {
            Err(InvalidElement)
        }
    }

    fn read(bytes: &[u8; ELEMENT_SIZE]) -> Option<Self> {
        let value = &bytes[VALUE..];
        Some(match ElementKind::of_number(u32_at(bytes, 0)?)? {
            ElementKind::Levels => Self::Levels(get_levels(value)?),
            ElementKind::Auxiliary => {
                let auxiliary = &bytes[AUXILIARY..];
                let kind = u16_at(auxiliary, 0)?;
                Self::Auxiliary(match kind {
                    0 => Auxiliary::Plain(get_levels(value)?),
                    _ => {
                        let grade = u16_at(auxiliary, 2)?;
                        let auxiliary = level_of(kind, grade, Compartments::default())?;
                        Auxiliary::With(get_level(value)?, auxiliary)
                    }
                })
            }
            ElementKind::Number => Self::Number(u32_at(value, 0)?),
            ElementKind::Name => {
                let end = value.iter().position(|byte| *byte == 0)?;
                let name = std::str::from_utf8(&value[..end]).ok()?;
                Self::Name(name.parse::<NameValue>().ok()?)
            }
        })
    }
}

impl Label {
    /// The label of one element, from the kernel's bytes: the name of its module, padded with zeros, and the
    /// element. Bytes of the kind 0 are no element, and the label is empty.
    ///
    /// # Errors
    ///
    /// No element has this name or these bytes.
    pub fn from_kernel(name: &[u8], element: &[u8; ELEMENT_SIZE]) -> Result<Self, InvalidElement> {
        if u32_at(element, 0) == Some(0) {
            return Ok(Self::default());
        }
        let end = name.iter().position(|byte| *byte == 0);
        let name = std::str::from_utf8(&name[..end.unwrap_or(name.len())]);
        let name = name.ok().and_then(|name| name.parse().ok());
        let value = TypedValue::from_bytes(element)?.to_value();
        match (name, value) {
            (Some(name), Ok(value)) => Ok(Self::of_one(name, value)),
            _ => Err(InvalidElement),
        }
    }
}

fn put_levels(bytes: &mut [u8; ELEMENT_SIZE], levels: &Levels) {
    let (low, high) = (
        levels.range().map(Range::low),
        levels.range().map(Range::high),
    );
    let places = bytes[VALUE..].chunks_exact_mut(LEVEL_SIZE);
    for (place, level) in places.zip([levels.effective(), low, high]) {
        put_level(place, level);
    }
}

fn get_levels(value: &[u8]) -> Option<Levels> {
    let mut levels = [None, None, None];
    for (level, place) in levels.iter_mut().zip(value.chunks_exact(LEVEL_SIZE)) {
        *level = get_level(place)?;
    }
    Some(match levels {
        [Some(effective), None, None] => Levels::Effective(effective),
        [None, Some(low), Some(high)] => Levels::Range(Range::new(low, high).ok()?),
        [Some(effective), Some(low), Some(high)] => {
            Levels::Both(effective, Range::new(low, high).ok()?)
        }
        _ => return None,
    })
}

fn put_level(place: &mut [u8], level: Option<&Level>) {
    let Some(level) = level else { return };
    let [kind, grade] = head(level);
    place[..2].copy_from_slice(&kind);
    place[2..4].copy_from_slice(&grade);
    if let Level::Grade(_, compartments) = level {
        place[4..LEVEL_SIZE].copy_from_slice(&compartments.to_bytes());
    }
}

fn head(level: &Level) -> [[u8; 2]; 2] {
    let (kind, grade) = match level {
        Level::Low => (LOW, 0),
        Level::High => (HIGH, 0),
        Level::Equal => (EQUAL, 0),
        Level::Grade(grade, _) => (GRADE, *grade),
    };
    [kind.to_ne_bytes(), grade.to_ne_bytes()]
}

/// A level; `Some(None)` where there is none.
fn get_level(place: &[u8]) -> Option<Option<Level>> {
    let kind = u16_at(place, 0)?;
    if kind == 0 {
        return Some(None);
    }
    let compartments = place.get(4..LEVEL_SIZE)?.try_into().ok()?;
    let compartments = Compartments::from_bytes(compartments);
    level_of(kind, u16_at(place, 2)?, compartments).map(Some)
}

fn level_of(kind: u16, grade: u16, compartments: Compartments) -> Option<Level> {
    Some(match kind {
        LOW => Level::Low,
        HIGH => Level::High,
        EQUAL => Level::Equal,
        GRADE => Level::Grade(grade, compartments),
        _ => return None,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_ne_bytes(bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [(ElementKind, &str); 9] = [
        (ElementKind::Levels, "high"),
        (ElementKind::Levels, "(low-equal)"),
        (ElementKind::Levels, "65535:1+256(3-high)"),
        (ElementKind::Auxiliary, "high"),
        (ElementKind::Auxiliary, "7(low-9)"),
        (ElementKind::Auxiliary, "high[65535]"),
        (ElementKind::Auxiliary, "[low]"),
        (ElementKind::Number, "0"),
        (ElementKind::Name, "httpd_t"),
    ];

    fn bytes(kind: ElementKind, text: &str) -> [u8; ELEMENT_SIZE] {
        kind.read(&text.parse().unwrap()).unwrap().to_bytes()
    }

    #[test]
    fn values_survive_the_bytes_of_the_kernel() {
        for (kind, text) in VALUES {
            let value = TypedValue::from_bytes(&bytes(kind, text)).unwrap();
            assert_eq!((value.kind(), value.to_string().as_str()), (kind, text));
        }
    }

    #[test]
    fn a_label_of_the_kernel_has_a_module_and_a_value() {
        let httpd = bytes(ElementKind::Name, "httpd_t");
        let read =
            |name: &[u8], element| Label::from_kernel(name, element).map(|label| label.to_string());
        assert_eq!(read(b"te\0\0", &httpd), Ok("te/httpd_t".into()));
        assert_eq!(read(b"te", &[0; ELEMENT_SIZE]), Ok(String::new()));
        for name in [&b"\0"[..], b"T\0", b"\xff\0"] {
            assert_eq!(read(name, &httpd), Err(InvalidElement));
        }
    }

    #[test]
    fn only_canonical_bytes_are_an_element() {
        for (kind, text) in VALUES {
            let mut changed = bytes(kind, text);
            changed[4] = 1;
            assert_eq!(TypedValue::from_bytes(&changed), Err(InvalidElement));
        }
        let mut backwards = bytes(ElementKind::Levels, "(3-4)");
        backwards[VALUE + LEVEL_SIZE + 2] = 5;
        assert_eq!(TypedValue::from_bytes(&backwards), Err(InvalidElement));
        let mut unknown = bytes(ElementKind::Number, "0");
        unknown[0] = 9;
        assert_eq!(TypedValue::from_bytes(&unknown), Err(InvalidElement));
        assert_eq!(
            TypedValue::from_bytes(&[0; ELEMENT_SIZE]),
            Err(InvalidElement)
        );
    }
}
