//! The programs that `application` blocks name.

use std::fmt;

use serde::Serialize;
use usher_language::is_plain_path;

/// The folders in which the name of a program is looked up. All files found there count.
pub const SYSTEM_FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// The file name of Usher's daemons.
pub(crate) const DAEMONS: &str = "usherd";

/// A program, as an `application` block names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramName {
    /// The name of its file, in one of the [`SYSTEM_FOLDERS`].
    Name(String),
    /// The absolute path of its file.
    Path(String),
}

impl ProgramName {
    /// A path, or the name of a file: letters, digits, `_`, `.`, `+` and `-`, at most 255, not
    /// beginning with `-`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            return is_plain_path(text).then(|| Self::Path(text.to_owned()));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
        let named = text.bytes().all(plain) && (1..=255).contains(&text.len());
        (named && !text.starts_with('-') && !["any", ".", ".."].contains(&text))
            .then(|| Self::Name(text.to_owned()))
    }
}

impl ProgramName {
    /// The name of its file, without folders.
    pub(crate) fn file_name(&self) -> &str {
        let (Self::Name(text) | Self::Path(text)) = self;
        text.rsplit('/').next().unwrap_or(text)
    }

    /// Returns whether both can be the same file, as far as names tell: a name without folders can be
    /// that of a file in any folder.
    pub fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(_), Self::Path(_)) | (Self::Path(_), Self::Name(_)) => {
                other.file_name() == self.file_name()
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) | Self::Path(text) => formatter.write_str(text),
        }
    }
}
