//! Names of blocks, which never leave the policy, and of what keys are for; names of groups, and
//! principals of certificates.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use usher_proto::MAX_PRINCIPALS_SIZE;

/// The name of a `users` or `client` block, or of what keys are for: a letter or digit, then letters,
/// digits, `_`, `.` and `-`, 1 to 32 bytes, all ASCII. `any` is reserved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

/// The text is not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name is a letter or digit, then letters, digits, `_`, `.` or `-`, at most 32 in all")]
pub struct InvalidName;

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let first = text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        if first && rest && text.len() <= 32 && text != "any" {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName)
        }
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The name of a group of accounts, as the system's name service (NSS) has it: a letter, digit or
/// `_`, then letters, digits and `_ . - @ + \ $`, 1 to 64 bytes, all ASCII.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupName(String);

/// The text is not a [`GroupName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a group is a letter, digit or `_`, then letters, digits and `_ . - @ + \\ $`, at \
     most 64 in all"
)]
pub struct InvalidGroupName;

impl FromStr for GroupName {
    type Err = InvalidGroupName;

    fn from_str(text: &str) -> Result<Self, InvalidGroupName> {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let first = text.bytes().next().is_some_and(letter);
        let rest = text
            .bytes()
            .all(|byte| letter(byte) || b".-@+\\$".contains(&byte));
        if first && rest && text.len() <= 64 {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidGroupName)
        }
    }
}

impl TryFrom<String> for GroupName {
    type Error = InvalidGroupName;

    fn try_from(text: String) -> Result<Self, InvalidGroupName> {
        text.parse()
    }
}

impl From<GroupName> for String {
    fn from(name: GroupName) -> Self {
        name.0
    }
}

impl AsRef<str> for GroupName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A principal of OpenSSH certificates, as far as a word of the language can be one: 1 to
/// [`MAX_PRINCIPALS_SIZE`] bytes without blanks, control characters and `; , { } " #`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Principal(String);

/// The text is not a [`Principal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a principal has no blanks, no control characters and none of `; , {{ }} \" #`, and at most \
     {MAX_PRINCIPALS_SIZE} bytes"
)]
pub struct InvalidPrincipal;

impl FromStr for Principal {
    type Err = InvalidPrincipal;

    fn from_str(text: &str) -> Result<Self, InvalidPrincipal> {
        let ends_word = |letter: char| {
            letter.is_whitespace() || letter.is_control() || ";,{}\"#".contains(letter)
        };
        if text.is_empty() || text.len() > MAX_PRINCIPALS_SIZE || text.contains(ends_word) {
            return Err(InvalidPrincipal);
        }
        Ok(Self(text.to_owned()))
    }
}

impl Borrow<str> for Principal {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Principal {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
