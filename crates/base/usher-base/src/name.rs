//! Names of users, services and hosts: validated once, at the border, and safe afterwards in log
//! lines, file names, environment variables and unit names.

use crate::DecodeError;
use crate::codec::{Codec, Reader, Text, put_string};
use std::fmt;
use std::str::FromStr;

/// A fault of a text that is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text has more bytes than the name may have.
    #[error("the name is longer than {limit} bytes")]
    TooLong {
        /// The limit of this kind of name, in bytes.
        limit: usize,
    },
    /// This kind of name does not allow a character at its place.
    #[error("the character {character:?} at byte {position} is not allowed there")]
    Character {
        /// The first offending character.
        character: char,
        /// The character's offset from the start of the text, in bytes.
        position: usize,
    },
}

/// The common interface of names.
pub trait Name: FromStr + AsRef<str> {
    /// Longest name of this kind, in bytes.
    const MAXIMUM_LENGTH: usize;
}

fn check_name(
    text: &str,
    limit: usize,
    first: fn(char) -> bool,
    following: fn(char) -> bool,
) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > limit {
        return Err(NameError::TooLong { limit });
    }
    let is_refused = |&(position, character): &(usize, char)| match position {
        0 => !first(character),
        _ => !following(character),
    };
    match text.char_indices().find(is_refused) {
        Some((position, character)) => Err(NameError::Character {
            character,
            position,
        }),
        None => Ok(()),
    }
}

/// One byte of length, and a name, which is never longer than 63 bytes.
fn put_name(name: &str, out: &mut Vec<u8>) {
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_bytes());
}

/// A name in a field of fixed size: one byte of length, the name, then zeros.
#[derive(Debug)]
pub struct Padded;

impl<T: Name> Codec<T> for Padded {
    fn put(value: &T, out: &mut Vec<u8>) {
        put_name(value.as_ref(), out);
        let padding = T::MAXIMUM_LENGTH.saturating_sub(value.as_ref().len());
        out.resize(out.len() + padding, 0);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<T, DecodeError> {
        let malformed = DecodeError::Malformed { field };
        let length = reader.u8()?.into();
        let bytes = reader.take(T::MAXIMUM_LENGTH)?;
        let (name, padding) = bytes.split_at_checked(length).ok_or(malformed)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(malformed);
        }
        parse_name(name, field)
    }
}

impl<T: Name> Codec<T> for Text {
    fn put(value: &T, out: &mut Vec<u8>) {
        put_string(out, value.as_ref().as_bytes());
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<T, DecodeError> {
        parse_name(reader.string(T::MAXIMUM_LENGTH)?, field)
    }
}

/// Reads a name from bytes. Every error names `field`.
fn parse_name<T: Name>(bytes: &[u8], field: &'static str) -> Result<T, DecodeError> {
    let malformed = DecodeError::Malformed { field };
    std::str::from_utf8(bytes)
        .map_err(|_| malformed)?
        .parse()
        .map_err(|_| malformed)
}

macro_rules! name_type {
    ($(#[$documentation:meta])* $name:ident, $limit:literal, $first:expr, $following:expr) => {
        $(#[$documentation])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Longest name of this kind, in bytes.
            pub const MAXIMUM_LENGTH: usize = $limit;

            /// Checks `text` and keeps a copy of it.
            ///
            /// # Errors
            /// [`NameError`] with the first fault.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check_name(text, Self::MAXIMUM_LENGTH, $first, $following)?;
                Ok(Self(text.to_owned()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Name for $name {
            const MAXIMUM_LENGTH: usize = $limit;
        }

        impl Codec for $name {
            fn put(value: &Self, out: &mut Vec<u8>) {
                put_name(&value.0, out);
            }

            fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
                let length = reader.u8()?.into();
                parse_name(reader.take(length)?, field)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }

        crate::serde_text::serde_as_text!($name);
    };
}

name_type!(
    /// A user, as the server's list of users knows it: `[a-z_][a-z0-9_.-]*`, 1 to 32 bytes.
    ///
    /// The shape is that of a login name (useradd(8)), so that a user name is always fit to be
    /// looked up as a local account.
    UserName,
    32,
    |character| character.is_ascii_lowercase() || character == '_',
    |character| {
        character.is_ascii_lowercase()
            || character.is_ascii_digit()
            || matches!(character, '_' | '.' | '-')
    }
);

name_type!(
    /// A service of a host, as policy names it: `[A-Za-z0-9][A-Za-z0-9_.-]*`, 1 to 32 bytes.
    ServiceName,
    32,
    |character| character.is_ascii_alphanumeric(),
    |character| character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-')
);

name_type!(
    /// A host, as local policy names it: `[A-Za-z0-9][A-Za-z0-9.-]*`, 1 to 63 bytes.
    ///
    /// The name is an entry of the local list of hosts, not a DNS name: what counts is the host key behind
    /// it. Names are compared byte by byte; `Mail` and `mail` are two hosts.
    HostName,
    63,
    |character| character.is_ascii_alphanumeric(),
    |character| character.is_ascii_alphanumeric() || matches!(character, '.' | '-')
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_accepted() {
        for name in ["alice", "_apt", "a", "www-data", "first.last", "u2", "a_b"] {
            assert_eq!(UserName::new(name).unwrap().as_str(), name);
        }
        for name in ["imap", "IMAP4", "9p", "cal_dav-1.0"] {
            assert_eq!(name.parse::<ServiceName>().unwrap().to_string(), name);
        }
        for name in ["mailhost", "mail.example.org", "10.0.0.1", "A-b"] {
            assert_eq!(HostName::new(name).unwrap().as_ref(), name);
        }
    }

    #[test]
    fn names_that_could_leave_their_place_are_refused() {
        for name in [
            "", "../x", ".hidden", "-option", "a/b", "a b", "a\0b", "a\nb", "é", "a:b",
        ] {
            UserName::new(name).unwrap_err();
            ServiceName::new(name).unwrap_err();
            HostName::new(name).unwrap_err();
        }
        assert_eq!(
            UserName::new("alIce"),
            Err(NameError::Character {
                character: 'I',
                position: 2
            })
        );
        assert_eq!(
            UserName::new("1st"),
            Err(NameError::Character {
                character: '1',
                position: 0
            })
        );
        assert_eq!(
            HostName::new("a_b"),
            Err(NameError::Character {
                character: '_',
                position: 1
            })
        );
    }

    #[test]
    fn the_longest_name_is_accepted_and_one_more_byte_is_not() {
        UserName::new(&"u".repeat(32)).unwrap();
        assert_eq!(
            UserName::new(&"u".repeat(33)),
            Err(NameError::TooLong { limit: 32 })
        );
        ServiceName::new(&"s".repeat(32)).unwrap();
        assert_eq!(
            ServiceName::new(&"s".repeat(33)),
            Err(NameError::TooLong { limit: 32 })
        );
        HostName::new(&"h".repeat(63)).unwrap();
        assert_eq!(
            HostName::new(&"h".repeat(64)),
            Err(NameError::TooLong { limit: 63 })
        );
    }

    #[test]
    fn json_carries_names_as_strings_and_checks_them() {
        let name = UserName::new("alice").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"alice\"");
        assert_eq!(serde_json::from_str::<UserName>("\"alice\"").unwrap(), name);
        serde_json::from_str::<UserName>("\"../alice\"").unwrap_err();
    }
}
