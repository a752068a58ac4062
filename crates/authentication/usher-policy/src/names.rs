//! Names of groups and principals, and what messages say of all names.

use serde::Deserialize;
use usher_language::{Name, NameRule, names};
use usher_proto::MAX_PRINCIPALS_SIZE;

names! {
    /// The name of a group of accounts, as the system's name service (NSS) has it: a letter, digit or
    /// `_`, then letters, digits and `_ . - @ + \ $`, 1 to 64 bytes, all ASCII.
    GroupName, InvalidGroupName("the name of a group is a letter, digit or `_`, then letters, digits and `_ . - @ + \\ $`, at most 64 in all"):
        |text| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            text.len() <= 64
                && text.bytes().next().is_some_and(letter)
                && text.bytes().all(|byte| letter(byte) || b".-@+\\$".contains(&byte))
        };
    /// A principal of OpenSSH certificates, as far as a word of the language can be one: 1 to
    /// [`MAX_PRINCIPALS_SIZE`] bytes without blanks, control characters and `; , { } " #`.
    Principal, InvalidPrincipal("a principal has no blanks, no control characters and none of `; , { } \" #`, and at most 511 bytes"):
        |text| {
            let ends_word = |letter: char| {
                letter.is_whitespace() || letter.is_control() || ";,{}\"#".contains(letter)
            };
            (1..=MAX_PRINCIPALS_SIZE).contains(&text.len()) && !text.contains(ends_word)
        };
}

impl<'d> Deserialize<'d> for GroupName {
    fn deserialize<D: serde::Deserializer<'d>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

const fn rule(noun: &'static str, rule: &'static str) -> NameRule {
    NameRule {
        noun,
        rule,
        any_is_reserved: false,
    }
}

pub(crate) const USER: NameRule = rule(
    "user",
    "a user name is a small letter or `_`, then small letters, digits, `_`, `.` or `-`, at most 32 \
     in all",
);

pub(crate) const ACCOUNT: NameRule = rule(
    "local account",
    "an account name is a small letter or `_`, then small letters, digits, `_`, `.` or `-`, at most \
     32 in all",
);

pub(crate) const SERVICE: NameRule = rule(
    "service",
    "a service name is a letter or digit, then letters, digits, `_`, `.` or `-`, at most 32 in all",
);

pub(crate) const HOST: NameRule = NameRule {
    noun: "host",
    rule: "a host name is a letter or digit, then letters, digits, `.` or `-`, at most 63 in all, and \
           not `any`",
    any_is_reserved: true,
};

pub(crate) const BLOCK: NameRule = rule("block", Name::RULE);

pub(crate) const KEY: NameRule = rule(
    "key",
    "the name of a key is a letter or digit, then letters, digits, `_`, `.` or `-`, at most 32 in \
     all, and not `any`",
);

pub(crate) const GROUP: NameRule = rule(
    "group",
    "the name of a group is a letter, digit or `_`, then letters, digits and `_ . - @ + \\ $`, at \
     most 64 in all; `getent group` tells which there are",
);

pub(crate) const PRINCIPAL: NameRule = rule("principal", "a principal has at most 511 bytes");
